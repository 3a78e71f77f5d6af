"""Seconds and base samples that fitted weights cost: Newton, and the two stochastic regimes of the paper.

First the fit of three features that are 0 or 1 on 2,000 draws of the base and 2,000 data, once the samples exist: the
figure to hold against other libraries. Then rs, snis and Newton on one problem with known weights: strings of 30 fair
bits, a motif wanted in 90 % of them that about 1 in 100 has, and two features that should not matter. Newton is given
40,000 draws. The error is the largest of the three weights, against the exact ones.
"""

import statistics
import time

import torch

from benchmarks._timing import Row, Table, spread
from esscher.core.randomness import SeededRng
from esscher.energies.features import Feature
from esscher.exact import features as tallies
from esscher.exact.exponential_family import exact_moment_weights
from esscher.exact.languages import white_noise
from esscher.objectives.moment_descent import MomentDescent, base_feature_sampler
from esscher.objectives.moment_matching import MomentFit, match_moments

REPEATS = 3
WANTED = [0.1, 0.5, 0.6]
DRAWS = 40_000


def three_shares(repeats: int) -> list[float]:
    """Seconds of the first fit in this process, and of as many as asked after it."""
    generator = torch.Generator().manual_seed(0)
    base = (torch.rand(2000, 3, generator=generator) < torch.tensor([0.05, 0.3, 0.5])).double()
    data = (torch.rand(2000, 3, generator=generator) < torch.tensor([0.9, 0.2, 0.5])).double()
    seconds = []
    for _ in range(1 + repeats):
        begin = time.perf_counter()
        match_moments(["a", "b", "c"], base, data)
        seconds.append(time.perf_counter() - begin)
    return seconds


def regimes(repeats: int) -> list[Row]:
    """A row for each way: base samples, seconds with and without drawing them, and the worst error of a weight."""
    noise = white_noise(2, 30)
    exact = [
        tallies.lacks([1, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1], noise.space),
        tallies.starts_with([0], noise.space),
        tallies.lacks([0, 1, 1, 0, 1], noise.space),
    ]
    names = [item.name for item in exact]
    star = exact_moment_weights(noise, exact, torch.tensor(WANTED, dtype=torch.float64))
    return [_row(way, noise, exact, names, star, repeats) for way in ("rs", "snis", "newton")]


def _row(way, noise, exact, names, star, repeats) -> Row:
    wanted, costs, seconds, drawing, errors = dict(zip(names, WANTED, strict=True)), [], [], [], []
    for seed in range(repeats):
        source = base_feature_sampler(noise, [Feature(item.name, item) for item in exact], rng=SeededRng(seed))
        spent = 0.0

        def timed(count: int, source=source) -> torch.Tensor:
            nonlocal spent
            begin = time.perf_counter()
            rows = source(count)
            spent += time.perf_counter() - begin
            return rows

        begin = time.perf_counter()
        fit = _fit(way, names, timed, wanted, seed)
        seconds.append(time.perf_counter() - begin)
        drawing.append(spent)
        costs.append(fit.base_samples)
        errors.append(float((fit.tensor() - star).abs().max()))
    row = {"way": way, "base samples": int(statistics.median(costs)), "seconds": spread(seconds)}
    return row | {"of them drawing": spread(drawing), "worst error of a weight": spread(errors)}


def _fit(way, names, source, wanted, seed) -> MomentFit:
    if way == "newton":
        return match_moments(names, source(DRAWS), wanted=wanted)
    return MomentDescent(way)(names, source, wanted=wanted, rng=SeededRng(seed, "accept"))


def tables(repeats: int) -> list[Table]:
    first, *rest = three_shares(repeats)
    fit = {"first, ms": 1000 * first, "later, ms": spread([1000 * item for item in rest])}
    return [
        Table("a fit of three features on 2,000 draws and 2,000 data", [fit]),
        Table("three weights by three ways", regimes(repeats)),
    ]
