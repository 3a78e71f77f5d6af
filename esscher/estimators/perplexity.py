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
independent. Left out: the choice of units, which are numbers of words or bytes in each sequence, counted by you.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.draws import Draws
from esscher.estimate import Estimate
from esscher.estimators.intervals import Statistic, interval, log_mean
from esscher.estimators.log_z import bias_of_log_mean
from esscher.estimators.replicates import DEPENDENT, check_weights, prompt_names
from esscher.samplers.scores import log_prob, log_weight
from esscher.space import Sequences
from esscher.target import Tilted, flat

Test = Literal["sample", "fixed"]
COUNTED = "end symbols counted, prompts not"


def perplexity(
    target: Tilted,
    x: Sequences,
    *,
    draws: Draws | None = None,
    units: Mapping[str, Int[Tensor, "B"]] | None = None,
    test: Test = "sample",
    level: float = 0.95,
) -> dict[str, Estimate]:
    """Perplexity per unit, as `cross_entropy`."""
    return as_perplexity(cross_entropy(target, x, draws=draws, units=units, test=test, level=level))


def as_perplexity(nats: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Cross-entropies by unit as perplexities: exp of each."""
    return {name: value.map(_exp, unit=value.unit.removeprefix("nats ")) for name, value in nats.items()}


def cross_entropy(
    target: Tilted,
    x: Sequences,
    *,
    draws: Draws | None = None,
    units: Mapping[str, Int[Tensor, "B"]] | None = None,
    test: Test = "sample",
    level: float = 0.95,
) -> dict[str, Estimate]:
    """Nats per unit of the test sequences `x`, for each kind of unit; by default per token.

    `draws` estimate log Z for every prompt of the test set, in any order, as from `sampler(target, x.prompts(), ...)`;
    rows with equal prompts are pooled.
    """
    if test not in get_args(Test):
        raise ValueError(f"Unknown test={test!r}; known: {', '.join(get_args(Test))}.")
    units = {name: count.cpu() for name, count in ({"token": x.lengths} if units is None else units).items()}
    _check_units(x, units)
    surprise = -log_prob(target.base, x)
    if target.energy is flat:
        return {name: _of_base(surprise, count.double(), name, test, level) for name, count in units.items()}
    if draws is None:
        raise ValueError("A tilted model's perplexity needs draws that estimate log Z. Nothing was measured; pass draws=.")
    score = _Score(surprise - log_weight(target, x), *_contexts(x, draws))
    return {name: _clipped(_of_tilted(score, draws, count.double(), name, test, level)) for name, count in units.items()}


def improvement(
    target: Tilted,
    x: Sequences,
    draws: Draws,
    *,
    units: Mapping[str, Int[Tensor, "B"]] | None = None,
    test: Test = "sample",
    level: float = 0.95,
) -> dict[str, Estimate]:
    """Nats per unit that tilting saves: the cross-entropy of the base less that of the tilted model.

    The two share the test sequences, so on real text this difference is far better known than either of them.
    """
    units = {"token": x.lengths} if units is None else units
    _check_units(x, units)
    score = _Score(-log_weight(target, x), *_contexts(x, draws))
    lost = {name: _of_tilted(score, draws, count.double(), name, test, level) for name, count in units.items()}
    return {name: replace(nats, value=-nats.value, low=-nats.high, high=-nats.low) for name, nats in lost.items()}


@dataclass(frozen=True)
class _Score:
    """-log a(x) + E(x) of every test sequence, its context, and the context of every row of draws."""

    surprise: Float[Tensor, "B"]
    context: Int[Tensor, "B"]
    of_draws: Int[Tensor, "P"]

    @property
    def contexts(self) -> int:
        return int(self.of_draws.max()) + 1


def _of_base(surprise: Tensor, unit: Tensor, name: str, test: Test, level: float) -> Estimate:
    if test == "fixed":
        value = float(surprise.sum() / unit.sum())
        return Estimate.exact(value, method=f"exact, fixed test set, {COUNTED}", unit=f"nats per {name}")

    def ratio(count: Tensor) -> Tensor:
        return (count[0] * surprise).sum() / (count[0] * unit).sum()

    method = f"{len(unit)} test sequences as a sample, {COUNTED}"
    return _clipped(interval(ratio, [(1, len(unit))], level=level, draws=len(unit), method=method, unit=f"nats per {name}"))


def _of_tilted(score: _Score, draws: Draws, unit: Tensor, name: str, test: Test, level: float) -> Estimate:
    shared = score.contexts == 1
    log_z = _LogZ(draws, score, floor=(1 - level) / 2)

    def nats(sequences: Tensor, log_z: Tensor) -> Tensor:
        return (sequences * (score.surprise + log_z[score.context])).sum() / (sequences * unit).sum()

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
    return interval(statistic, sources, level=level, draws=draws.log_weight.numel(), method=method, unit=f"nats per {name}")


class _LogZ:
    """log Z of every context as a function of the counts of its draws, or of its runs where draws depend on each other.

    Every context gets as many rows of draws as the one that has fewest; a prompt that happens to be repeated gains none.
    """

    def __init__(self, draws: Draws, score: _Score, *, floor: float):
        p, n = draws.log_weight.shape
        rows = score.of_draws.bincount()
        runs = int(rows.min())
        order = score.of_draws.argsort(stable=True)
        place = torch.arange(p) - (rows.cumsum(0) - rows)[score.of_draws[order]]  # which run of its prompt
        self.log_weight = draws.log_weight.detach().double().cpu()[order[place < runs]].view(len(rows), runs * n)
        self.shape = (len(rows), runs * n if draws.independent else runs)
        self.independent = draws.independent
        self.floor, self.bias = floor, torch.zeros(len(rows), dtype=torch.float64)
        self.method = f"{runs * n} draws each" if draws.independent else f"{runs} runs of {n} dependent draws each"
        if draws.independent and len(rows) > 1:
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


def _contexts(x: Sequences, draws: Draws) -> tuple[Int[Tensor, "B"], Int[Tensor, "P"]]:
    """Numbers for the prompts of the test sequences and of the draws; the two sets of prompts must agree."""
    draws.log_z()
    check_weights(draws)
    wanted = prompt_names(x)
    given = prompt_names(draws.x.rows(slice(0, None, draws.log_weight.shape[1])))
    number = {name: place for place, name in enumerate(dict.fromkeys(given))}
    missing = [name for name in wanted if name not in number]
    unused = set(given) - set(wanted)
    if missing or unused:
        raise ValueError(
            f"{len(missing)} of {len(wanted)} test sequences have a prompt without draws, and {len(unused)} prompts have draws "
            f"but no test sequence. Nothing was measured; draw with `x.prompts()` of the test set."
        )
    return torch.tensor([number[name] for name in wanted]), torch.tensor([number[name] for name in given])


def _check_units(x: Sequences, units: Mapping[str, Tensor]) -> None:
    if len(x) == 0:
        raise ValueError("The test set is empty. Nothing was measured.")
    for name, count in units.items():
        if len(count) != len(x) or int(count.min()) < 0 or int(count.sum()) == 0:
            raise ValueError(
                f"units[{name!r}] must count the units of each of {len(x)} sequences, not below 0 and not all 0; it has "
                f"{len(count)} entries that sum to {int(count.sum())}. Nothing was measured."
            )


def _clipped(nats: Estimate) -> Estimate:
    """No model of tokens is less than not surprised: the interval ends at 0, unless the value itself fell below."""
    return replace(nats, low=max(nats.low, min(0.0, nats.value)))


def _exp(nats: float) -> float:
    """exp, or infinity where it overflows."""
    return math.exp(nats) if nats < 709 else math.inf
