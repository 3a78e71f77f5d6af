"""Data, draws of the base and draws of the tilted model (the joint) after the same prompts: means, energies, n-grams.

The same base draws serve both models by their weights: equal ones for the base, and for the joint the share s of exp(-E) within
the prompt, corrected to first order for the bias of self-normalisation: s_n (1 + s_n - sum_m s_m^2), which sum to 1. Prompts
weigh as often as they occur in the data. Replicates are the prompts, each with its data and draws, or, with one prompt for all,
the sequences of the data and separately the draws. Left out: the higher-order bias, which matters where few draws hold the
weight (`Populations.ess`).

A joint that equals the distribution of the data has the data's energies (`compare_energies`); the converse does not hold.
`unique_ngrams` is the number of different n-grams of each point, summed over points, over that of all its n-grams. End symbols
count as tokens, prompts do not. The ratio falls with the length of points, so compare points of equal length.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, unique_prompts
from esscher.core.target import Tilted
from esscher.estimators.expectations import require_weights
from esscher.estimators.intervals import MAX_COUNTS, Statistic, bootstrap_counts, interval, proportion, ratio
from esscher.samplers.scoring import log_weight

Name = Literal["data", "base", "joint"]
NAMES: tuple[Name, ...] = get_args(Name)
Values = Mapping[Name, Float[Tensor, "_"]]  # a number for each row of a population
COUNTED = "sequences and draws"
BINS, RESAMPLES = 40, 400


@dataclass(frozen=True)
class Population:
    """Weighted rows, and the replicate of each within a source of chance."""

    x: Sequences
    weight: Float[Tensor, "M"]
    replicate: Int[Tensor, "M"]
    source: int


@dataclass(frozen=True)
class Populations:
    """Three populations and their sources of chance, as for `intervals.interval`; base and joint share their rows."""

    data: Population
    base: Population
    joint: Population
    sources: tuple[tuple[int, int], ...]
    draws: Draws

    def __getitem__(self, name: Name) -> Population:
        if name not in NAMES:
            raise ValueError(f"Unknown population {name!r}; the known ones are {', '.join(NAMES)}.")
        return {"data": self.data, "base": self.base, "joint": self.joint}[name]

    def ratio(self, name: Name, values: Tensor, units: Tensor | None = None) -> Statistic:
        """The statistic: weighted sum of `values` over weighted sum of `units` (by default 1 for each row)."""
        population, size = self[name], self.sources[self[name].source][1]
        units = torch.ones_like(population.weight) if units is None else units
        above, below = (
            torch.zeros(size, dtype=torch.float64).index_add(0, population.replicate, population.weight * column.cpu().double())
            for column in (values, units)
        )
        statistic = ratio(above, below)
        return lambda *counts: statistic(counts[population.source])

    def estimate(self, statistic: Statistic, *, confidence: float, method: str, unit: str = "") -> Estimate:
        """A smooth function of ratios, with its interval."""
        method = self.describe(method)
        return interval(statistic, self.sources, confidence=confidence, n=self.size, method=method, unit=unit, counted=COUNTED)

    def share(self, statistic: Statistic, *, confidence: float, method: str, binary: bool = True) -> Estimate:
        """A statistic in [0, 1] with the interval of `intervals.proportion`."""
        method = self.describe(method)
        return proportion(
            statistic, self.sources, confidence=confidence, n=self.size, method=method, binary=binary, counted=COUNTED
        )

    def above_data(
        self, ratio: Mapping[Name, Statistic], *, confidence: float, method: str, unit: str = ""
    ) -> dict[Name, Estimate]:
        """The ratio of the base and of the joint, each minus that of the data."""

        def minus(first: Statistic, second: Statistic) -> Statistic:
            return lambda *counts: first(*counts) - second(*counts)

        others: tuple[Name, ...] = ("base", "joint")
        return {
            name: self.estimate(minus(ratio[name], ratio["data"]), confidence=confidence, method=method, unit=unit)
            for name in others
        }

    def ess(self, *, confidence: float = 0.95) -> Estimate:
        """The effective sample size of the joint's weights after a prompt, on average over prompts."""
        each = self.draws.ess()
        if len(each) == 1:
            return Estimate.exact(float(each), method="of these very draws", unit="draws")
        mean = ratio(each)
        return self.estimate(lambda *counts: mean(counts[0]), confidence=confidence, method="mean", unit="draws")

    def joint_draws(self, *, rng: Rng) -> Draws:
        """Unweighted draws of the joint, resampled from the base draws of each prompt, as many as these."""
        prompts, each = self.draws.log_weight.shape
        chosen = rng.categorical(_corrected(self.draws.log_weight).log(), each)
        rows = (torch.arange(prompts)[:, None] * each + chosen).view(-1)
        log_base = self.draws.log_base.gather(1, chosen)
        zeros = torch.zeros_like(log_base)
        return Draws(self.draws.x.rows(rows), zeros, log_base, estimates_z=False, independent=False, cost=self.draws.cost)

    @property
    def size(self) -> int:
        """The number of sequences of the data and of draws."""
        return len(self.data.x) + len(self.draws.x)

    def describe(self, method: str) -> str:
        """The method of an estimate, with the sizes of the sample."""
        prompts, each = self.draws.log_weight.shape
        what = f"after {prompts} prompts, {each} draws each" if prompts > 1 else f"and {each} draws after one prompt"
        return f"{method}; {len(self.data.x)} sequences {what}"


