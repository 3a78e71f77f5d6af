"""How often the interval of log Z by a ladder holds log Z.

Strings of 16 digits, all equally likely, are tilted so that half of them have a motif of 2 or 4 different digits (`ladders`),
with the guide that the feature brings, or by `graded`, an energy of -2 for each digit 1, which temperatures lead to; log Z is
exact. An interval is that of `log_z` of 16 draws of `Ladder()` with its defaults, each draw a run of 64 particles. Over the
repeats, each a ladder with its own pilot: `covered` is how often the 95 % interval holds log Z, with the exact binomial
interval, `width` its mean width, `error` the root mean square of its value - log Z; `unreliable` is how often the verdict is
that, and `covered, others` how often the interval holds in the others.
"""

import math

from scipy.stats import binomtest

from benchmarks._timing import Row, Table
from benchmarks.ladders import DIGITS, LENGTH, target_of
from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.core.target import Tilted
from esscher.estimators.log_z import log_z as estimated_log_z
from esscher.estimators.reliability import reliability
from esscher.samplers.ladder import Ladder

REPEATS, RUNS, WEIGHT = 100, 16, 2.0


def graded() -> tuple[Tilted, float]:
    """The base, tilted by how often a digit appears, and log Z."""
    base = target_of([1])[0].base
    target = Tilted(base, lambda x: -WEIGHT * (x.counted & (x.tokens == 1)).sum(-1).double())
    return target, LENGTH * math.log(1 + (math.exp(WEIGHT) - 1) / DIGITS)


def row_of(name: str, target: Tilted, log_z: float, repeats: int) -> Row:
    """How often the interval of a ladder holds log Z."""
    found = []
    for number in range(repeats):
        drawn = Ladder()(target, empty_prompts(1), RUNS, rng=SeededRng(number, "coverage"))
        found.append((estimated_log_z(drawn), reliability(drawn, energy=target.energy)[0].verdict))
    others = [one.covers(log_z) for one, verdict in found if verdict != "unreliable"]
    row: Row = {"tilt": name, "log Z": log_z, "covered": share([one.covers(log_z) for one, _ in found])}
    row |= {"width": sum(one.high - one.low for one, _ in found) / repeats}
    row |= {"error": (sum((one.value - log_z) ** 2 for one, _ in found) / repeats) ** 0.5}
    return row | {"unreliable": 1 - len(others) / repeats, "covered, others": share(others) if others else None}


def share(held: list[bool]) -> dict[str, float]:
    interval = binomtest(sum(held), len(held)).proportion_ci()
    return {"median": sum(held) / len(held), "low": float(interval.low), "high": float(interval.high)}


def tables(repeats: int) -> list[Table]:
    rows = [row_of("graded", *graded(), repeats)]
    for length in (2, 4):
        target, log_z, probability = target_of(list(range(1, length + 1)))
        rows.append(row_of(f"motif, {probability:.2g}", target, log_z, repeats))
    return [Table("the interval of log Z by 16 draws of a ladder", rows)]
