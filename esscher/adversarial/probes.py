"""What a game on images has learnt, beside its draws: a linear probe on features, images by their energy, the mean image.

Letters: N images to learn from, M to judge by, F features, K classes.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from esscher.adversarial.networks import Game, in_pieces
from esscher.adversarial.points import Points
from esscher.estimate import Estimate
from esscher.estimators.intervals import interval
from esscher.estimators.proportions import proportion

LEVEL = 0.95
PENALTY, ROUNDS = 1e-3, 100


def probe_error(game: Game, train: Points, test: Points) -> Estimate:
    """The share of test points, in percent, whose class a linear classifier of the discriminator's features tells wrong."""
    own, other = (in_pieces(game.discriminator.body, points.values, 1_000).double() for points in (train, test))
    mean, deviation = own.mean(0), own.std(0).clamp(min=1e-6)
    assert train.labels is not None and test.labels is not None
    weight = fit_linear((own - mean) / deviation, train.labels)
    told = _with_one((other - mean) / deviation) @ weight
    return error_rate(told.argmax(-1).ne(test.labels))


def error_rate(wrong: Tensor) -> Estimate:
    """The share of wrong answers in percent, with an interval for other points."""

    def mean(times: Tensor) -> Tensor:
        return (times[0] * wrong).sum() / times[0].sum()

    share = proportion(mean, [(1, len(wrong))], level=LEVEL, draws=len(wrong), method="points as a sample")
    return share.map(lambda value: 100 * value, unit="%")


def fit_linear(features: Float[Tensor, "N F"], labels: Int[Tensor, "N"]) -> Float[Tensor, "G K"]:
    """Weights, the bias last, that minimise cross-entropy and a small penalty: convex, so without chance."""
    x = _with_one(features)
    weight = torch.zeros(x.shape[1], 1 + int(labels.max()), dtype=x.dtype, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight], max_iter=ROUNDS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        found = cross_entropy(x @ weight, labels) + PENALTY * weight.square().sum()
        (weight.grad,) = torch.autograd.grad(found, [weight])
        return found

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return weight.detach()


def by_energy(game: Game, points: Points) -> Int[Tensor, "N"]:
    """The numbers of points, the one of lowest energy first."""
    return in_pieces(game.discriminator, points.values, 1_000).argsort(stable=True)


def mean_gap(made: Points, real: Points) -> Estimate:
    """The root of the mean square by which the mean of generated images differs from that of real ones, pixel by pixel.

    The square is free of bias (no image is multiplied with itself); where it comes out below 0, the root is 0."""
    centre = real.values.flatten(1).double().mean(0)
    own, other = (points.values.flatten(1).double() - centre for points in (made, real))

    def square(left: Tensor, right: Tensor) -> Tensor:
        between = (left[0] @ own) * (right[0] @ other) / (left.sum() * right.sum())
        return (_squared_mean(left[0], own) + _squared_mean(right[0], other) - 2 * between).mean()

    draws = len(own) + len(other)
    found = interval(square, [(1, len(own)), (1, len(other))], level=LEVEL, draws=draws, method="images as samples")
    return found.map(lambda value: max(0.0, value) ** 0.5)


def _squared_mean(count: Float[Tensor, "n"], x: Float[Tensor, "n F"]) -> Float[Tensor, "F"]:
    """The square of the mean of rows drawn alike, from products of two that differ."""
    return ((count @ x).square() - count.square() @ x.square()) / (count.sum().square() - count.square().sum())


def _with_one(x: Float[Tensor, "N F"]) -> Float[Tensor, "N G"]:
    return torch.cat([x, torch.ones_like(x[:, :1])], 1)
