"""Rescoring of n-best lists: choose by a weighted sum of scores, with weights tuned for a corpus metric.

Tuning is exact line search (Och, Minimum error rate training, 2003): along a line in weight space the best candidate of a list
is the upper envelope of straight lines, and the merged corners of all envelopes give the metric everywhere on the line. Lines
along each weight and along random directions are searched until none helps, from several starts. Left out: a penalty on
weights. Letters: L lists, N candidates, F scores (features), S counts of the metric, K corners.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.randomness import Rng
from esscher.metrics.metric import TextMetric

MAX_SWEEPS = 20  # over all directions
GRID = 4096  # values of a coordinate of a random direction
MIN_WIDTH = 1e-9  # narrower intervals of the line lie between copies of one corner


@dataclass(frozen=True)
class NBestScores:
    """Scores and metric counts of the candidates of many lists; shorter lists are padded with their first candidate."""

    scores: Float[Tensor, "L N F"]
    counts: Float[Tensor, "L N S"]

    def chosen(self, weights: Float[Tensor, "F"]) -> Int[Tensor, "L"]:
        """The candidate with the highest sum in each list, the first of ties."""
        return (self.scores @ weights).argmax(-1)

    def counts_of(self, chosen: Int[Tensor, "L"]) -> Float[Tensor, "L S"]:
        """The counts of one candidate of each list."""
        return self.counts[torch.arange(len(chosen)), chosen]

    def nearest(self, metric: TextMetric) -> Int[Tensor, "L"]:
        """The oracle: the candidate of each list with the best metric of its own."""
        return (metric.sign * metric.value(self.counts)).argmax(-1)


def nbest_scores(scores: Sequence[Float[Tensor, "_ F"]], counts: Sequence[Float[Tensor, "_ S"]]) -> NBestScores:
    """Lists of different lengths as one padded table; scores must be finite."""
    for number, rows in enumerate(scores):
        if not bool(rows.isfinite().all()):
            raise ValueError(
                f"List {number} has a score that is not finite, so its weight cannot be tuned. Nothing was tuned; correct the "
                f"scores (an energy of +inf forbids a candidate: leave that candidate out)."
            )
    length = max(map(len, scores))

    def padded(rows: Tensor) -> Tensor:
        return torch.cat([rows.double(), rows[:1].double().expand(length - len(rows), -1)])

    return NBestScores(torch.stack([padded(rows) for rows in scores]), torch.stack([padded(rows) for rows in counts]))


def tune_weights(
    lists: NBestScores, metric: TextMetric, *, start: Float[Tensor, "F"], restarts: int = 8, rng: Rng
) -> Float[Tensor, "F"]:
    """Weights, scaled to make the first one 1, -1 or 0, with the best metric of their choices; never worse than `start`."""
    spread = (lists.scores - lists.scores.mean(1, keepdim=True)).square().mean((0, 1)).sqrt()  # within lists
    spread = torch.where(spread > 0, spread, 1.0)
    scaled = NBestScores(lists.scores / spread, lists.counts)
    starts = [start.double() * spread, *_random(rng.stream("starts"), restarts, len(start))]
    best, best_loss = starts[0], torch.inf
    for number, weights in enumerate(starts):
        weights, loss = _descend(scaled, metric, weights, rng.stream("start", number))
        if loss < best_loss:
            best, best_loss = weights, loss
    weights = best / spread
    first = weights[0].abs()
    return weights / (first if float(first) > 0 else weights.abs().max().clamp(min=1e-300))


def _descend(lists: NBestScores, metric: TextMetric, weights: Tensor, rng: Rng) -> tuple[Float[Tensor, "F"], float]:
    """Line searches until none improves the metric."""
    features, loss = len(weights), _loss(lists, metric, weights)
    for sweep in range(MAX_SWEEPS):
        before = loss
        for direction in [*torch.eye(features, dtype=torch.float64), *_random(rng.stream(sweep), 2 * features, features)]:
            moved = weights + best_step(lists, metric, weights, direction) * direction
            moved_loss = _loss(lists, metric, moved)
            if moved_loss < loss:
                weights, loss = moved / moved.abs().max(), moved_loss
        if loss == before:
            break
    return weights, loss


def best_step(lists: NBestScores, metric: TextMetric, weights: Float[Tensor, "F"], direction: Float[Tensor, "F"]) -> float:
    """The middle of the best interval of the line weights + step * direction, the widest of ties."""
    corner, change, first = _envelopes(lists.scores @ weights, lists.scores @ direction, lists.counts)
    if len(corner) == 0:
        return 0.0
    corner, order = corner.sort()
    sums = torch.cat([first[None], first + change[order].cumsum(0)])
    left = torch.cat([corner[:1] - 2, corner])
    right = torch.cat([corner, corner[-1:] + 2])
    loss = -metric.sign * metric.value(sums)
    wide = right - left > MIN_WIDTH * (1 + left.abs())
    loss = torch.where(wide, loss, torch.inf)
    widths = torch.where(loss == loss.min(), right - left, -torch.inf)
    place = int(widths.argmax())
    return float((left[place] + right[place]) / 2)


def _envelopes(
    height: Float[Tensor, "L N"], slope: Float[Tensor, "L N"], counts: Float[Tensor, "L N S"]
) -> tuple[Float[Tensor, "K"], Float[Tensor, "K S"], Float[Tensor, "S"]]:
    """Corners of the upper envelopes of all lists, the change of the summed counts at each, and the sums before the first."""
    rows = torch.arange(len(height))
    lowest = slope == slope.amin(-1, keepdim=True)
    now = torch.where(lowest, height, -torch.inf).argmax(-1)
    first = counts[rows, now].sum(0)
    corners, changes = [], []
    while True:  # all lists together, from the far left of the line, each from corner to corner
        faster = slope - slope[rows, now][:, None]
        behind = height[rows, now][:, None] - height
        meets = torch.where(faster > 0, behind / faster, torch.inf)
        at = meets.amin(-1)
        turning = at.isfinite()
        if not bool(turning.any()):
            break
        steepest = torch.where(meets == at[:, None], slope, -torch.inf).argmax(-1)
        then = torch.where(turning, steepest, now)
        corners.append(at[turning])
        changes.append((counts[rows, then] - counts[rows, now])[turning])
        now = then
    if not corners:
        return height.new_zeros(0), counts.new_zeros(0, counts.shape[-1]), first
    return torch.cat(corners), torch.cat(changes), first


def _loss(lists: NBestScores, metric: TextMetric, weights: Float[Tensor, "F"]) -> float:
    return float(-metric.sign * metric.value(lists.counts_of(lists.chosen(weights)).sum(0)))


def _random(rng: Rng, count: int, features: int) -> Float[Tensor, "{count} {features}"]:
    """Random vectors with coordinates between -1 and 1."""
    drawn = rng.categorical(torch.zeros(max(count, 1), GRID, dtype=torch.float64), features)[:count]
    return (2 * drawn.double() + 1) / GRID - 1
