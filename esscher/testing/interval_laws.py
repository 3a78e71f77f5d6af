"""Laws with known truth, to which intervals and verdicts are held: weights of draws, and texts of a test set.

A `WeightLaw` is a distribution of log weights; a draw also has two features: *large*, the log weight is above a threshold, and
*coin*, independent of the weight. A `TextLaw` is a distribution of the length and the nats of a text. `WEIGHT_LAWS` and
`TEXT_LAWS` served to choose the intervals and the verdict of the library (docs/why/intervals.md). `HELD_BACK_WEIGHT_LAWS` and
`HELD_BACK_TEXT_LAWS` were written down on 2026-11-18, before anything was chosen, and looked at once; one of them showed that a
verdict must count draws with a weight. So `SECOND_WEIGHT_LAWS` and `SECOND_TEXT_LAWS` were written down after that, on the same
day at 16:45, before they were tried; nothing was changed after their run.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from numpy.random import Generator

Floats = NDArray[np.float64]
COIN = 0.3  # the probability of the feature that is independent of the weight


@dataclass(frozen=True)
class WeightLaw:
    """A distribution of log weights: of finitely many `values` with `probs`, or a continuous one of scipy (`density`). A draw
    has a weight at all with probability `allowed`; else its log weight is -inf. `large` is the threshold of the feature."""

    large: float
    density: Any = None
    values: tuple[float, ...] = ()
    probs: tuple[float, ...] = ()
    allowed: float = 1.0

    def log_weights(self, rng: "Generator", shape: tuple[int, ...]) -> Floats:
        if self.density is not None:
            drawn = np.asarray(self.density.rvs(size=shape, random_state=rng), dtype=np.float64)
        else:
            drawn = rng.choice(np.array(self.values), size=shape, p=self.probs)
        return drawn if self.allowed == 1 else np.where(rng.random(shape) < self.allowed, drawn, -np.inf)

    @cached_property
    def log_z(self) -> float:
        return math.log(self.allowed * self._mean(lambda t: np.ones_like(t)))

    @cached_property
    def kl(self) -> float:
        """Kullback-Leibler divergence of the weighted law from that of the draws."""
        return self._mean(lambda t: t) * self.allowed / math.exp(self.log_z) - self.log_z

    @cached_property
    def probability_large(self) -> float:
        """The weighted probability of the feature *large*."""
        return min(1.0, self._mean(lambda t: (t > self.large).astype(float)) * self.allowed / math.exp(self.log_z))  # rounding

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The least and the largest log weight, where weights take finitely many values."""
        if self.density is not None:
            return None
        return -math.inf if self.allowed < 1 else min(self.values), max(self.values)

    def _mean(self, function: Callable[[Floats], Floats]) -> float:
        """The mean of weight times a function of the log weight, among draws with a weight."""
        if self.density is None:
            values, probs = np.array(self.values), np.array(self.probs)
            return float((probs * np.exp(values) * function(values)).sum())
        low, high = self.density.support()
        middle = float(self.density.median())
        low, high = max(low, middle - 80), min(high, middle + 600)
        # trapezoids on a fine grid: exp(t) times a density is smooth, and may be far above the median
        grid = np.unique(np.concatenate([np.linspace(low, high, 400_001), np.linspace(low, min(high, middle + 40), 400_001)]))
        with np.errstate(divide="ignore", over="ignore"):
            mass = np.exp(self.density.logpdf(grid) + grid)
        return float(np.trapezoid(np.nan_to_num(mass) * function(grid), grid))


class _MixtureOfNormals:
    """A continuous law for `WeightLaw`: normals with the same deviation."""

    def __init__(self, means: tuple[float, ...], probs: tuple[float, ...], deviation: float):
        self.means, self.probs, self.deviation = np.array(means), np.array(probs), deviation

    def rvs(self, size: tuple[int, ...], random_state: "Generator") -> Floats:
        which = random_state.choice(len(self.means), size=size, p=self.probs)
        return np.asarray(self.means[which] + self.deviation * random_state.standard_normal(size))

    def logpdf(self, t: Floats) -> Floats:
        z = (t[:, None] - self.means) / self.deviation
        return np.log((self.probs * np.exp(-(z**2) / 2)).sum(1) / (self.deviation * math.sqrt(2 * math.pi)))

    def median(self) -> float:
        return float((self.probs * self.means).sum())

    def support(self) -> tuple[float, float]:
        return -math.inf, math.inf