def populations(x: Sequences, draws: Draws) -> Populations:
    """Combine the data `x` with draws of `Importance()` after `unique_prompts(x)[0]`."""
    prompts, context = unique_prompts(x)
    count, each = draws.log_weight.shape
    if draws.prompts().prompt_keys() != prompts.prompt_keys():
        raise ValueError(
            f"The {count} prompts of the draws are not the {len(prompts)} of the data, in their order. Nothing was compared; "
            f"draw after `unique_prompts(x)[0]`."
        )
    draws.log_z()  # raises where the sampler discards its weights
    require_weights(draws)
    context = context.cpu()
    times = context.bincount(minlength=count).double()[:, None]  # sequences of the data after each prompt
    once = torch.ones(len(x), dtype=torch.float64)
    equal = (times / each).expand(count, each).reshape(-1)
    tilted = (times * _corrected(draws.log_weight)).view(-1)
    sources: tuple[tuple[int, int], ...] = ((1, count),)
    of_data, of_draws, source = context, torch.arange(count).repeat_interleave(each), 0
    if count == 1:
        sources = ((1, len(x)), (1, each))
        of_data, of_draws, source = torch.arange(len(x)), torch.arange(each), 1
    base, joint = (Population(draws.x, weight, of_draws, source) for weight in (equal, tilted))
    return Populations(Population(x, once, of_data, 0), base, joint, sources, draws)


def _corrected(log_weight: Float[Tensor, "P N"]) -> Float[Tensor, "P N"]:
    """Normalised weights of each prompt, corrected for the first-order bias of self-normalisation."""
    share = torch.softmax(log_weight.double(), -1)
    return share * (1 + share - (share**2).sum(-1, keepdim=True))


@dataclass(frozen=True)
class Histogram:
    """The share of each population between neighbouring edges."""

    edges: tuple[float, ...]
    shares: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class EnergyComparison:
    """Energies by population; `above` and `distance` compare it with the data."""

    mean: Mapping[Name, Estimate]
    above: Mapping[Name, Estimate]  # mean minus that of the data
    distance: Mapping[Name, Estimate]
    histogram: Histogram


def compare_energies(target: Tilted, pops: Populations, *, confidence: float = 0.95, rng: Rng) -> EnergyComparison:
    """Compare the energies of the three populations; those of the draws follow from their weights."""
    of_draws = -pops.draws.log_weight.double().view(-1)
    values: Values = {"data": -log_weight(target, pops.data.x), "base": of_draws, "joint": of_draws}
    for name in ("data", "base"):
        forbidden = int((~values[name].isfinite()).sum())
        if forbidden:
            raise ValueError(
                f"The energy forbids {forbidden} of {len(values[name])} sequences of the {name}, so their mean is infinite. "
                f"Nothing was compared; use energies that forbid nothing, or measure how often the constraint holds."
            )
    ratio = {name: pops.ratio(name, values[name]) for name in NAMES}
    mean = {name: pops.estimate(ratio[name], confidence=confidence, method="mean", unit="nats") for name in NAMES}
    above = pops.above_data(ratio, confidence=confidence, method="difference of means", unit="nats")
    distance = {
        name: wasserstein(pops, name, values, confidence=confidence, rng=rng.stream(name), unit="nats") for name in above
    }
    return EnergyComparison(mean, above, distance, histogram(pops, values))


