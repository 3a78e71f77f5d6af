"""Cross-entropy and perplexity of a base or a tilted model on a test set, per token, word or byte.

    nats per unit = sum_m -(log a(x_m) - E(x_m) - log Z(c_m)) / sum_m units_m,      perplexity = exp of it

A base needs no draws: every -log a(x) is exact. A tilted model needs log Z of every prompt in the test set, from draws.
Counted are the tokens of the points, end symbols included; prompts (and so any begin symbol) are never counted.

Two sources of chance, and what is a replicate:

    test="sample"   the test set stands for all text like it
        one prompt for all      the sequences, and the draws that all of them share
        several prompts         the prompts, each with its sequences and its draws
    test="fixed"    just these sequences: the draws only (a base is then exact)

With several prompts the bias of each log Z does not average out and is corrected to first order, where draws are
independent. Left out: the choice of units, which are numbers of words or bytes in each sequence, counted by you; other
ways to an interval (`perplexity_bounds`), and the perplexity at each position (`steps`).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.draws import Draws
from esscher.estimate import Estimate
from esscher.estimators.intervals import Statistic, interval, log_mean
from esscher.estimators.log_z import bias_of_log_mean
from esscher.estimators.replicates import DEPENDENT
from esscher.estimators.scored import Scored, scored
from esscher.samplers.scores import log_prob
from esscher.space import Sequences
from esscher.target import Tilted, flat

Test = Literal["sample", "fixed"]
Units = Mapping[str, Int[Tensor, "B"]]
"""How many units of each kind every test sequence has."""

COUNTED = "end symbols counted, prompts not"


def perplexity(
    target: Tilted,
    x: Sequences,
    *,
    draws: Draws | None = None,
    units: Units | None = None,
    test: Test = "sample",
    level: float = 0.95,
) -> dict[str, Estimate]:
    """Perplexity per unit, as `cross_entropy`."""
    return as_perplexity(cross_entropy(target, x, draws=draws, units=units, test=test, level=level))


def as_perplexity(nats: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Cross-entropies by unit as perplexities: exp of each."""
    return {name: value.map(_exp, unit=value.unit.removeprefix("nats ")) for name, value in nats.items()}


