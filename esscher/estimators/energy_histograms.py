"""How the energies of data, base draws and joint draws lie: means, Wasserstein distances to the data, histograms.

A joint model that is the distribution of the data has the data's energies; the base's lie higher by what the energy learnt. A
distance of 0 does not prove that the models are equal: the energy sees only what it was trained to see.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.estimate import Estimate
from esscher.estimators.bootstrap import AT_ONCE, bootstrap_counts
from esscher.estimators.populations import NAMES, Name, Population, Populations
from esscher.randomness import Rng
from esscher.samplers.scores import log_weight
from esscher.target import Tilted

BINS, RESAMPLES = 40, 400
Values = Mapping[Name, Float[Tensor, "_"]]  # a number for each row of a population


@dataclass(frozen=True)
class Histogram:
    """Shares of each population between neighbouring edges."""

    edges: tuple[float, ...]
    shares: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class EnergyComparison:
    """By population; `above` and `distance` compare it with the data."""

    mean: Mapping[Name, Estimate]
    above: Mapping[Name, Estimate]  # how much its mean is above that of the data
    distance: Mapping[Name, Estimate]
    histogram: Histogram


def compare_energies(target: Tilted, found: Populations, *, level: float = 0.95, rng: Rng) -> EnergyComparison:
    """Energies of the three populations; the draws' are known from their weights."""
    of_draws = -found.draws.log_weight.double().view(-1)
    values: Values = {"data": -log_weight(target, found.data.x), "base": of_draws, "joint": of_draws}
    for name in ("data", "base"):
        _refuse_infinite(name, values[name])
    ratio = {name: found.ratio(name, values[name]) for name in NAMES}
    mean = {name: found.estimate(ratio[name], level=level, method="mean", unit="nats") for name in NAMES}
    above = found.above_data(ratio, level=level, method="difference of means", unit="nats")
    distance = {name: wasserstein(found, name, values, level=level, rng=rng.stream(name), unit="nats") for name in above}
    return EnergyComparison(mean, above, distance, histogram(found, values))


def histogram(found: Populations, values: Values) -> Histogram:
    """Bins of equal width over all values; a single value gets one bin around it."""
    every = torch.cat([values[name] for name in NAMES])
    low, high, bins = float(every.min()), float(every.max()), BINS
    if high - low < 1e-9:
        low, high, bins = low - 0.5, high + 0.5, 1
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
    shares: dict[str, tuple[float, ...]] = {}
    for name in NAMES:
        column = (torch.searchsorted(edges, values[name], right=True) - 1).clamp(0, bins - 1)
        weight = torch.bincount(column, found[name].weight, minlength=bins)
        shares[name] = tuple((weight / weight.sum()).tolist())
    return Histogram(tuple(edges.tolist()), shares)


def wasserstein(
    found: Populations, name: Name, values: Values, *, level: float, rng: Rng, resamples: int = RESAMPLES, unit: str = ""
) -> Estimate:
    """Wasserstein's distance of a number's distribution in the data and in another population: the integral of |F - G|.

    Its estimate errs upwards, so an interval around it could miss the 0 of equal distributions. By the triangle inequality
    the error is at most the integral of |(F - G) - (true F - true G)|; that is bootstrapped over replicates, and its quantile
    is the half-width. So 0 is covered at the rate `level` where it is the truth, and any other value at least so often.
    """
    places = torch.unique(torch.cat([values["data"], values[name]]))
    width = places.diff()
    columns = {who: torch.searchsorted(places, values[who]) for who in ("data", name)}

    def gap(counts: list[Tensor]) -> Tensor:
        of_data, of_other = (_cumulative(found[who], counts, column, len(places)) for who, column in columns.items())
        return (of_data - of_other)[:, :-1]

    seen = gap([torch.ones(1, size, dtype=torch.float64) for _, size in found.sources])
    distance = float((seen.abs() * width).sum())
    errors: list[float] = []
    at_once = max(1, AT_ONCE // found.size)
    while len(errors) < resamples:
        times = min(at_once, resamples - len(errors))
        moved = gap([bootstrap_counts(size, times, rng=rng) for _, size in found.sources])
        errors += ((moved - seen).abs() * width).sum(-1).tolist()
    half = sorted(errors)[min(resamples, math.ceil(level * (resamples + 1))) - 1]
    method = found.described(f"Wasserstein distance, half-width from {resamples} bootstraps of its error")
    return Estimate(distance, max(0.0, distance - half), distance + half, level, found.size, method, unit)


def _cumulative(own: Population, counts: list[Tensor], column: Int[Tensor, "M"], places: int) -> Float[Tensor, "R {places}"]:
    """The distribution function at each place, for R ways to count the replicates."""
    weight = own.weight * counts[own.source][:, own.replicate]
    total = torch.zeros(len(weight), places, dtype=torch.float64).index_add(1, column, weight)
    return total.cumsum(-1) / weight.sum(-1, keepdim=True)


def _refuse_infinite(name: str, energies: Tensor) -> None:
    wrong = int((~energies.isfinite()).sum())
    if wrong:
        raise ValueError(
            f"The energy forbids {wrong} of {len(energies)} sequences of the {name}, so the mean energy is infinite. Nothing "
            f"was compared; look at energies that forbid nothing, or measure how often the constraint holds."
        )