def _log_of(weights: Any) -> Any:
    """The law of the logarithm of a positive random variable of scipy."""

    class Logarithm:
        def rvs(self, size: tuple[int, ...], random_state: "Generator") -> Floats:
            return np.log(np.maximum(weights.rvs(size=size, random_state=random_state), 1e-300))

        def logpdf(self, t: Floats) -> Floats:
            return np.asarray(weights.logpdf(np.exp(np.minimum(t, 700))) + t)

        def median(self) -> float:
            return math.log(weights.median())

        def support(self) -> tuple[float, float]:
            low, high = weights.support()
            return (math.log(low) if low > 0 else -math.inf), (math.log(high) if high > 0 else math.inf)

    return Logarithm()


def _rare(share: float, nats: float) -> WeightLaw:
    """A share of the draws has so many nats more than the others."""
    return WeightLaw(nats / 2, values=(0.0, nats), probs=(1 - share, share))


def _second_weight_laws() -> dict[str, WeightLaw]:
    from scipy import stats

    laws = {f"log-normal {s:g}": WeightLaw(s, stats.norm(0, s)) for s in (0.75, 1.75, 2.25)}
    return laws | {
        "gamma 0.15": WeightLaw(0.5, _log_of(stats.gamma(0.15))),
        "gumbel 0.4": WeightLaw(0.8, stats.gumbel_r(0, 0.4)),
        "pareto 2.5": WeightLaw(0.8, _log_of(stats.pareto(2.5))),
        "inverse gaussian": WeightLaw(1.0, _log_of(stats.invgauss(2.0))),
        "beta 2, 8": WeightLaw(-1.2, _log_of(stats.beta(2, 8))),
        "skew normal": WeightLaw(1.5, stats.skewnorm(4, 0, 1.5)),
        "modes at 0, 2, 4": WeightLaw(3.0, _MixtureOfNormals((0.0, 2.0, 4.0), (0.8, 0.15, 0.05), 0.5)),
        "0.5 % at +6": _rare(0.005, 6.0),
        "3 % at +4": _rare(0.03, 4.0),
        "10 % at +2, 0.5 % at +5": WeightLaw(1.0, values=(0.0, 2.0, 5.0), probs=(0.895, 0.1, 0.005)),
        "3 % allowed": WeightLaw(-1.0, values=(0.0,), probs=(1.0,), allowed=0.03),
        "2 % allowed, log-normal 0.5": WeightLaw(0.5, stats.norm(0, 0.5), allowed=0.02),
        "20 % allowed, log-normal 1": WeightLaw(1.0, stats.norm(0, 1), allowed=0.2),
    }


