"""Figures of games in the plane: energies or classes as maps, and points over them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from esscher.reports.plots import blank_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA, MADE, DEEPEST = "#c2410c", "#1f5fa8", 12.0


def planar_panels(models: Mapping[str, Mapping[str, Tensor]]) -> "Figure":
    """The true energy and the data, then for each model its energy, and its draws over the data.

    A model is the tensors `true energy` and `energy` [S * S], `data` and `draws` [N, 2] and `box` (left, bottom, right, top).
    Energies are relative to their minimum, clipped at 12 nats, on one colour scale.
    """
    first = next(iter(models.values()))
    figure = blank_figure(2.5 * (1 + len(models)), 5.2)
    axes = figure.subplots(2, 1 + len(models), squeeze=False)
    left, bottom, right, top = first["box"].tolist()
    energies = {"truth": first["true energy"], **{name: shown["energy"] for name, shown in models.items()}}
    for (name, values), axis in zip(energies.items(), axes[0], strict=True):
        side = round(len(values) ** 0.5)
        height = (values - values.min()).clamp(max=DEEPEST).view(side, side).T
        axis.imshow(height, origin="lower", extent=(left, right, bottom, top), cmap="viridis_r", vmin=0, vmax=DEEPEST)
        axis.set_title(name, fontsize=10)
    for column, axis in enumerate(axes[1]):
        axis.scatter(*first["data"].T.tolist(), s=1, color=DATA, alpha=0.3, linewidths=0)
        if column:
            draws = list(models.values())[column - 1]["draws"]
            axis.scatter(*draws.T.tolist(), s=1, color=MADE, alpha=0.4, linewidths=0)
        axis.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    return figure


def boundary_panels(models: Mapping[str, Mapping[str, Tensor]]) -> "Figure":
    """For each model the class of every cell, unlabelled points in white, labelled ones ringed, generated ones in black.

    A model is the tensors `classes` [S * S], `box` (left, bottom, right, top), `data`, `made` and `labelled` [N, 2], `labels`.
    """
    figure = blank_figure(2.6 * len(models), 2.9)
    for axis, (name, shown) in zip(figure.subplots(1, len(models), squeeze=False)[0], models.items(), strict=True):
        left, bottom, right, top = shown["box"].tolist()
        side = round(len(shown["classes"]) ** 0.5)
        classes, most = shown["classes"].view(side, side).T, int(shown["labels"].max())
        axis.imshow(classes, origin="lower", extent=(left, right, bottom, top), cmap="Pastel1", vmin=0, vmax=max(8, most))
        axis.scatter(*shown["data"].T.tolist(), s=2, color="white", linewidths=0)
        if name != "labels only":
            axis.scatter(*shown["made"].T.tolist(), s=1.5, color="black", alpha=0.5, linewidths=0)
        colours = shown["labels"].tolist()
        axis.scatter(*shown["labelled"].T.tolist(), s=24, c=colours, cmap="Set1", vmin=0, vmax=max(8, most), edgecolors="black")
        axis.set(title=name, xlim=(left, right), ylim=(bottom, top), aspect="equal", xticks=[], yticks=[])
    return figure
