"""Evaluation of games: in the plane divergences over a grid, and figures; of images a linear probe, their order by energy and
mean.

A grid has S rows and S columns of nodes over the bounding box of some points, extended by a quarter of its range on each side,
as in the released code of Dai et al. (2017). Densities and energies are evaluated at the nodes and normalised over them; a
point counts at the nearest node, the centre of its cell. An empty cell of a histogram adds nothing to KL(histogram || other),
and counts as half a point in KL(other || histogram). `PUBLISHED_FLOOR` makes the divergences those of Table B.2, found by its
six figures of data, histogram and flat cost: of a flat cost it tells how much of the grid is empty, and little else. Letters:
N points, M test points, C = S * S cells, F features, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from esscher.core.estimate import Estimate
from esscher.estimators.intervals import interval, proportion, ratio
from esscher.papers.games.networks import Game, eval_in_batches
from esscher.papers.games.points import Points
from esscher.reports.plots import blank_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELLS, STRETCH, PSEUDOCOUNT = 100, 0.5, 0.5
PUBLISHED_FLOOR = 1e-8  # added to both probabilities within the logarithm
PENALTY, MAX_ITERATIONS = 1e-3, 100  # of the linear probe
CONFIDENCE = 0.95
DATA, MADE, DEEPEST = "#c2410c", "#1f5fa8", 12.0
LONG_ARROWS = 0.95  # the share of arrows that are no longer than a tenth of a panel


@dataclass(frozen=True, eq=False)
class CellDistribution:
    """A distribution over C cells: known, or the histogram of points in these cells."""

    log_prob: Float[Tensor, "C"]
    cell_indices: Int[Tensor, "N"] | None = None

    @property
    def prob(self) -> Float[Tensor, "C"]:
        return self.log_prob.exp()

    @classmethod
    def histogram(cls, cell_indices: Int[Tensor, "N"], cells: int) -> "CellDistribution":
        """The share of points in each cell."""
        return cls(_shares(cell_indices, torch.ones(len(cell_indices), dtype=torch.float64), cells).log(), cell_indices)


@dataclass(frozen=True)
class Grid:
    """S * S cells, whose centres reach from the low to the high corner of a box."""

    low: tuple[float, float]
    high: tuple[float, float]
    side: int = CELLS

    @classmethod
    def around(cls, points: Points, side: int = CELLS) -> "Grid":
        """The grid over the extended bounding box of points."""
        low, high = points.values.double().amin(0), points.values.double().amax(0)
        more = STRETCH * (high - low) / 2
        (left, bottom), (right, top) = (low - more).tolist(), (high + more).tolist()
        return cls((left, bottom), (right, top), side)

    @property
    def centres(self) -> Float[Tensor, "C 2"]:
        """The centre of every cell, ordered by x, then by y."""
        sides = zip(self.low, self.high, strict=True)
        x, y = (torch.linspace(low, high, self.side, dtype=torch.float64) for low, high in sides)
        return torch.cartesian_prod(x, y).float()

    @property
    def box(self) -> Float[Tensor, "4"]:
        """Left, bottom, right, top."""
        return torch.tensor([*self.low, *self.high], dtype=torch.float64)

    def density(self, log_density: Float[Tensor, "C"]) -> CellDistribution:
        """The distribution with this log-density (or minus energy) at the centres, up to a constant."""
        return CellDistribution(log_density.double().log_softmax(0))

    def histogram(self, points: Points) -> CellDistribution:
        """The distribution of points over the cells."""
        axes = zip(points.values.double().T, self.low, self.high, strict=True)
        last = self.side - 1
        x, y = (((values - low) / (high - low) * last).round().long().clamp(0, last) for values, low, high in axes)
        return CellDistribution.histogram(x * self.side + y, self.side**2)


def divergence(left: CellDistribution, right: CellDistribution, floor: float | None = None) -> Estimate:
    """KL(left || right) over the cells, exact if both are known; otherwise the counted points are the replicates. The bias of
    histograms, about the number of occupied cells over twice the number of points, is left in. A `floor` is added to both
    probabilities within the logarithm, and empty cells of histograms then count as no points."""
    sides = (left, right)
    sizes = [len(side.cell_indices) for side in sides if side.cell_indices is not None]
    if not sizes:
        return Estimate.exact(float(_divergence(left.prob, right.prob, floor or 0.0)), unit="nats")

    def statistic(*times: Float[Tensor, "1 n"]) -> Tensor:
        counts, cells = iter(times), len(left.log_prob)
        p, q = (s.prob if s.cell_indices is None else _shares(s.cell_indices, next(counts)[0], cells) for s in sides)
        if floor is None and right.cell_indices is not None:
            q = q.clamp(min=PSEUDOCOUNT / len(right.cell_indices))
        return _divergence(p, q, floor or 0.0)

    sources = [(1, size) for size in sizes]
    return interval(
        statistic, sources, confidence=CONFIDENCE, n=sum(sizes), method="points counted in cells", unit="nats", counted="points"
    )


def _divergence(left: Float[Tensor, "C"], right: Float[Tensor, "C"], floor: float) -> Tensor:
    return (torch.xlogy(left, left + floor) - torch.xlogy(left, right + floor)).sum()


def _shares(cell_indices: Int[Tensor, "N"], times: Float[Tensor, "N"], cells: int) -> Float[Tensor, "C"]:
    """The share of each cell if each point is repeated so many times."""
    return torch.zeros(cells, dtype=torch.float64).index_add(0, cell_indices, times / times.sum()).clamp(min=0)


def probe_error(features_of: nn.Module, train: Points, test: Points) -> Estimate:
    """The test error, in percent, of a linear classifier of features, such as the body of a discriminator."""
    features, test_features = (eval_in_batches(features_of, points.values, 1_000).double() for points in (train, test))
    mean, deviation = features.mean(0), features.std(0).clamp(min=1e-6)
    assert train.labels is not None and test.labels is not None
    weight = fit_linear((features - mean) / deviation, train.labels)
    logits = pad((test_features - mean) / deviation, (0, 1), value=1.0) @ weight
    return error_rate(logits.argmax(-1).ne(test.labels))


def error_rate(wrong: Tensor) -> Estimate:
    """The share of wrong answers in percent, with an interval for other points."""
    n, mean = len(wrong), ratio(wrong.double())
    share = proportion(mean, [(1, n)], confidence=CONFIDENCE, n=n, method="points as a sample", counted="points")
    return share.map(lambda value: 100 * value, unit="%")


def fit_linear(features: Float[Tensor, "N F"], labels: Int[Tensor, "N"]) -> Float[Tensor, "G K"]:
    """Weights, the bias last, that minimise cross-entropy with a small penalty; convex, so nothing is random."""
    x = pad(features, (0, 1), value=1.0)
    weight = torch.zeros(x.shape[1], 1 + int(labels.max()), dtype=x.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=MAX_ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = cross_entropy(x @ weight, labels) + PENALTY * weight.square().sum()
        (weight.grad,) = torch.autograd.grad(value, [weight])
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return weight.detach()


def sort_by_energy(game: Game, points: Points) -> Int[Tensor, "N"]:
    """The indices of points by rising energy."""
    return eval_in_batches(game.discriminator, points.values, 1_000).argsort(stable=True)


def mean_image_rmse(generated: Points, real: Points) -> Estimate:
    """The root mean square difference, over pixels, between the mean generated image and the mean real image. The mean square
    is unbiased; if it is negative, the root is 0."""
    centre = real.values.flatten(1).double().mean(0)
    x, y = (points.values.flatten(1).double() - centre for points in (generated, real))

    def square(left: Tensor, right: Tensor) -> Tensor:
        between = (left[0] @ x) * (right[0] @ y) / (left.sum() * right.sum())
        return (_squared_mean(left[0], x) + _squared_mean(right[0], y) - 2 * between).mean()

    sources, draws = [(1, len(x)), (1, len(y))], len(x) + len(y)
    estimate = interval(square, sources, confidence=CONFIDENCE, n=draws, method="images as samples", counted="images")
    return estimate.map(lambda value: max(0.0, value) ** 0.5)


def _squared_mean(count: Float[Tensor, "n"], x: Float[Tensor, "n F"]) -> Float[Tensor, "F"]:
    """The square of the mean of independent rows, from products of two different rows."""
    return ((count @ x).square() - count.square() @ x.square()) / (count.sum().square() - count.square().sum())


def planar_panels(models: Mapping[str, Mapping[str, Tensor]]) -> "Figure":
    """The true energy and the data, then for each model its energy, and its draws over the data. A model is the tensors `true
    energy` and `energy` [S * S], `data` and `draws` [N, 2] and `box` (left, bottom, right, top). Energies are relative to their
    minimum, clipped at 12 nats."""
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


def gradient_panels(models: Mapping[str, Mapping[str, Tensor]]) -> "Figure":
    """For each model its points over the data, then the arrows along which the generator's loss moves them: by the cost, by the
    entropy, by both, and by the entropy if its gradient were that of the data. A model is the tensors `points`, `data`, `cost`,
    `entropy` and `data's` [N, 2], the last three gradients. In a row, arrows have one scale."""
    figure = blank_figure(2.6 * 5, 2.8 * len(models))
    for row, (name, shown) in zip(figure.subplots(len(models), 5, squeeze=False), models.items(), strict=True):
        low, high = shown["data"].amin(0), shown["data"].amax(0)
        arrows = {"the cost": shown["cost"], "the entropy": shown["entropy"]}
        arrows |= {"both": shown["cost"] + shown["entropy"], "the entropy of the data": shown["data's"]}
        longest = float(torch.cat([shown["cost"], shown["entropy"]]).norm(dim=-1).quantile(LONG_ARROWS))
        row[0].scatter(*shown["data"].T.tolist(), s=2, color=DATA, alpha=0.5, linewidths=0)
        row[0].scatter(*shown["points"].T.tolist(), s=2, color=MADE, alpha=0.5, linewidths=0)
        row[0].set_title(f"{name}: points", fontsize=10)
        for axis, (title, gradient) in zip(row[1:], arrows.items(), strict=True):
            scale = longest / (0.1 * float((high - low).max()))
            style = {"angles": "xy", "scale_units": "xy", "scale": max(scale, 1e-12), "width": 0.004, "color": MADE}
            axis.quiver(*shown["points"].T.tolist(), *(-gradient).T.tolist(), **style)
            axis.set_title(title, fontsize=10)
        for axis in row:
            box = {"xlim": (float(low[0]), float(high[0])), "ylim": (float(low[1]), float(high[1]))}
            axis.set(**box, aspect="equal", xticks=[], yticks=[])
    return figure


def boundary_panels(models: Mapping[str, Mapping[str, Tensor]]) -> "Figure":
    """For each model the class of every cell, unlabelled points in white, labelled ones ringed, generated ones in black. A
    model is the tensors `classes` [S * S], `box` (left, bottom, right, top), `data`, `made` and `labelled` [N, 2], `labels`."""
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