def _weight_laws(*, held_back: bool) -> dict[str, WeightLaw]:
    from scipy import stats

    if held_back:
        return {
            "gamma 0.3": WeightLaw(0.5, _log_of(stats.gamma(0.3))),
            "weibull 0.5": WeightLaw(1.0, _log_of(stats.weibull_min(0.5))),
            "logistic 0.4": WeightLaw(1.0, stats.logistic(0, 0.4)),
            "laplace 0.4": WeightLaw(0.8, stats.laplace(0, 0.4)),
            "log-normal 1.25": WeightLaw(1.5, stats.norm(0, 1.25)),
            "log-normal 2.5": WeightLaw(3.0, stats.norm(0, 2.5)),
            "pareto 2": WeightLaw(1.0, _log_of(stats.pareto(2.0))),
            "uniform 4": WeightLaw(3.0, stats.uniform(0, 4)),
            "minus exponential": WeightLaw(-0.2, _MINUS_EXPONENTIAL),
            "0.3 % at +5": _rare(0.003, 5.0),
            "5 % at +3": _rare(0.05, 3.0),
            "0, 2, 4": WeightLaw(1.0, values=(0.0, 2.0, 4.0), probs=(0.9, 0.09, 0.01)),
            "counts 0.8": WeightLaw(
                1.0, values=tuple(0.8 * k for k in range(30)), probs=tuple(_normalized(stats.poisson(1).pmf(range(30))))
            ),
            "5 % allowed, log-normal 1": WeightLaw(1.0, stats.norm(0, 1), allowed=0.05),
            "90 % allowed": WeightLaw(-1.0, values=(0.0,), probs=(1.0,), allowed=0.9),
        }
    laws = {f"log-normal {s:g}": WeightLaw(s, stats.norm(0, s)) for s in (0.1, 0.5, 1.0, 1.5, 2.0, 3.0)}
    return laws | {
        "exponential": WeightLaw(0.5, _log_of(stats.expon())),
        "pareto 3": WeightLaw(0.7, _log_of(stats.pareto(3.0))),
        "pareto 1.5": WeightLaw(1.4, _log_of(stats.pareto(1.5))),
        "bimodal": WeightLaw(1.0, values=(0.0, 2.0), probs=(0.5, 0.5)),
        "bimodal, smooth": WeightLaw(1.5, _MixtureOfNormals((0.0, 3.0), (0.9, 0.1), 0.3)),
        "2 % at +5": _rare(0.02, 5.0),
        "1 % at +6": _rare(0.01, 6.0),
        "0.1 % at +8": _rare(0.001, 8.0),
        "0.1 % at +9": _rare(0.00104, 9.0),
        "30 % at +1, 0.2 % at +7": WeightLaw(
            1.5, values=(0.0, 1.0, 7.0, 8.0), probs=(0.7 * 0.998, 0.3 * 0.998, 0.7 * 0.002, 0.3 * 0.002)
        ),
        "counts 1": WeightLaw(2.5, values=tuple(map(float, range(21))), probs=tuple(stats.binom(20, 0.1).pmf(range(21)))),
        "1 % allowed": WeightLaw(-1.0, values=(0.0,), probs=(1.0,), allowed=0.01),
        "10 % allowed, log-normal 0.5": WeightLaw(0.5, stats.norm(0, 0.5), allowed=0.1),
    }


def _normalized(probs: Floats) -> Floats:
    return np.asarray(probs / probs.sum())


class _MinusExponential:
    """Log weights of -2 times an exponential: bounded above, with a tail of small weights."""

    def rvs(self, size: tuple[int, ...], random_state: "Generator") -> Floats:
        return np.asarray(-2 * random_state.standard_exponential(size))

    def logpdf(self, t: Floats) -> Floats:
        return np.asarray(t / 2 - math.log(2))

    def median(self) -> float:
        return -2 * math.log(2)

    def support(self) -> tuple[float, float]:
        return -math.inf, 0.0


_MINUS_EXPONENTIAL = _MinusExponential()
WEIGHT_LAWS: Mapping[str, WeightLaw] = _weight_laws(held_back=False)
HELD_BACK_WEIGHT_LAWS: Mapping[str, WeightLaw] = _weight_laws(held_back=True)
SECOND_WEIGHT_LAWS: Mapping[str, WeightLaw] = _second_weight_laws()


@dataclass(frozen=True)
class TextLaw:
    """A distribution of texts: `draw(rng, shape)` gives lengths and nats; `rate` is E[nats] / E[length], `length` E[length]."""

    draw: Callable[["Generator", tuple[int, ...]], tuple[Floats, Floats]]
    rate: float
    length: float


def _sums_of_exponentials(rng: "Generator", length: Floats, mean: float = 2.0) -> Floats:
    """Sums of as many exponential variables as the length says: nats of independent tokens."""
    return mean * rng.standard_gamma(length)


