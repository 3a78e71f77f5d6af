"""Weights by stochastic gradient, as in the paper on global autoregressive models (Parshakova et al., 2019).

The gradient of the likelihood is the wanted moments minus the model's, which are estimated anew before every update:

    rs      from `ACCEPTED_PER_UPDATE` draws of the base, accepted with probability exp <weights, features> / beta
    snis    from the last `BUFFER_SIZE` draws of the base, weighted by exp <weights, features>, with new ones for each update

The step size is rate / (1 + epoch), with `updates` updates per epoch, for features scaled to range 1. A run ends when the l1
distance of moments has not fallen by 1 % for `patience` epochs; the weights are the average over the last half of the epochs.
Intervals are those of Newton's method on the last `BUFFER_SIZE` draws, widened to contain the weights. For comparison only:
`esscher.objectives.moment_matching` needs fewer draws and no settings.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.draws import ess
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, empty_prompts
from esscher.core.target import Base
from esscher.energies.features import Feature, feature_values
from esscher.objectives.moment_matching import FitStep, FitWarning, MomentFit, match_moments
from esscher.objectives.moment_solver import MomentTargets, check_feature_values, moment_targets, weighted_features
from esscher.samplers.ancestral import draw

FeatureSampler = Callable[[int], Tensor]
"""Features [n, F] of n new draws of the base."""
MIN_IMPROVEMENT = 0.99  # an l1 distance is an improvement if it is below this share of the least so far
MIN_BATCH, MAX_BATCH = 1000, 2**16  # draws per call of the sampler
ACCEPTED_PER_UPDATE = 10  # rs
FRESH_PER_UPDATE = 100  # snis: new draws of the base
BUFFER_SIZE = 50_000  # draws


def base_feature_sampler(
    base: Base, features: Sequence[Feature], *, prompt: Sequences | None = None, rng: Rng
) -> FeatureSampler:
    """Features of fresh draws of a base after a prompt, by default the empty one."""
    prompt = empty_prompts(1) if prompt is None else prompt
    return lambda count: feature_values(features, draw(base, prompt, count, rng=rng)[0])


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
            raise ValueError(f"Unknown regime {self.regime!r}; the known ones are rs, snis.")
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
        report: Callable[[float], None] = lambda epochs: None,
    ) -> MomentFit:
        """Weights under which the base has the moments of the data, or those `wanted`, as in `match_moments`. `bounds` are the
        least and greatest value of features, for rs; a draw beyond them is an error. Without them the values seen so far are
        used, and an update with a draw beyond these is repeated with wider ones. `report` is called with the epochs done."""
        targets = moment_targets(names, data, wanted, prior=prior)
        buffer = _DrawBuffer(targets.names, source, self.budget)
        buffer.ensure(MIN_BATCH)
        ranges = _FeatureRanges(targets.names, bounds or {}, buffer.recent())
        descent = _Descent(self, targets, buffer, ranges, rng)
        while len(descent.history) < self.epochs and descent.epochs_without_improvement < self.patience:
            descent.run_epoch()
            report(len(descent.history))
        newton = match_moments(targets.names, buffer.recent(), data, wanted=wanted, prior=prior, confidence=confidence)
        return descent.result(newton)


class _DrawBuffer:
    """Draws of the base in order: a queue of unused ones, and the most recent ones."""

    def __init__(self, names: tuple[str, ...], source: FeatureSampler, budget: int):
        self.names, self.source, self.budget = names, source, budget
        self.unused = torch.zeros(0, len(names), dtype=torch.float64)
        self.recent_batches: deque[Tensor] = deque()
        self.drawn = 0

    def ensure(self, count: int) -> None:
        """Draw until there are at least `count` unused draws."""
        missing = count - len(self.unused)
        if missing <= 0:
            return
        if self.drawn + missing > self.budget:
            raise RuntimeError(
                f"The fit used {self.drawn:,} draws of the base and needs {missing:,} more, above its budget of "
                f"{self.budget:,}. The weights so far were dropped; raise `budget`, tilt less, or use match_moments, which "
                f"needs no accepted draws."
            )
        new = self.source(min(max(missing, MIN_BATCH), MAX_BATCH)).cpu().double()
        check_feature_values("base's draws", self.names, new)
        self.drawn += len(new)
        self.recent_batches.append(new)
        batches = self.recent_batches
        while len(batches) > 1 and sum(map(len, batches)) - len(batches[0]) >= BUFFER_SIZE:
            batches.popleft()
        self.unused = torch.cat([self.unused, new])

    def recent(self) -> Float[Tensor, "n F"]:
        """The most recent draws, used or not."""
        return torch.cat(list(self.recent_batches))[-BUFFER_SIZE:]


class _FeatureRanges:
    """The range of each feature, as stated or as seen so far."""

    def __init__(self, names: tuple[str, ...], bounds: Mapping[str, tuple[float, float]], seen: Float[Tensor, "n F"]):
        unknown = sorted(set(bounds) - set(names))
        if unknown:
            raise ValueError(f"No feature named {unknown[0]!r} to bound. The features are {', '.join(names)}.")
        self.names, self.is_stated = names, torch.tensor([name in bounds for name in names])
        ends = seen.amin(0).tolist(), seen.amax(0).tolist()
        ranges = [bounds.get(name, (low, high)) for name, low, high in zip(names, *ends, strict=True)]
        self.low, self.high = torch.tensor(ranges, dtype=torch.float64).T
        self.extensions = 0
        self.extend(seen)  # refuses stated bounds that the draws exceed

    @property
    def width(self) -> Float[Tensor, "F"]:
        """The width of each range; 1 for a constant feature."""
        return torch.where(self.high > self.low, self.high - self.low, 1.0)

    def log_bound(self, weights: Float[Tensor, "F"]) -> float:
        """The greatest <weights, features> within the ranges."""
        return float(torch.maximum(weights * self.low, weights * self.high).sum())

    def extend(self, rows: Float[Tensor, "n F"]) -> bool:
        """Extend the ranges to contain the rows; returns whether that was needed. A row beyond a stated bound is an error."""
        low, high = rows.amin(0), rows.amax(0)
        beyond = (low < self.low) | (high > self.high)
        if not bool(beyond.any()):
            return False
        for k in (beyond & self.is_stated).nonzero()[:, 0].tolist():
            raise ValueError(
                f"Feature {self.names[k]!r} was said to lie between {float(self.low[k]):.4g} and {float(self.high[k]):.4g}, "
                f"and a draw has {float(low[k] if low[k] < self.low[k] else high[k]):.4g}: draws accepted so far are biased. "
                f"The weights were dropped; give true bounds, or use the regime snis, which needs none."
            )
        self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)
        self.extensions += 1
        return True


class _Descent:
    """The weights during the descent."""

    def __init__(self, config: MomentDescent, targets: MomentTargets, buffer: _DrawBuffer, ranges: _FeatureRanges, rng: Rng):
        self.config, self.targets, self.buffer, self.ranges, self.rng = config, targets, buffer, ranges, rng
        self.weights = torch.zeros(len(targets.names), dtype=torch.float64)
        self.history: list[FitStep] = []
        self.epoch_weights: list[Tensor] = []  # the mean of the weights in each epoch
        self.epochs_without_improvement = 0
        self.acceptance = 1.0  # of the last draws offered; rs only

    def run_epoch(self) -> None:
        """Some updates at one step size; records the l1 distance of their mean moments from the wanted ones."""
        rate, before, updates = self.config.rate / (1 + len(self.history)), self.weights, self.config.updates
        mean_moments, mean_weights = torch.zeros_like(before), torch.zeros_like(before)
        wanted = self.targets.wanted(self.buffer.recent().mean(0))
        for _ in range(updates):
            moments = self._accepted_moments() if self.config.regime == "rs" else self._weighted_moments()
            mean_moments = mean_moments + moments / updates
            mean_weights = mean_weights + self.weights / updates
            self.weights = self.weights - rate * (moments - wanted) / self.ranges.width**2
        l1 = float((mean_moments - wanted).abs().sum())
        improved = all(l1 < MIN_IMPROVEMENT * earlier.l1 for earlier in self.history)
        self.epochs_without_improvement = 0 if improved else self.epochs_without_improvement + 1
        self.history.append(FitStep(len(self.history), l1, tuple(before.tolist()), self.buffer.drawn))
        self.epoch_weights.append(mean_weights)

    def _accepted_moments(self) -> Float[Tensor, "F"]:
        """Moments of the next accepted draws; the draws after the last accepted one are left for the next update."""
        missing, offered = ACCEPTED_PER_UPDATE, 0
        accepted: list[Tensor] = []
        while missing > 0:
            chunk = min(max(32, math.ceil(1.2 * missing / self.acceptance)), MAX_BATCH)
            self.buffer.ensure(chunk)
            rows = self.buffer.unused[:chunk]
            if self.ranges.extend(rows):
                missing, accepted = ACCEPTED_PER_UPDATE, []
            log_probability = rows @ self.weights - self.ranges.log_bound(self.weights)
            chosen = self.rng.bernoulli(log_probability).nonzero()[:missing, 0]
            accepted.append(rows[chosen])
            missing -= len(chosen)
            used = len(rows) if missing > 0 else int(chosen[-1]) + 1
            self.buffer.unused = self.buffer.unused[used:]
            offered += used
            self.acceptance = (ACCEPTED_PER_UPDATE - missing + 0.5) / (offered + 1)
        return torch.cat(accepted).mean(0)

    def _weighted_moments(self) -> Float[Tensor, "F"]:
        """Weighted moments of the buffer, after some new draws."""
        self.buffer.ensure(FRESH_PER_UPDATE)
        self.buffer.unused = self.buffer.unused[FRESH_PER_UPDATE:]
        rows = self.buffer.recent()
        self.ranges.extend(rows[-FRESH_PER_UPDATE:])
        return torch.softmax(rows @ self.weights, 0) @ rows

    def result(self, newton: MomentFit) -> MomentFit:
        """The fit of Newton's method on the last draws, with the weights and moments of this descent."""
        mean_weights = torch.stack(self.epoch_weights[len(self.epoch_weights) // 2 :]).mean(0)
        sample = weighted_features(self.targets.names, self.buffer.recent(), None)
        share = sample.tilted(mean_weights)
        method = f"{self.config.regime}, {self.buffer.drawn:,} base draws; interval by Newton, widened to the value"
        weights = tuple(
            replace(
                weight, value=value, low=min(weight.low, value), high=max(weight.high, value), method=method, n=weight.n or 1
            )
            for weight, value in zip(newton.weights, mean_weights.tolist(), strict=True)
        )
        advice = (
            f"a draw was beyond the seen range of its feature {self.ranges.extensions} times: updates before that accepted "
            f"draws by too low a bound; state `bounds`, or use snis"
        )
        raised = self.ranges.extensions > 0 and self.config.regime == "rs"
        return replace(
            newton,
            weights=weights,
            moments_model=tuple((share @ sample.base).tolist()),
            ess=float(ess(share)),
            iterations=len(self.history) * self.config.updates,
            base_samples=self.buffer.drawn,
            warnings=(*newton.warnings, *([FitWarning("bound raised", (), advice)] if raised else [])),
            history=tuple(self.history),
        )
