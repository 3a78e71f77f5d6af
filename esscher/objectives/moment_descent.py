"""Weights by stochastic gradient, as in the paper on global autoregressive models (Parshakova et al., 2019).

The gradient of the likelihood is the wanted moments minus the model's; the model's are estimated anew before every
update, in one of two regimes:

    rs      from `ACCEPTED_PER_UPDATE` draws of the base, accepted with probability exp <weights, features> / beta
    snis    from the last `BUFFER_SIZE` draws of the base, weighted by exp <weights, features>, with new ones for each update

The step size is rate / (1 + epoch), with `updates` updates per epoch, for features scaled to range 1. Draws do not depend on
the weights, so they come in large batches, and each is used once. A run ends when the l1 distance of moments has not fallen by
1 % for `patience` epochs; the weights are the average over the last half of the epochs. Intervals are those of Newton's method
on the last `BUFFER_SIZE` draws, widened to contain the weights. `esscher.objectives.moment_matching` needs fewer draws and no
settings; this is for comparison.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.draws import ess
from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng
from esscher.core.space import empty_prompts
from esscher.core.target import Base
from esscher.energies.features import Feature, feature_values
from esscher.objectives.moment_matching import FitStep, FitWarning, MomentFit, match_moments, weighted_features
from esscher.objectives.moment_solver import MomentTargets, check_feature_values, moment_targets
from esscher.samplers.ancestral import draw

FeatureSampler = Callable[[int], Tensor]
"""Features [n, F] of n new draws of the base."""
MIN_IMPROVEMENT = 0.99  # an l1 distance is an improvement if it is below this share of the least so far
MIN_BATCH, MAX_BATCH = 1000, 2**16  # draws per call of the source
ACCEPTED_PER_UPDATE = 10  # rs
FRESH_PER_UPDATE = 100  # snis: new draws of the base
BUFFER_SIZE = 50_000  # draws


def base_feature_sampler(base: Base, features: Sequence[Feature], *, rng: Rng) -> FeatureSampler:
    """Features of fresh draws of a base, without a prompt."""
    return lambda count: feature_values(features, draw(base, empty_prompts(1), count, rng=rng)[0])


@dataclass(frozen=True)
class MomentDescent:
    """Settings of a fit; call it to fit weights."""

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
        source: FeatureSampler,
        data: Float[Tensor, "M F"] | None = None,
        *,
        wanted: Mapping[str, float] | None = None,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        prior: float = 0.5,
        confidence: float = 0.95,
        rng: Rng,
    ) -> MomentFit:
        """Weights under which the base has the moments of the data, or those `wanted`, as in `match_moments`.

        `bounds` are the least and greatest value of features, for rs; a draw beyond them is an error. Without them the values
        seen so far are used, and an update with a draw beyond these is repeated with wider ones.
        """
        goal = moment_targets(names, data, wanted, prior=prior)
        stream = _DrawBuffer(goal.names, source, self.budget)
        stream.ensure(MIN_BATCH)
        walk = _Descent(self, goal, stream, _FeatureBounds(goal.names, bounds or {}, stream.recent()), rng)
        while not walk.is_done():
            walk.epoch()
        exact = match_moments(goal.names, stream.recent(), data, wanted=wanted, prior=prior, confidence=confidence)
        return walk.described(exact)


class _DrawBuffer:
    """Draws of the base in order: a queue of unused ones, and the most recent ones."""

    def __init__(self, names: tuple[str, ...], source: FeatureSampler, budget: int):
        self.names, self.source, self.budget = names, source, budget
        self.waiting = torch.zeros(0, len(names), dtype=torch.float64)
        self.recent_batches: deque[Tensor] = deque()
        self.drawn = 0

    def ensure(self, count: int) -> None:
        """Draw until at least `count` unused draws are waiting."""
        missing = count - len(self.waiting)
        if missing <= 0:
            return
        if self.drawn + missing > self.budget:
            raise RuntimeError(
                f"The fit used {self.drawn:,} draws of the base and wants {missing:,} more, above its budget of "
                f"{self.budget:,}. The weights so far were dropped; raise `budget`, tilt less, or use match_moments, which "
                f"needs no accepted draws."
            )
        new = self.source(min(max(missing, MIN_BATCH), MAX_BATCH)).double().cpu()
        check_feature_values("base's draws", self.names, new)
        self.drawn += len(new)
        self.recent_batches.append(new)
        batches = self.recent_batches
        while len(batches) > 1 and sum(map(len, batches)) - len(batches[0]) >= BUFFER_SIZE:
            batches.popleft()
        self.waiting = torch.cat([self.waiting, new])

    def discard(self, count: int) -> None:
        """Remove the first waiting draws, which were used."""
        self.waiting = self.waiting[count:]

    def recent(self) -> Float[Tensor, "n F"]:
        """The most recent draws, used or not."""
        return torch.cat(list(self.recent_batches))[-BUFFER_SIZE:]


class _FeatureBounds:
    """The range of each feature, as stated or as seen so far."""

    def __init__(self, names: tuple[str, ...], bounds: Mapping[str, tuple[float, float]], seen: Float[Tensor, "n F"]):
        unknown = sorted(set(bounds) - set(names))
        if unknown:
            raise ValueError(f"No feature named {unknown[0]!r} to bound. The features are {', '.join(names)}.")
        self.names, self.stated = names, torch.tensor([name in bounds for name in names])
        ends = seen.amin(0).tolist(), seen.amax(0).tolist()
        ranges = [bounds.get(name, (low, high)) for name, low, high in zip(names, *ends, strict=True)]
        self.low, self.high = torch.tensor(ranges, dtype=torch.float64).T
        self.raised = 0
        self.widened(seen)  # refuses stated bounds that the draws exceed

    @property
    def width(self) -> Float[Tensor, "F"]:
        """The width of each range; 1 for a constant feature."""
        return torch.where(self.high > self.low, self.high - self.low, 1.0)

    def log_bound(self, weights: Float[Tensor, "F"]) -> float:
        """The greatest <weights, features> within the ranges."""
        return float(torch.maximum(weights * self.low, weights * self.high).sum())

    def widened(self, rows: Float[Tensor, "n F"]) -> bool:
        """Widen the ranges to contain the rows; returns whether that was needed. Beyond a stated bound is an error."""
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


class _Descent:
    """The weights during the descent."""

    def __init__(self, settings: MomentDescent, goal: MomentTargets, stream: _DrawBuffer, box: _FeatureBounds, rng: Rng):
        self.settings, self.goal, self.stream, self.box, self.rng = settings, goal, stream, box, rng
        self.weights = torch.zeros(len(goal.names), dtype=torch.float64)
        self.history: list[FitStep] = []
        self.means: list[Tensor] = []  # of the weights in each epoch
        self.waited = 0
        self.acceptance = 1.0  # of the last draws offered; rs only

    def is_done(self) -> bool:
        return len(self.history) >= self.settings.epochs or self.waited >= self.settings.patience

    def epoch(self) -> None:
        """Some updates at one step size; records the l1 distance of their mean moments from the wanted ones."""
        rate, before = self.settings.rate / (1 + len(self.history)), self.weights
        model_moments, weights = torch.zeros_like(before), torch.zeros_like(before)
        wanted = self.goal.wanted(self.stream.recent().mean(0))
        for _ in range(self.settings.updates):
            model = self._accepted() if self.settings.regime == "rs" else self._weighed()
            model_moments = model_moments + model / self.settings.updates
            weights = weights + self.weights / self.settings.updates
            self.weights = self.weights - rate * (model - wanted) / self.box.width**2
        l1 = float((model_moments - wanted).abs().sum())
        self.waited = 0 if all(l1 < MIN_IMPROVEMENT * earlier.l1 for earlier in self.history) else self.waited + 1
        self.history.append(FitStep(len(self.history), l1, tuple(before.tolist()), self.stream.drawn))
        self.means.append(weights)

    def _accepted(self) -> Float[Tensor, "F"]:
        """Moments of the next accepted draws; the draws after the last accepted one are left for the next update."""
        missing, seen = ACCEPTED_PER_UPDATE, 0
        accepted: list[Tensor] = []
        while missing > 0:
            chunk = min(max(32, math.ceil(1.2 * missing / self.acceptance)), MAX_BATCH)
            self.stream.ensure(chunk)
            rows = self.stream.waiting[:chunk]
            if self.box.widened(rows):
                missing, accepted = ACCEPTED_PER_UPDATE, []
            yes = self.rng.bernoulli(rows @ self.weights - self.box.log_bound(self.weights)).nonzero()[:missing, 0]
            accepted.append(rows[yes])
            missing -= len(yes)
            used = len(rows) if missing > 0 else int(yes[-1]) + 1
            self.stream.discard(used)
            seen += used
            self.acceptance = (ACCEPTED_PER_UPDATE - missing + 0.5) / (seen + 1)
        return torch.cat(accepted).mean(0)

    def _weighed(self) -> Float[Tensor, "F"]:
        """Weighted moments of the buffer, after some new draws."""
        self.stream.ensure(FRESH_PER_UPDATE)
        self.stream.discard(FRESH_PER_UPDATE)
        rows = self.stream.recent()
        self.box.widened(rows[-FRESH_PER_UPDATE:])
        return torch.softmax(rows @ self.weights, 0) @ rows

    def described(self, exact: MomentFit) -> MomentFit:
        """The result: that of Newton's method on the last draws, with the weights and moments of this descent."""
        mean_weights = torch.stack(self.means[len(self.means) // 2 :]).mean(0)
        sample = weighted_features(self.goal.names, self.stream.recent(), None)
        share = sample.tilted(mean_weights)
        regime = f"{self.settings.regime}, {self.stream.drawn:,} base draws; interval by Newton, widened to the value"
        weights = tuple(_widened(one, value, regime) for one, value in zip(exact.weights, mean_weights.tolist(), strict=True))
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
            ess=float(ess(share)),
            iterations=len(self.history) * self.settings.updates,
            base_samples=self.stream.drawn,
            warnings=(*exact.warnings, *([raised] if self.box.raised and self.settings.regime == "rs" else [])),
            history=tuple(self.history),
        )


def _widened(newton: Estimate, value: float, method: str) -> Estimate:
    return replace(
        newton, value=value, low=min(newton.low, value), high=max(newton.high, value), method=method, n=newton.n or 1
    )
