"""What a classifier of few labels says in the plane, and its figures (thesis, C.2 to C.4): the class of every cell of a grid,
and where it takes points for real, in the plane itself and in the space of its features if these are two numbers.

A view is a dictionary of tensors: `labelled` and `labels`, `data` and `data labels`, `made` (generated points) [N, 2]; `box`
(left, bottom, right, top), `classes` and `log odds` of "real" against "generated" [S * S], of the cells of the box.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.core.estimate import Estimate
from esscher.papers.games.evaluation import Grid
from esscher.papers.games.networks import Game, eval_in_batches
from esscher.papers.games.points import Points, SemiSupervisedSplits
from esscher.reports.plots import blank_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

View = Mapping[str, Tensor]
CELLS = 100
PLACES = ("labelled", "data", "made")
FEATURE = "feature "  # begins the names of a view in the space of features
COLUMNS = ("generated points and data", "classes; the white line bounds real", "taken for real (light) or generated")


def planar_view(game: Game, sets: SemiSupervisedSplits, made: Float[Tensor, "N 2"]) -> dict[str, Tensor]:
    """The view of a classifier in the plane, and a second one, with names that begin with `FEATURE`, if it has two features."""
    assert sets.labelled.labels is not None and sets.unlabelled.labels is not None
    labels = {"labels": sets.labelled.labels, "data labels": sets.unlabelled.labels}
    places = dict(zip(PLACES, (sets.labelled.values, sets.unlabelled.values, made), strict=True))
    view = {**places, **labels, **_cells(game.discriminator, Grid.around(sets.unlabelled, CELLS))}
    features = {name: eval_in_batches(game.discriminator.body, points) for name, points in places.items()}
    if features["data"].shape[1] != 2:
        return view
    grid = Grid.around(Points(torch.cat(list(features.values()))), CELLS)
    second = {**features, **_cells(game.discriminator.head, grid)}
    return {**view, **{f"{FEATURE}{name}": tensor for name, tensor in second.items()}}


def feature_view(view: View) -> dict[str, Tensor]:
    """The view in the space of two features; empty if there is none."""
    second = {name.removeprefix(FEATURE): tensor for name, tensor in view.items() if name.startswith(FEATURE)}
    return {**second, "labels": view["labels"], "data labels": view["data labels"]} if second else {}


def _cells(network: nn.Module, grid: Grid) -> dict[str, Tensor]:
    """The class of every cell, and log P(one of the classes) / P(generated), the logsumexp of the logits."""
    logits = eval_in_batches(network, grid.centres)
    return {"box": grid.box, "classes": logits.argmax(-1), "log odds": logits.logsumexp(-1)}


def boundary_share(view: View) -> Estimate | None:
    """The percentage of the cells at a class boundary, within the range of the data, that are taken for generated; a cell is at
    the boundary if that to its right or above has another class. None if there is no boundary."""
    classes, log_odds = (_square(view, name) for name in ("classes", "log odds"))
    across, up = _axes(view)
    boundary = (classes[:-1, :-1] != classes[1:, :-1]) | (classes[:-1, :-1] != classes[:-1, 1:])
    (left, right), (bottom, top) = ((float(values.min()), float(values.max())) for values in view["data"].T)
    boundary &= ((across >= left) & (across <= right))[:-1, None] & ((up >= bottom) & (up <= top))[None, :-1]
    cells = int(boundary.sum())
    generated = int((boundary & (log_odds[:-1, :-1] < 0)).sum())
    return Estimate.exact(100 * generated / cells, method=f"{cells} cells", unit="%") if cells else None


def _square(view: View, name: str) -> Tensor:
    """A value of every cell by column and row of the grid."""
    side = round(len(view[name]) ** 0.5)
    return view[name].view(side, side)


def _axes(view: View) -> tuple[Float[Tensor, "S"], Float[Tensor, "S"]]:
    """Where the columns and the rows of the grid are."""
    left, bottom, right, top = view["box"].tolist()
    side = len(_square(view, "classes"))
    return torch.linspace(left, right, side), torch.linspace(bottom, top, side)


def region_panels(views: Mapping[str, View]) -> "Figure":
    """A row for each view: generated points (black) over the data, coloured by class; the classes of all places, with the
    boundary of "real" in white; what is taken for real. Labelled points are crosses."""
    figure = blank_figure(7.8, 2.6 * len(views) + 0.3)
    for (name, view), axes in zip(views.items(), figure.subplots(len(views), len(COLUMNS), squeeze=False), strict=True):
        left, bottom, right, top = view["box"].tolist()
        classes, log_odds = (_square(view, key).T for key in ("classes", "log odds"))
        most = max(8, int(view["labels"].max()))
        _scatter(axes[0], view, "data", s=1.5, c=view["data labels"], cmap="Set1", vmin=0, vmax=most, alpha=0.5, linewidths=0)
        _scatter(axes[0], view, "made", s=1.5, color="black", alpha=0.6, linewidths=0)
        _image(axes[1], view, classes, cmap="Pastel1", vmin=0, vmax=most)
        if log_odds.min() < 0 < log_odds.max():
            axes[1].contour(*_axes(view), log_odds, levels=[0.0], colors="white", linewidths=1.6)
        _image(axes[2], view, log_odds > 0, cmap="Blues_r", vmin=-0.6, vmax=1.3)
        _scatter(axes[2], view, "data", s=1, color="black", alpha=0.3, linewidths=0)
        for axis, title in zip(axes, COLUMNS, strict=True):
            _scatter(
                axis, view, "labelled", s=30, marker="X", c=view["labels"], cmap="Set1", vmin=0, vmax=most, edgecolors="black"
            )
            axis.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[], box_aspect=1)
            axis.set_title(title, fontsize=8)
        axes[0].set_ylabel(name)
    return figure


def _scatter(axis: "Axes", view: View, name: str, **style: Any) -> None:
    """Draw the points of that name."""
    axis.scatter(*view[name].T.tolist(), **style)


def _image(axis: "Axes", view: View, values: Tensor, **style: Any) -> None:
    """Colour every cell."""
    left, bottom, right, top = view["box"].tolist()
    axis.imshow(values, origin="lower", extent=(left, right, bottom, top), aspect="auto", **style)
