"""How good a base or a tilted model is on a test set: cross-entropy and perplexity per token, word or byte.

    nats per unit = sum_m -(log a(x_m) - E(x_m) - log Z(c_m)) / sum_m units_m,      perplexity = exp of it

Tokens of points count, end symbols included; prompts do not. The caller counts words or bytes (`units`). Prompts are matched by
their tokens; B is the number of test sequences, C that of different prompts, the *contexts*. With test="sample" the test set
stands for all text like it: replicates are the prompts, each with its sequences and draws, or, with one prompt for all, the
sequences and separately the draws. With test="fixed" only the draws are random (a base is then exact).

With several prompts the bias of each log Z does not average out; it is corrected to first order where draws are independent.
For fixed test sequences `bounded_cross_entropy` has the bounds of the residual paper (Deng et al., 2020), which state no rate
(`confidence` is NaN, the value is the middle), and `guaranteed_cross_entropy`, for energies with known bounds, covers at the
stated rate at any number of draws.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.draws import Draws, Sampler
from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, refuse_foreign
from esscher.core.target import Tilted, flat
from esscher.estimators.expectations import DEPENDENT, bias_of_log_mean, check_independent, require_weights
from esscher.estimators.intervals import combined, interval, log_mean, one_replicate, raised_by_unseen, ratio
from esscher.estimators.log_z import (
    Bounds,
    betting_mean_log_z,
    leave_one_out_bounds,
    log_mean_weight,
    log_z,
    log_z_std,
    weight_bounds,
)
from esscher.estimators.reliability import Reliability, StoredEstimates, Verdict, mean_reliability, reliability
from esscher.samplers.scoring import log_prob, log_weight

TestSetMode = Literal["sample", "fixed"]
Units = Mapping[str, Int[Tensor, "B"]]
"""For each kind of unit, its number in every test sequence."""

FEW_TEXTS = 10  # replicates below which an interval is mostly the quantile of its degrees of freedom
COUNTING_NOTE = "end symbols counted, prompts not"


@dataclass(frozen=True)
class SequenceScores:
    """log a(x) and -E(x) of every test sequence, its context, and the log weights of the draws after every context. All
    contexts have the same number of rows of draws, `runs`, that of the context with the fewest."""

    log_base: Float[Tensor, "B"]
    log_weight: Float[Tensor, "B"]
    context: Int[Tensor, "B"]
    drawn: Float[Tensor, "C D"]  # log weights, D = runs * draws
    runs: int
    independent: bool

    @property
    def contexts(self) -> int:
        return len(self.drawn)

    @property
    def nll(self) -> Float[Tensor, "B"]:
        """-log a(x) + E(x): the negative log-likelihood without log Z."""
        return -self.log_base - self.log_weight


def score_sequences(target: Tilted, x: Sequences, draws: Draws) -> SequenceScores:
    """Score the test sequences `x`; `draws` are of the same prompts, in any order."""
    refuse_foreign(x, target.space, "test sequences", prompt_vocab_size=target.prompt_vocab_size)
    draws.log_z()  # raises where the sampler discards its normaliser
    require_weights(draws)
    test, drawn = x.prompt_keys(), draws.prompts().prompt_keys()
    number = {key: place for place, key in enumerate(dict.fromkeys(drawn))}
    missing, unused = [key for key in test if key not in number], set(drawn) - set(test)
    if missing or unused:
        raise ValueError(
            f"{len(missing)} of {len(test)} test sequences have a prompt without draws, and {len(unused)} prompts have draws "
            f"but no test sequence. Nothing was measured; draw with `x.prompts()` of the test set."
        )
    context, of_draws = (torch.tensor([number[key] for key in keys]) for keys in (test, drawn))
    rows, order = of_draws.bincount(), of_draws.argsort(stable=True)
    runs, (p, n) = int(rows.min()), draws.log_weight.shape
    place = torch.arange(p) - (rows.cumsum(0) - rows)[of_draws[order]]  # the run of its prompt
    log_weights = draws.log_weight.detach().cpu().double()[order[place < runs]].view(len(rows), runs * n)
    return SequenceScores(log_prob(target.base, x), log_weight(target, x), context, log_weights, runs, draws.independent)


def perplexity(
    target: Tilted,
    x: Sequences,
    *,
    draws: Draws | None = None,
    units: Units | None = None,
    test: TestSetMode = "sample",
    confidence: float = 0.95,
) -> dict[str, Estimate]:
    """Perplexity per unit; arguments as for `cross_entropy`."""
    return as_perplexity(cross_entropy(target, x, draws=draws, units=units, test=test, confidence=confidence))


def as_perplexity(nats: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Perplexities from cross-entropies in nats."""
    return {
        name: value.map(lambda nats: math.exp(nats) if nats < 709 else math.inf, unit=value.unit.removeprefix("nats "))
        for name, value in nats.items()
    }


