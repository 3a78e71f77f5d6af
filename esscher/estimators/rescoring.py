"""Choosing among candidates by a weighted sum of scores, with weights that are best for a corpus metric.

    chosen candidate of a list = argmax over its candidates of sum_f weight_f score_f

The metric of the chosen candidates is a piecewise constant function of the weights, so it is not descended but searched:
along a line in the space of weights every candidate's sum is a straight line, the best of a list is their upper envelope,
and merging the corners of all envelopes gives the metric exactly everywhere on the line (Och, Minimum error rate
training, 2003). Lines along each weight and along random directions are followed until none helps, from several starts.

Left out: a penalty on weights. A few weights and some hundred lists need none; a hundred weights would.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.estimators.text_metrics import TextMetric
from esscher.randomness import Rng

SWEEPS = 20  # over all directions, at most; a few are enough
FINENESS = 4096  # of random directions
NARROW = 1e-9  # intervals of the line that are narrower are corners told twice


@dataclass(frozen=True)
class ListScores:
    """Scores and the metric's counts of the candidates of many lists; shorter lists repeat their first candidate."""

    scores: Float[Tensor, "L N F"]
    counts: Float[Tensor, "L N S"]

    def chosen(self, weights: Float[Tensor, "F"]) -> Int[Tensor, "L"]:
        """The candidate with the highest sum in each list, the first of equals."""
        return (self.scores @ weights).argmax(-1)

    def counts_of(self, chosen: Int[Tensor, "L"]) -> Float[Tensor, "L S"]:
        """The counts of one candidate of each list."""
        return self.counts[torch.arange(len(chosen)), chosen]

    def nearest(self, metric: TextMetric) -> Int[Tensor, "L"]:
        """The candidate of each list that is best by itself, judged by its references; no choice has fewer word errors."""
        return (metric.sign * metric.value(self.counts)).argmax(-1)


def list_scores(scores: Sequence[Float[Tensor, "_ F"]], counts: Sequence[Float[Tensor, "_ S"]]) -> ListScores:
    """Lists of different lengths as one table; scores that are not finite are an error."""
    for number, one in enumerate(scores):
        if not bool(one.isfinite().all()):
            raise ValueError(
                f"List {number} has a score that is not a finite number, so no weight can be found for it. Nothing was tuned; "
                f"mend the scores (an energy of +inf forbids a candidate: leave that candidate out)."
            )
    longest = max(len(one) for one in scores)

    def filled(rows: Tensor) -> Tensor:
        return torch.cat([rows.double(), rows[:1].double().expand(longest - len(rows), -1)])

    return ListScores(torch.stack([filled(one) for one in scores]), torch.stack([filled(one) for one in counts]))


def tune_weights(
    lists: ListScores, metric: TextMetric, *, start: Float[Tensor, "F"], restarts: int = 8, rng: Rng
) -> Float[Tensor, "F"]:
    """Weights whose choices have the best metric that was found, never worse than `start`; the first weight is 1, -1 or 0.

    The metric does not see a common factor of all weights, so the first is scaled away.
    """
    spread = _spread(lists.scores)
    scaled = ListScores(lists.scores / spread, lists.counts)
    features = len(start)
    starts = [start.double() * spread, *_random(rng.stream("starts"), restarts, features)]
    best, best_loss = starts[0], torch.inf
    for number, weights in enumerate(starts):
        weights, loss = _descend(scaled, metric, weights, rng.stream("start", number))
        if loss < best_loss:
            best, best_loss = weights, loss
    weights = best / spread
    first = weights[0].abs()
    return weights / (first if float(first) > 0 else weights.abs().max().clamp(min=1e-300))


def _descend(lists: ListScores, metric: TextMetric, weights: Tensor, rng: Rng) -> tuple[Float[Tensor, "F"], float]:
    """Line after line while one of them helps."""
    features, loss = len(weights), _loss(lists, metric, weights)
    for sweep in range(SWEEPS):
        before = loss
        for direction in [*torch.eye(features, dtype=torch.float64), *_random(rng.stream(sweep), 2 * features, features)]:
            moved = weights + best_step(lists, metric, weights, direction) * direction
            found = _loss(lists, metric, moved)
            if found < loss:
                weights, loss = moved / moved.abs().max(), found
        if loss == before:
            break
    return weights, loss


def best_step(lists: ListScores, metric: TextMetric, weights: Float[Tensor, "F"], direction: Float[Tensor, "F"]) -> float:
    """The middle of the best stretch of the line weights + step * direction, the widest of equals."""
    corner, change, first = _envelopes(lists.scores @ weights, lists.scores @ direction, lists.counts)
    if len(corner) == 0:
        return 0.0
    corner, order = corner.sort()
    sums = torch.cat([first[None], first + change[order].cumsum(0)])
    left = torch.cat([corner[:1] - 2, corner])
    right = torch.cat([corner, corner[-1:] + 2])
    loss = -metric.sign * metric.value(sums)
    wide = right - left > NARROW * (1 + left.abs())
    loss = torch.where(wide, loss, torch.inf)
    widths = torch.where(loss == loss.min(), right - left, -torch.inf)
    place = int(widths.argmax())
    return float((left[place] + right[place]) / 2)


def _envelopes(
    height: Float[Tensor, "L N"], slope: Float[Tensor, "L N"], counts: Float[Tensor, "L N S"]
) -> tuple[Float[Tensor, "K"], Float[Tensor, "K S"], Float[Tensor, "S"]]:
    """Corners of the upper envelopes of all lists, the change of the summed counts at each, and the sums before the first.

    All lists go along the line together, from its far left, each to its own next corner.
    """
    rows = torch.arange(len(height))
    lowest = slope == slope.amin(-1, keepdim=True)
    now = torch.where(lowest, height, -torch.inf).argmax(-1)
    first = counts[rows, now].sum(0)
    corners, changes = [], []
    while True:
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


def _loss(lists: ListScores, metric: TextMetric, weights: Float[Tensor, "F"]) -> float:
    return float(-metric.sign * metric.value(lists.counts_of(lists.chosen(weights)).sum(0)))


def _spread(scores: Float[Tensor, "L N F"]) -> Float[Tensor, "F"]:
    """How much each score differs within a list; 1 for one that never does."""
    spread = (scores - scores.mean(1, keepdim=True)).square().mean((0, 1)).sqrt()
    return torch.where(spread > 0, spread, 1.0)


def _random(rng: Rng, count: int, features: int) -> Float[Tensor, "{count} {features}"]:
    """Directions between -1 and 1 in each weight."""
    drawn = rng.categorical(torch.zeros(max(count, 1), FINENESS, dtype=torch.float64), features)[:count]
    return (2 * drawn.double() + 1) / FINENESS - 1
