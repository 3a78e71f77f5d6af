"""Weights by stochastic gradient, as in the paper on global autoregressive models (Parshakova et al., 2019).

The gradient of the likelihood is the wanted moments minus the model's; the model's are estimated anew before every
update, in one of two regimes:

    rs      from draws of the base accepted with probability exp <weights, features> / beta: `ACCEPTED` of them
    snis    from the last `BUFFER` draws of the base, weighed by exp <weights, features>; `FRESH` new ones an update

The rate is rate / (1 + epoch), an epoch being `updates` updates, for features of range 1: others are brought to it.
Draws do not depend on the weights, so they come in large batches, and no draw is offered twice. A run ends when an
epoch's l1 distance of moments has not fallen (by a hundredth) for `patience` epochs; the weights are the average over the
last half of the epochs. The interval is the one that Newton's method has on the last `BUFFER` draws, widened to hold the
weights found. `esscher.objectives.moment_match` gets there with fewer draws and no settings; this is for comparison.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.energies.features import Feature, values
from esscher.estimate import Estimate
from esscher.objectives.moment_fit import FitStep, FitWarning, MomentFit
from esscher.objectives.moment_goal import Goal, check_values, goal_of
from esscher.objectives.moment_match import match_moments, sample_of
from esscher.randomness import Rng
from esscher.samplers.ancestral import draw
from esscher.space import empty_prompts
from esscher.target import Base

Source = Callable[[int], Tensor]
"""Features [n, F] of so many new draws of the base."""
FELL = 0.99  # of the least so far: a new least l1 distance is at most this
SMALLEST_BATCH, LARGEST_BATCH = 1000, 2**16  # draws asked of a source at once
ACCEPTED = 10  # rs: draws that an update's moments are the mean of
FRESH = 100  # snis: new draws of the base for each update
BUFFER = 50_000  # last draws of the base that are kept


def base_source(base: Base, features: Sequence[Feature], *, rng: Rng) -> Source:
    """Features of fresh draws of a base, without a prompt."""
    return lambda count: values(features, draw(base, empty_prompts(1), count, rng=rng)[0])


@dataclass(frozen=True)
class MomentDescent:
    """Settings of a run; calling it fits."""

    regime: str = "snis"  # or rs
    rate: float = 10.0
    updates: int = 10  # of one epoch
    epochs: int = 200  # at most
    patience: int = 20  # epochs without a new least l1 distance
    budget: int = 10_000_000  # draws of the base before giving up

    def __post_init__(self) -> None:
        if self.regime not in ("rs", "snis"):
            raise ValueError(f"No regime named {self.regime!r}. Choose from: rs, snis.")
        for name in ("rate", "updates", "epochs", "patience", "budget"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is more than 0, not {getattr(self, name)}.")

    def __call__(
        self,
        names: Sequence[str],
        source: Source,
        data: Float[Tensor, "M F"] | None = None,
        *,
        wanted: Mapping[str, float] | None = None,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        prior: float = 0.5,
        level: float = 0.95,
        rng: Rng,
    ) -> MomentFit:
        """Weights under which the base has the moments of the data, or those `wanted`, as in `match_moments`.

        `bounds` are the least and greatest value of a feature, which rs needs: a draw beyond them is an error. Without
        them those seen so far are used, and where a draw goes beyond, the update is made anew with wider ones.
        """
        goal = goal_of(names, data, wanted, prior=prior)
        stream = _Stream(goal.names, source, self.budget)
        stream.ensure(SMALLEST_BATCH)
        walk = _Walk(self, goal, stream, _Box(goal.names, bounds or {}, stream.recent()), rng)
        while not walk.over():
            walk.epoch()
        exact = match_moments(goal.names, stream.recent(), data, wanted=wanted, prior=prior, level=level)
        return walk.described(exact)


class _Stream:
    """Draws of the base in the order they came: a queue of those not yet offered, and the last ones of all."""

    def __init__(self, names: tuple[str, ...], source: Source, budget: int):
        self.names, self.source, self.budget = names, source, budget
        self.waiting = torch.zeros(0, len(names), dtype=torch.float64)
        self.kept: deque[Tensor] = deque()
        self.drawn = 0

    def ensure(self, count: int) -> None:
        """Have at least so many draws waiting."""
        missing = count - len(self.waiting)
        if missing <= 0:
            return
        if self.drawn + missing > self.budget:
            raise RuntimeError(
                f"The fit used {self.drawn:,} draws of the base and wants {missing:,} more, above its budget of "
                f"{self.budget:,}. The weights so far were dropped; raise `budget`, tilt less, or use match_moments, which "
                f"needs no accepted draws."
            )
        new = self.source(min(max(missing, SMALLEST_BATCH), LARGEST_BATCH)).double().cpu()
        check_values("base's draws", self.names, new)
        self.drawn += len(new)
        self.kept.append(new)
        while len(self.kept) > 1 and sum(map(len, self.kept)) - len(self.kept[0]) >= BUFFER:
            self.kept.popleft()
        self.waiting = torch.cat([self.waiting, new])

    def pass_by(self, count: int) -> None:
        """The first waiting draws were offered, and are not offered again."""
        self.waiting = self.waiting[count:]

    def recent(self) -> Float[Tensor, "n F"]:
        """The last draws of all, offered or not."""
        return torch.cat(list(self.kept))[-BUFFER:]


class _Box:
    """The range of each feature: stated, or as seen so far."""

    def __init__(self, names: tuple[str, ...], bounds: Mapping[str, tuple[float, float]], seen: Float[Tensor, "n F"]):
        unknown = sorted(set(bounds) - set(names))
        if unknown:
            raise ValueError(f"No feature named {unknown[0]!r} to bound. The features are {', '.join(names)}.")
        self.names, self.stated = names, torch.tensor([name in bounds for name in names])
        ends = seen.amin(0).tolist(), seen.amax(0).tolist()
        ranges = [bounds.get(name, (low, high)) for name, low, high in zip(names, *ends, strict=True)]
        self.low, self.high = torch.tensor(ranges, dtype=torch.float64).T
        self.raised = 0
        self.widened(seen)  # refuses stated bounds that are none

    @property
    def width(self) -> Float[Tensor, "F"]:
        """How far each feature ranges, 1 where it never varied."""
        return torch.where(self.high > self.low, self.high - self.low, 1.0)

    def log_bound(self, weights: Float[Tensor, "F"]) -> float:
        """The greatest <weights, features> inside the box."""
        return float(torch.maximum(weights * self.low, weights * self.high).sum())

    def widened(self, rows: Float[Tensor, "n F"]) -> bool:
        """Whether the rows went beyond the box, which then holds them; beyond a stated bound is an error."""
        low, high = rows.amin(0), rows.amax(0)
        beyond = (low < self.low) | (high > self.high)
        if not bool(beyond.any()):
            return False
        for k in (beyond & self.stated).nonzero()[:, 0].tolist():
            raise ValueError(
                f"Feature {self.names[k]!r} was said to lie between {float(self.low[k]):.4g} and {float(self.high[k]):.4g}, "
                f"and a draw has {float(low[k] if low[k] < self.low[k] else high[k]):.4g}: draws accepted so far are biased. "
                f"The weights were dropped; give true bounds, or use the regime snis, which needs none."
            )
        self.low, self.high, self.raised = torch.minimum(self.low, low), torch.maximum(self.high, high), self.raised + 1
        return True


class _Walk:
    """The weights on their way, epoch by epoch."""

    def __init__(self, settings: MomentDescent, goal: Goal, stream: _Stream, box: _Box, rng: Rng):
        self.settings, self.goal, self.stream, self.box, self.rng = settings, goal, stream, box, rng
        self.weights = torch.zeros(len(goal.names), dtype=torch.float64)
        self.history: list[FitStep] = []
        self.means: list[Tensor] = []  # of the weights in each epoch
        self.waited = 0
        self.acceptance = 1.0  # of the last draws offered; rs only

    def over(self) -> bool:
        return len(self.history) >= self.settings.epochs or self.waited >= self.settings.patience

    def epoch(self) -> None:
        """Some updates at one rate, and their mean moments compared with the wanted ones."""
        rate, before = self.settings.rate / (1 + len(self.history)), self.weights
        found, weights = torch.zeros_like(before), torch.zeros_like(before)
        wanted = self.goal.wanted(self.stream.recent().mean(0))
        for _ in range(self.settings.updates):
            model = self._accepted() if self.settings.regime == "rs" else self._weighed()
            found, weights = found + model / self.settings.updates, weights + self.weights / self.settings.updates
            self.weights = self.weights - rate * (model - wanted) / self.box.width**2
        l1 = float((found - wanted).abs().sum())
        self.waited = 0 if all(l1 < FELL * one.l1 for one in self.history) else self.waited + 1
        self.history.append(FitStep(len(self.history), l1, tuple(before.tolist()), self.stream.drawn))
        self.means.append(weights)

    def _accepted(self) -> Float[Tensor, "F"]:
        """Moments of the next accepted draws; draws after the last accepted one stay for the next update."""
        missing, seen = ACCEPTED, 0
        kept: list[Tensor] = []
        while missing > 0:
            chunk = min(max(32, math.ceil(1.2 * missing / self.acceptance)), LARGEST_BATCH)
            self.stream.ensure(chunk)
            rows = self.stream.waiting[:chunk]
            if self.box.widened(rows):
                missing, kept = ACCEPTED, []
            yes = self.rng.accept(rows @ self.weights - self.box.log_bound(self.weights)).nonzero()[:missing, 0]
            kept.append(rows[yes])
            missing -= len(yes)
            used = len(rows) if missing > 0 else int(yes[-1]) + 1
            self.stream.pass_by(used)
            seen += used
            self.acceptance = (ACCEPTED - missing + 0.5) / (seen + 1)
        return torch.cat(kept).mean(0)

    def _weighed(self) -> Float[Tensor, "F"]:
        """Moments of the buffer under the weights, after some fresh draws."""
        self.stream.ensure(FRESH)
        self.stream.pass_by(FRESH)
        rows = self.stream.recent()
        self.box.widened(rows[-FRESH:])
        return torch.softmax(rows @ self.weights, 0) @ rows

    def described(self, exact: MomentFit) -> MomentFit:
        """The record of the run: Newton's on the last draws, with this run's weights and what the draws say of them."""
        found = torch.stack(self.means[len(self.means) // 2 :]).mean(0)
        sample = sample_of(self.goal.names, self.stream.recent(), None)
        share = sample.tilted(found)
        regime = f"{self.settings.regime}, {self.stream.drawn:,} base draws; interval by Newton, widened to the value"
        weights = tuple(_widened(one, value, regime) for one, value in zip(exact.weights, found.tolist(), strict=True))
        raised = FitWarning(
            "bound raised",
            (),
            f"a draw went beyond the seen range of its feature {self.box.raised} times: updates before that accepted draws by "
            f"too low a bound; state `bounds`, or use snis",
        )
        return replace(
            exact,
            weights=weights,
            moments_model=tuple((share @ sample.base).tolist()),
            effective=float(1 / (share**2).sum()),
            iterations=len(self.history) * self.settings.updates,
            base_samples=self.stream.drawn,
            warnings=(*exact.warnings, *([raised] if self.box.raised and self.settings.regime == "rs" else [])),
            history=tuple(self.history),
        )


def _widened(newton: Estimate, value: float, method: str) -> Estimate:
    return replace(
        newton, value=value, low=min(newton.low, value), high=max(newton.high, value), method=method, draws=newton.draws or 1
    )