def _equal(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    length = np.full(shape, 20.0)
    return length, _sums_of_exponentials(rng, length)


def _geometric(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    length = rng.geometric(0.1, shape).astype(float)
    return length, _sums_of_exponentials(rng, length)


def _uniform(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    length = rng.integers(1, 41, shape).astype(float)
    return length, _sums_of_exponentials(rng, length)


def _topics(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Each text has a difficulty of its own, which most of the spread is."""
    length = (1 + rng.poisson(30, shape)).astype(np.float64)
    return length, length * 2 * np.exp(0.3 * rng.standard_normal(shape) - 0.045)


def _equal_topics(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    length = np.full(shape, 12.0)
    return length, length * 2 * np.exp(0.5 * rng.standard_normal(shape) - 0.125)


def _log_normal_lengths(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    length: Floats = np.ceil(10 * np.exp(0.7 * rng.standard_normal(shape))).astype(np.float64)
    return length, _sums_of_exponentials(rng, length)


def _constant_part(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Short texts are harder by token: 4 nats for the first, 1 for each further one."""
    length = (1 + rng.poisson(8, shape)).astype(np.float64)
    return length, _sums_of_exponentials(rng, length - 1 + 1e-9, 1.0) + 4 * rng.standard_exponential(shape)


def _short_and_long(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    length = np.where(rng.random(shape) < 0.8, 5.0, 60.0)
    return length, _sums_of_exponentials(rng, length)


def _equal_skewed(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    length = np.full(shape, 10.0)
    return length, length * 2 * np.exp(0.8 * rng.standard_normal(shape) - 0.32)


def _equal_two_kinds(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    length = np.full(shape, 10.0)
    return length, length * np.where(rng.random(shape) < 0.7, 1.0, 3.0) + 0.3 * rng.standard_normal(shape)


def _topics_uniform(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    length = rng.integers(5, 60, shape).astype(float)
    return length, length * 2 * np.exp(0.2 * rng.standard_normal(shape) - 0.02)


def _negative_binomial(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    length = (1 + rng.negative_binomial(2, 0.1, shape)).astype(np.float64)
    return length, _sums_of_exponentials(rng, length)


def _one_to_three(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    length = rng.integers(1, 4, shape).astype(float)
    return length, _sums_of_exponentials(rng, length)


def _equal_bounded(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    length = np.full(shape, 15.0)
    return length, length * (1 + 2 * rng.beta(2, 2, shape))


def _topics_geometric(rng: "Generator", shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    length = rng.geometric(0.05, shape).astype(float)
    return length, length * 2 * np.exp(0.25 * rng.standard_normal(shape) - 0.03125)


TEXT_LAWS: Mapping[str, TextLaw] = {
    "equal": TextLaw(_equal, 2.0, 20.0),
    "equal, topics": TextLaw(_equal_topics, 2.0, 12.0),
    "uniform": TextLaw(_uniform, 2.0, 20.5),
    "geometric": TextLaw(_geometric, 2.0, 10.0),
    "log-normal": TextLaw(_log_normal_lengths, 2.0, 13.276223),
    "topics": TextLaw(_topics, 2.0, 31.0),
}
HELD_BACK_TEXT_LAWS: Mapping[str, TextLaw] = {
    "constant part": TextLaw(_constant_part, 12 / 9, 9.0),
    "short and long": TextLaw(_short_and_long, 2.0, 16.0),
    "equal, skewed": TextLaw(_equal_skewed, 2.0, 10.0),
    "equal, two kinds": TextLaw(_equal_two_kinds, 1.6, 10.0),
    "topics, uniform": TextLaw(_topics_uniform, 2.0, 32.0),
}
SECOND_TEXT_LAWS: Mapping[str, TextLaw] = {
    "negative binomial": TextLaw(_negative_binomial, 2.0, 19.0),
    "one to three": TextLaw(_one_to_three, 2.0, 2.0),
    "equal, bounded": TextLaw(_equal_bounded, 2.0, 15.0),
    "topics, geometric": TextLaw(_topics_geometric, 2.0, 20.0),
}


def log_z_coverage(
    estimate: Callable[[Floats], tuple[float, float]], law: WeightLaw, draws: int, *, replications: int = 1000, seed: int = 0
) -> float:
    """The share of replications in which the interval `estimate(log_weights)` covers log Z of a law; samples without any weight
    are left out."""
    rng, hits, tried = np.random.default_rng(seed), 0, 0
    for _ in range(replications):
        log_weight = law.log_weights(rng, (draws,))
        if np.isfinite(log_weight).any():
            low, high = estimate(log_weight)
            hits, tried = hits + (low <= law.log_z <= high), tried + 1
    return hits / max(1, tried)


def rate_coverage(
    estimate: Callable[[Floats, Floats], tuple[float, float]],
    law: TextLaw,
    texts: int,
    *,
    replications: int = 1000,
    seed: int = 0,
) -> float:
    """The share of replications in which the interval `estimate(lengths, nats)` covers the nats per token of a law."""
    rng, hits = np.random.default_rng(seed), 0
    for _ in range(replications):
        low, high = estimate(*law.draw(rng, (texts,)))
        hits += low <= law.rate <= high
    return hits / replications
