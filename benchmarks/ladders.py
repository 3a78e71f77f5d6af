"""What a ladder of tilts costs where the tilt is strong: base sequences for the same error of Z, against independent draws.

Strings of 16 digits, all equally likely, are tilted so that half of them have a motif of 2, 4 or 6 different digits, which
about one string in 7, 800 or 90,000 of the base has. log Z is exact (`esscher.exact`), and so is the variance of independent
draws. `ladder` has the guide that the feature brings, `without guide` temperatures alone, `particles` a twist that is fitted
on 256 draws. Every repeat is one estimate of Z: a run of a ladder, a cloud of 64 particles. `cost` is in sequences of the
base, tokens that moves read again and the pilot included; `error` is the mean square of Z found / Z - 1 over repeats times
their cost, `saved` how many times as many base sequences independent draws need for it, above 1 a saving, with the 95 %
interval of a bootstrap over the repeats. `off` is the mean of Z found / Z - 1 in standard errors, and `seen` the share of
repeats that found the motif: where they miss it, error and `saved` flatter. `verdict` is what the draws say of themselves.
"""

import math

import torch

from benchmarks._timing import Row, Table
from esscher.core.draws import Draws
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts
from esscher.core.target import Tilted
from esscher.energies.features import LogLinear, contains
from esscher.estimators.reliability import reliability
from esscher.exact import features
from esscher.exact.automaton import Automaton
from esscher.exact.exponential_family import exact_moment_weights, tilt
from esscher.samplers.ladder import Ladder
from esscher.samplers.particles import Particles
from esscher.samplers.twists import fitted_twist

REPEATS = 32
DIGITS, LENGTH, SHARE = 10, 16, 0.5
SPACE = Space(DIGITS, LENGTH)


def target_of(motif: list[int]) -> tuple[Tilted, float, float]:
    """The tilted model, its log Z, and the probability of the motif under the base."""
    base = Automaton(torch.full((1, DIGITS), 1 / DIGITS).double().log(), torch.zeros(1, DIGITS, dtype=torch.long), SPACE)
    feature, wanted = features.contains(motif, SPACE), torch.tensor([SHARE], dtype=torch.float64)
    weight = exact_moment_weights(base, [feature], wanted)
    log_z = float(tilt(base, [feature], weight).log_z(None)[0])
    return Tilted(base, LogLinear([contains(motif)], weight)), log_z, SHARE * math.exp(log_z - float(weight))


def repeats_of(name: str, target: Tilted, repeats: int, rng: SeededRng) -> tuple[Draws, torch.Tensor]:
    """Draws, and log Z by each repeat."""
    if name == "particles":
        twist = fitted_twist(target, empty_prompts(1), block=4, draws=256, rng=rng)
        drawn = Particles(twist, block=4)(target, empty_prompts(repeats), 64, rng=rng)
        return drawn, drawn.log_z()
    energy = target.energy if name == "ladder" else lambda x: target.energy(x)  # a function brings no guide
    drawn = Ladder(256, moves=8, pilot=1024)(Tilted(target.base, energy), empty_prompts(1), repeats, rng=rng)
    return drawn, drawn.log_weight[0]


def rows_of(length: int, repeats: int) -> list[Row]:
    motif = list(range(1, length + 1))
    target, log_z, probability = target_of(motif)
    exact = SHARE**2 / probability + (1 - SHARE) ** 2 / (1 - probability) - 1
    again = SeededRng(3).categorical(torch.zeros(400, repeats), repeats)
    rows: list[Row] = []
    for name in ("ladder", "without guide", "particles"):
        drawn, log_mean = repeats_of(name, target, repeats, SeededRng(4, name))
        gap, cost = (log_mean - log_z).exp() - 1, drawn.cost / repeats
        low, high = torch.quantile(exact / (gap[again].square().mean(-1) * cost), gap.new_tensor([0.025, 0.975])).tolist()
        error, verdict = float(gap.square().mean()) * cost, reliability(drawn, energy=target.energy)[0].verdict
        row: Row = {"probability": f"{probability:.2g}", "sampler": name, "cost": cost, "exact error": exact}
        row |= {"off": float(gap.mean() / gap.std()) * repeats**0.5}
        row |= {"seen": float((gap > -SHARE * 0.9).double().mean()), "error": error}
        rows.append(row | {"saved": {"median": exact / error, "low": low, "high": high}, "verdict": verdict})
    return rows


def tables(repeats: int) -> list[Table]:
    return [Table("base sequences for the same error of Z", [row for length in (2, 4, 6) for row in rows_of(length, repeats)])]