def as_bits(nats: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Cross-entropies in bits from those in nats."""
    return {
        name: value.map(lambda nats: nats / math.log(2), unit=value.unit.replace("nats", "bits", 1))
        for name, value in nats.items()
    }


def cross_entropy(
    target: Tilted,
    x: Sequences,
    *,
    draws: Draws | None = None,
    units: Units | None = None,
    test: TestSetMode = "sample",
    confidence: float = 0.95,
) -> dict[str, Estimate]:
    """Nats per unit of the test sequences `x`, for each kind in `units`; by default per token.

    `draws` estimate log Z of every prompt of the test set, in any order, as from `sampler(target, x.prompts(), ...)`; rows with
    equal prompts are pooled. A base needs none.
    """
    refuse_foreign(x, target.space, "test sequences", prompt_vocab_size=target.prompt_vocab_size)
    counts = unit_counts(x, units)
    if target.energy is flat:
        return base_cross_entropy(log_prob(target.base, x), counts, test=test, confidence=confidence)
    if draws is None:
        raise ValueError("A tilted model's perplexity needs draws that estimate log Z. Nothing was measured; pass draws=.")
    return tilted_cross_entropy(score_sequences(target, x, draws), counts, test=test, confidence=confidence)


def base_cross_entropy(
    log_base: Float[Tensor, "B"], units: Units, *, test: TestSetMode, confidence: float
) -> dict[str, Estimate]:
    """`cross_entropy` of a base, from log-probabilities of the test sequences."""
    check_test(test)
    nll, estimates = -log_base, {}
    for name, count in units.items():
        size, unit = count.double(), f"nats per {name}"
        if test == "fixed":
            method = f"exact, fixed test set, {COUNTING_NOTE}"
            estimates[name] = Estimate.exact(float(nll.sum() / size.sum()), method=method, unit=unit)
        else:
            estimates[name] = _over_texts(nll, size, unit, COUNTING_NOTE, confidence, positive=True)
    return estimates


def _over_texts(
    nats: Float[Tensor, "B"], size: Float[Tensor, "B"], unit: str, method: str, confidence: float, *, positive: bool,
    raised: float = 0.0, n: int | None = None, counted: str = "test sequences",
) -> Estimate:  # fmt: skip
    """sum(nats) / sum(size) for all texts like these; a quantity that is `positive` has its interval on the log scale. What was
    not drawn may raise it by `raised`."""
    limits, n = (0.0 if positive else -math.inf, math.inf), len(nats) if n is None else n
    if len(nats) < 2:
        value = float(nats.sum() / size.sum())
        limits = min(limits[0], value), math.inf
        return one_replicate(value, confidence=confidence, n=n, method=method, unit=unit, counted=counted, limits=limits)
    return interval(
        ratio(nats, size), [(1, len(nats))], confidence=confidence, n=n, method=f"ratio over texts, {method}", unit=unit,
        counted=counted, leverage=size, scale="positive" if positive else "linear", unseen=(0.0, raised), limits=limits,
    )  # fmt: skip


def tilted_cross_entropy(
    score: SequenceScores, units: Units, *, test: TestSetMode, bounds: Bounds | None = None, confidence: float
) -> dict[str, Estimate]:
    """`cross_entropy` of a tilted model, from scores of the test sequences; `bounds` of log weights as in `log_z`."""
    return _tilted_nats(score, score.nll, units, test, bounds, confidence, positive=True)


def cross_entropy_reduction(
    score: SequenceScores, units: Units, *, test: TestSetMode, bounds: Bounds | None = None, confidence: float
) -> dict[str, Estimate]:
    """Nats per unit by which tilting lowers the cross-entropy of the base on the same sequences."""
    nats = _tilted_nats(score, -score.log_weight, units, test, bounds, confidence, positive=False)
    return {name: -estimate for name, estimate in nats.items()}


def _tilted_nats(
    score: SequenceScores, nll: Float[Tensor, "B"], units: Units, test: TestSetMode, bounds: Bounds | None, confidence: float,
    *, positive: bool,
) -> dict[str, Estimate]:  # fmt: skip
    """(sum of `nll` and log Z of its context) / units; the replicates of log Z are draws, or runs of dependent draws."""
    check_test(test)
    contexts, each = score.drawn.shape
    runs = score.drawn.view(contexts, score.runs, -1)
    replicates = score.drawn if score.independent else torch.logsumexp(runs, -1) - math.log(runs.shape[2])
    method = f"{each} draws each" if score.independent else f"{score.runs} runs of {runs.shape[2]} dependent draws each"
    bias = bias_of_log_mean(score.drawn) if score.independent and contexts > 1 else torch.zeros(contexts, dtype=torch.float64)
    method += ", bias of each log Z corrected" if score.independent and contexts > 1 else ""
    if replicates.shape[1] < 2 and (not score.independent) and (test == "fixed" or contexts == 1):
        raise ValueError(DEPENDENT.format(p=contexts, n=each))
    prompts = "1 prompt" if contexts == 1 else f"{contexts} prompts"
    method, n = f"{len(nll)} test sequences ({test}) after {prompts}, {method}, {COUNTING_NOTE}", score.drawn.numel()
    known = log_mean(torch.ones_like(replicates), replicates) - bias
    texts = score.context.bincount(minlength=contexts).double()
    raised = raised_by_unseen(score.drawn, contexts) if score.independent else torch.zeros(contexts, dtype=torch.float64)
    total = nll + known[score.context]

    def by_context(values: Float[Tensor, "B"]) -> Float[Tensor, "C"]:
        return torch.zeros(contexts, dtype=torch.float64).index_add(0, score.context, values.double())

    def estimate(name: str, size: Float[Tensor, "B"]) -> Estimate:
        unit, up = f"nats per {name}", float(texts @ raised / size.sum())
        if test == "sample" and contexts > 1:
            above, below = by_context(total), by_context(size)
            return _over_texts(above, below, unit, method, confidence, positive=positive, raised=up, n=n, counted="draws")
        limits = (0.0 if positive else -math.inf, math.inf)
        if contexts == 1:
            factor, value = len(nll) / float(size.sum()), float(total.sum() / size.sum())
            normaliser = log_mean_weight(
                replicates[0], method=method, bounds=bounds, confidence=confidence, independent=score.independent
            )
            parts = [(factor, replace(normaliser, unit=unit))]
            if test == "sample":
                over_texts = _over_texts(total, size, unit, method, confidence, positive=positive, counted="draws")
                parts.insert(0, (1.0, over_texts))
            return combined(value, parts, n=n, method=method, limits=limits)

        def fixed(count: Float[Tensor, "C R"]) -> Tensor:
            return (nll.sum() + texts @ (log_mean(count, replicates) - bias)) / size.sum()

        return interval(
            fixed, [(contexts, replicates.shape[1])], confidence=confidence, n=n, method=method, unit=unit, unseen=(0.0, up),
            limits=limits,
        )  # fmt: skip

    return {name: estimate(name, count.double()) for name, count in units.items()}


def unit_counts(x: Sequences, units: Units | None) -> dict[str, Int[Tensor, "B"]]:
    """The number of units in each row, validated; tokens by default."""
    counts = {name: count.cpu() for name, count in ({"token": x.lengths} if units is None else units).items()}
    if len(x) == 0:
        raise ValueError("The test set is empty. Nothing was measured.")
    for name, count in counts.items():
        if len(count) != len(x) or int(count.min()) < 0 or int(count.sum()) == 0:
            raise ValueError(
                f"units[{name!r}] must count the units of each of {len(x)} sequences, not below 0 and not all 0; it has "
                f"{len(count)} entries that sum to {int(count.sum())}. Nothing was measured."
            )
    return counts


def check_test(test: str) -> None:
    """Raise unless `test` is a `TestSetMode`."""
    if test not in get_args(TestSetMode):
        raise ValueError(f"Unknown test={test!r}; known: {', '.join(get_args(TestSetMode))}.")


def nonnegative(nats: Estimate) -> Estimate:
    """Cut the interval off at 0, the least cross-entropy of tokens, unless the value itself is below."""
    return replace(nats, low=max(nats.low, min(0.0, nats.value)))


def bounded_cross_entropy(score: SequenceScores, units: Units) -> dict[str, Estimate]:
    """Nats per unit between the paper's lower and upper bound of every log Z."""
    check_independent("Leave-one-out", score.independent, score.drawn.shape[1])
    lower, upper = leave_one_out_bounds(score.drawn)
    rate = "bounds of the residual paper, in expectation and asymptotically: no stated rate"
    method = f"{rate}; {score.drawn.shape[1]} draws for each of {score.contexts} fixed prompts, {COUNTING_NOTE}"
    estimates = {}
    for name, count in units.items():
        low, high = (float((score.nll + log_z[score.context]).sum() / count.double().sum()) for log_z in (lower, upper))
        middle = (low + high) / 2
        estimates[name] = Estimate(middle, low, high, math.nan, score.drawn.numel(), method, f"nats per {name}")
    return estimates


def guaranteed_cross_entropy(
    score: SequenceScores, units: Units, *, bounds: Bounds, confidence: float = 0.95
) -> dict[str, Estimate]:
    """Nats per unit, where the log weights of all points lie within `bounds`."""
    check_independent("The guarantee", score.independent, score.drawn.shape[1], fewest=1)
    sequences = score.context.bincount(minlength=score.contexts).double()
    log_z = betting_mean_log_z(score.drawn, low=bounds[0], high=bounds[1], weights=sequences, confidence=confidence)
    method = f"{log_z.method}; fixed test set, {COUNTING_NOTE}"
    total = [float(score.nll.sum()) + len(score.nll) * end for end in (log_z.value, log_z.low, log_z.high)]
    estimates = {}
    for name, count in units.items():
        value, low, high = (nats / float(count.sum()) for nats in total)
        estimates[name] = Estimate(value, low, high, confidence, score.drawn.numel(), method, f"nats per {name}")
    return estimates


@dataclass(frozen=True)
class Measurement:
    """Cross-entropies in nats by unit (see `as_perplexity`); all fields but `base` are empty for a model without an energy.
    `bounds`, `guaranteed` and `log_z_std` need independent draws; `guaranteed` also an energy with known bounds."""

    base: Mapping[str, Estimate]
    tilted: Mapping[str, Estimate] | None = None
    reduction: Mapping[str, Estimate] | None = None  # base minus tilted, on the same sequences
    log_z: Estimate | None = None
    reliability: tuple[Reliability, ...] = ()
    draws: Draws | None = None
    bounds: Mapping[str, Estimate] | None = None
    guaranteed: Mapping[str, Estimate] | None = None
    log_z_std: Estimate | None = None  # over several prompts
    texts: int | None = None  # test sequences that stand for all like them; None: the test set is fixed

    @property
    def verdict(self) -> tuple[Verdict, str]:
        """The verdict on the intervals of the tilted model, and advice; that of a base, without draws, is good."""
        if self.draws is None:
            return "good", "no draws"
        return mean_reliability(self.reliability, self.draws.log_weight.shape[1])

    @property
    def warnings(self) -> list[str]:
        """Warnings: weights that are not reliable, and a test set too small to say much."""
        word, advice = self.verdict
        warnings = [] if word == "good" else [f"The intervals of the tilted model are {word}: {advice}"]
        if self.texts is not None and self.texts < FEW_TEXTS:
            what = "1 test sequence says nothing of others" if self.texts == 1 else f"{self.texts} test sequences are few"
            warnings.append(f"{what}: intervals for all text like it are wide, or absent. Measure on more.")
        return warnings

    def perplexities(self) -> list[dict[str, Any]]:
        """A table with a row for each model, method and unit."""
        methods = (
            ("base", "interval", self.base),
            ("tilted", "interval", self.tilted),
            ("tilted", "bounds of the paper", self.bounds),
            ("tilted", "guarantee", self.guaranteed),
        )
        return [
            {"model": model, "per": per, "method": method, "perplexity": value, "bits": as_bits(nats)[per]}
            for model, method, nats in methods
            if nats is not None
            for per, value in as_perplexity(nats).items()
        ]

    def worst(self, count: int) -> list[int]:
        """Up to `count` prompts: unreliable ones, then doubtful ones, each in ascending order of effective sample size."""
        flagged = [(row.verdict == "doubtful", row.ess, n) for n, row in enumerate(self.reliability) if row.verdict != "good"]
        return [n for *_, n in sorted(flagged)[:count]]


def measure(
    target: Tilted,
    x: Sequences,
    sampler: Sampler,
    draws: int,
    *,
    units: Units | None = None,
    bounds: Bounds | None = None,
    stored: StoredEstimates | None = None,
    test: TestSetMode = "sample",
    confidence: float = 0.95,
    rng: Rng,
) -> Measurement:
    """Measure on test sequences `x`, with `draws` for each different prompt. `bounds` bound -E(x) over all points, by default
    as the energy says; `stored` is what is known of the same prompt, to compare."""
    if target.energy is flat:
        base = cross_entropy(Tilted(target.base), x, units=units, test=test, confidence=confidence)
        return Measurement(base, texts=len(x) if test == "sample" else None)
    first = torch.tensor(list({key: row for row, key in reversed(list(enumerate(x.prompt_keys())))}.values()))
    drawn = sampler(target, x.prompts().rows(first), draws, rng=rng)
    return measure_with_draws(drawn, target, x, units=units, bounds=bounds, stored=stored, test=test, confidence=confidence)


def measure_with_draws(
    drawn: Draws,
    target: Tilted,
    x: Sequences,
    *,
    units: Units | None = None,
    bounds: Bounds | None = None,
    stored: StoredEstimates | None = None,
    test: TestSetMode = "sample",
    confidence: float = 0.95,
) -> Measurement:
    """`measure` with existing draws of each different prompt of `x`."""
    counts, score = unit_counts(x, units), score_sequences(target, x, drawn)
    bounds = weight_bounds(drawn, target.energy) if bounds is None else bounds
    several, enough = score.contexts > 1, drawn.independent and drawn.log_weight.shape[1] > 1
    return Measurement(
        base=base_cross_entropy(score.log_base, counts, test=test, confidence=confidence),
        tilted=tilted_cross_entropy(score, counts, test=test, bounds=bounds, confidence=confidence),
        reduction=cross_entropy_reduction(score, counts, test=test, bounds=bounds, confidence=confidence),
        log_z=log_z(drawn, prompts=test if several else "same", bounds=bounds, confidence=confidence),
        reliability=tuple(reliability(drawn, energy=target.energy, bounds=bounds, stored=stored)),
        texts=score.contexts if several and test == "sample" else len(x) if test == "sample" else None,
        draws=drawn,
        bounds=bounded_cross_entropy(score, counts) if enough else None,
        guaranteed=guaranteed_cross_entropy(score, counts, bounds=bounds, confidence=confidence) if enough and bounds else None,
        log_z_std=log_z_std(drawn, confidence=confidence) if enough and several else None,
    )