def histogram(pops: Populations, values: Values) -> Histogram:
    """A histogram in bins of equal width over all values; equal values share one bin."""
    every = torch.cat([values[name] for name in NAMES])
    low, high, bins = float(every.min()), float(every.max()), BINS
    if high - low < 1e-9:
        low, high, bins = low - 0.5, high + 0.5, 1
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
    shares: dict[str, tuple[float, ...]] = {}
    for name in NAMES:
        column = (torch.searchsorted(edges, values[name], right=True) - 1).clamp(0, bins - 1)
        weight = torch.bincount(column, pops[name].weight, minlength=bins)
        shares[name] = tuple((weight / weight.sum()).tolist())
    return Histogram(tuple(edges.tolist()), shares)


def wasserstein(
    pops: Populations, name: Name, values: Values, *, confidence: float, rng: Rng, resamples: int = RESAMPLES, unit: str = ""
) -> Estimate:
    """Wasserstein distance between the distributions of a number in the data and in another population: integral of |F - G|.
    The plug-in estimate is biased upwards, and its error is at most the integral of |(F - G) - (true F - true G)|; the
    half-width is a bootstrap quantile of that, so 0 is covered at the rate `confidence` and other values at least as often."""
    places = torch.unique(torch.cat([values["data"], values[name]]))
    width = places.diff()
    columns = [(pops[who], torch.searchsorted(places, values[who])) for who in ("data", name)]

    def gap(counts: list[Tensor]) -> Tensor:
        """F - G at each place, for R vectors of counts."""
        cumulative = []
        for population, column in columns:
            weight = population.weight * counts[population.source][:, population.replicate]
            total = torch.zeros(len(weight), len(places), dtype=torch.float64).index_add(1, column, weight)
            cumulative.append(total.cumsum(-1) / weight.sum(-1, keepdim=True))
        return (cumulative[0] - cumulative[1])[:, :-1]

    seen = gap([torch.ones(1, size, dtype=torch.float64) for _, size in pops.sources])
    distance = float((seen.abs() * width).sum())
    errors: list[float] = []
    at_once = max(1, MAX_COUNTS // pops.size)
    while len(errors) < resamples:
        times = min(at_once, resamples - len(errors))
        moved = gap([bootstrap_counts(size, times, rng=rng) for _, size in pops.sources])
        errors += ((moved - seen).abs() * width).sum(-1).tolist()
    half = sorted(errors)[min(resamples, math.ceil(confidence * (resamples + 1))) - 1]
    method = pops.describe(f"Wasserstein distance, half-width from {resamples} bootstraps of its error")
    return Estimate(distance, max(0.0, distance - half), distance + half, confidence, pops.size, method, unit, COUNTED)


@dataclass(frozen=True)
class UniqueNgrams:
    """The ratio for one n by population, and `above`, the ratio minus that of the data."""

    n: int
    ratio: Mapping[Name, Estimate]
    above: Mapping[Name, Estimate]


def unique_ngrams(pops: Populations, sizes: Sequence[int] = (1, 2, 3, 4), *, confidence: float = 0.95) -> list[UniqueNgrams]:
    """The ratio of unique n-grams within a point, for each n in `sizes`."""
    if not sizes or min(sizes) < 1:
        raise ValueError(f"An n-gram has at least one token, and at least one n is needed: {list(sizes)}. Nothing was counted.")
    results = []
    for n in sizes:
        drawn = count_ngrams(pops.draws.x, n)
        counts = {"data": count_ngrams(pops.data.x, n), "base": drawn, "joint": drawn}
        ratios: dict[Name, Statistic] = {}
        for name in NAMES:
            different, every = counts[name]
            if int(every.sum()) == 0:
                raise ValueError(f"No point of the {name} has {n} tokens, so no {n}-gram. Nothing was counted; lower n.")
            ratios[name] = pops.ratio(name, different, every)
        method = f"different {n}-grams of a point over all of them"
        share = {name: pops.share(ratios[name], confidence=confidence, method=method, binary=False) for name in NAMES}
        above = pops.above_data(ratios, confidence=confidence, method=f"difference of {method}")
        results.append(UniqueNgrams(n, share, above))
    return results


def count_ngrams(x: Sequences, n: int) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
    """The number of different n-grams of each point, and of all its n-grams."""
    grams = [[tuple(point[first : first + n]) for first in range(len(point) - n + 1)] for point in x.points()]
    different, total = [len(set(point)) for point in grams], [len(point) for point in grams]
    return torch.tensor(different, dtype=torch.long), torch.tensor(total, dtype=torch.long)