def as_bits(nats: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Cross-entropies by unit in bits: of characters, what is called bits per character."""
    return {name: value.map(_bits, unit=value.unit.replace("nats", "bits", 1)) for name, value in nats.items()}


def cross_entropy(
    target: Tilted,
    x: Sequences,
    *,
    draws: Draws | None = None,
    units: Units | None = None,
    test: Test = "sample",
    level: float = 0.95,
) -> dict[str, Estimate]:
    """Nats per unit of the test sequences `x`, for each kind of unit; by default per token.

    `draws` estimate log Z for every prompt of the test set, in any order, as from `sampler(target, x.prompts(), ...)`;
    rows with equal prompts are pooled.
    """
    counts = units_of(x, units)
    if target.energy is flat:
        return base_cross_entropy(log_prob(target.base, x), counts, test=test, level=level)
    if draws is None:
        raise ValueError("A tilted model's perplexity needs draws that estimate log Z. Nothing was measured; pass draws=.")
    return tilted_cross_entropy(scored(target, x, draws), counts, test=test, level=level)


def base_cross_entropy(log_base: Float[Tensor, "B"], units: Units, *, test: Test, level: float) -> dict[str, Estimate]:
    """`cross_entropy` of a base whose log-probabilities are known."""
    check_test(test)
    return {name: _of_base(-log_base, count.double(), name, test, level) for name, count in units.items()}


def tilted_cross_entropy(score: Scored, units: Units, *, test: Test, level: float) -> dict[str, Estimate]:
    """`cross_entropy` of a tilted model from scores that are known."""
    check_test(test)
    return {
        name: clipped(_of_tilted(score, score.surprise, count.double(), name, test, level)) for name, count in units.items()
    }


def saved_by_tilting(score: Scored, units: Units, *, test: Test, level: float) -> dict[str, Estimate]:
    """Nats per unit that tilting saves: the cross-entropy of the base less that of the tilted model.

    The two share the test sequences, so on real text this difference is far better known than either of them.
    """
    check_test(test)
    lost = {name: _of_tilted(score, -score.log_weight, count.double(), name, test, level) for name, count in units.items()}
    return {name: replace(nats, value=-nats.value, low=-nats.high, high=-nats.low) for name, nats in lost.items()}


def _of_base(surprise: Tensor, unit: Tensor, name: str, test: Test, level: float) -> Estimate:
    if test == "fixed":
        value = float(surprise.sum() / unit.sum())
        return Estimate.exact(value, method=f"exact, fixed test set, {COUNTED}", unit=f"nats per {name}")

    def ratio(count: Tensor) -> Tensor:
        return (count[0] * surprise).sum() / (count[0] * unit).sum()

    method = f"{len(unit)} test sequences as a sample, {COUNTED}"
    return clipped(interval(ratio, [(1, len(unit))], level=level, draws=len(unit), method=method, unit=f"nats per {name}"))


def _of_tilted(score: Scored, surprise: Tensor, unit: Tensor, name: str, test: Test, level: float) -> Estimate:
    shared = score.contexts == 1
    log_z = _LogZ(score, floor=(1 - level) / 2)

    def nats(sequences: Tensor, log_z: Tensor) -> Tensor:
        return (sequences * (surprise + log_z[score.context])).sum() / (sequences * unit).sum()

    statistic: Statistic
    if test == "fixed":
        once = torch.ones_like(unit)
        statistic, sources = (lambda count: nats(once, log_z(count))), [log_z.sources()]
    elif shared:
        statistic, sources = (lambda test, count: nats(test[0], log_z(count))), [(1, len(unit)), log_z.sources()]
    else:
        known = log_z(torch.ones(log_z.shape, dtype=torch.float64))
        statistic, sources = (lambda count: nats(count[0][score.context], known)), [(1, score.contexts)]
    prompts = "1 prompt" if shared else f"{score.contexts} prompts"
    method = f"{len(unit)} test sequences ({test}) after {prompts}, {log_z.method}, {COUNTED}"
    return interval(statistic, sources, level=level, draws=score.drawn.numel(), method=method, unit=f"nats per {name}")


class _LogZ:
    """log Z of every context as a function of the counts of its draws, or of its runs where draws depend on each other."""

    def __init__(self, score: Scored, *, floor: float):
        contexts, size = score.drawn.shape
        self.log_weight, self.independent, self.floor = score.drawn, score.independent, floor
        self.shape = (contexts, size if score.independent else score.runs)
        self.bias = torch.zeros(contexts, dtype=torch.float64)
        self.method = f"{size} draws each"
        if not score.independent:
            self.method = f"{score.runs} runs of {size // score.runs} dependent draws each"
        elif contexts > 1:
            self.bias = bias_of_log_mean(self.log_weight)
            self.method += ", bias of each log Z corrected"

    def sources(self) -> tuple[int, int]:
        """The table of counts, if the draws can tell their own error."""
        if not self.independent and self.shape[1] < 2:
            raise ValueError(DEPENDENT.format(p=self.shape[0], n=self.log_weight.shape[1]))
        return self.shape

    def __call__(self, count: Float[Tensor, "C R"]) -> Float[Tensor, "C"]:
        every = count.repeat_interleave(self.log_weight.shape[1] // count.shape[1], 1)
        return log_mean(every, self.log_weight, floor=self.floor) - self.bias


def units_of(x: Sequences, units: Units | None) -> dict[str, Int[Tensor, "B"]]:
    """The counts of each kind of unit in the rows, checked; tokens by default."""
    counts = {name: count.cpu() for name, count in ({"token": x.lengths} if units is None else units).items()}
    _check_units(x, counts)
    return counts


def check_test(test: str) -> None:
    """Refuse a word for the test set that is not known."""
    if test not in get_args(Test):
        raise ValueError(f"Unknown test={test!r}; known: {', '.join(get_args(Test))}.")


def _check_units(x: Sequences, units: Mapping[str, Tensor]) -> None:
    if len(x) == 0:
        raise ValueError("The test set is empty. Nothing was measured.")
    for name, count in units.items():
        if len(count) != len(x) or int(count.min()) < 0 or int(count.sum()) == 0:
            raise ValueError(
                f"units[{name!r}] must count the units of each of {len(x)} sequences, not below 0 and not all 0; it has "
                f"{len(count)} entries that sum to {int(count.sum())}. Nothing was measured."
            )


def clipped(nats: Estimate) -> Estimate:
    """No model of tokens is less than not surprised: the interval ends at 0, unless the value itself fell below."""
    return replace(nats, low=max(nats.low, min(0.0, nats.value)))


def _exp(nats: float) -> float:
    """exp, or infinity where it overflows."""
    return math.exp(nats) if nats < 709 else math.inf


def _bits(nats: float) -> float:
    return nats / math.log(2)
