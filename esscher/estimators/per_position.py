"""Perplexity of a tilted model at each position, although its energy only scores whole sequences.

    log p(x_t | x_<t) = log a(x_t | x_<t) + R(x_<=t) - R(x_<t),        R(prefix) = log E[exp(-E(x))]

The expectation is over continuations of the prefix by the base; R of the prompt alone is log Z, R of a complete point is -E(x).
Before the last possible position R is a sum over the vocabulary, without draws. Every test sequence has draws of its own, so
sequences, or the contexts that several share, are replicates. The bias of each log mean is corrected to first order.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.bases.wrappers import Continuation, tilted_continuation
from esscher.core.device import on_device_of
from esscher.core.draws import Sampler
from esscher.core.estimate import Estimate
from esscher.core.progress import Throttle
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, point_values, refuse_foreign, unique_prompts
from esscher.core.target import Base, Tilted
from esscher.estimators.expectations import bias_of_log_mean, independent_log_weights
from esscher.estimators.intervals import interval, log_mean, raised_by_unseen
from esscher.estimators.log_z import LogZBounds, leave_one_out_bounds
from esscher.estimators.perplexity import TestSetMode, check_test, nonnegative
from esscher.samplers.ancestral import rows_at_once
from esscher.samplers.scoring import log_weight, max_rows

POINTS_AT_ONCE = 2**16  # that a sum over the vocabulary holds
UNIT = "nats per token"


@dataclass(frozen=True)
class PositionEstimates:
    """Nats per token at one position, counted from 1, over the test sequences that reach it."""

    position: int
    sequences: int
    base: Estimate
    tilted: Estimate
    reduction: Estimate  # base minus tilted
    bounds: LogZBounds


def per_position(
    target: Tilted,
    x: Sequences,
    sampler: Sampler,
    draws: int,
    *,
    enumerate_last: bool = True,
    test: TestSetMode = "sample",
    confidence: float = 0.95,
    rng: Rng,
    say: Callable[[str], None] = lambda text: None,
) -> list[PositionEstimates]:
    """Estimates at every position of the test sequences `x`, with `draws` after each of their prefixes. `enumerate_last=False`
    draws before the last position too, for large vocabularies. `say` receives lines about the progress."""
    check_test(test)
    if len(x) == 0:
        raise ValueError("The test set is empty. Nothing was measured.")
    refuse_foreign(x, target.space, "test sequences", prompt_vocab_size=target.prompt_vocab_size)
    prefixes = _Prefixes(target, x, sampler, draws, enumerate_last, log_weight(target, x), rng)
    nll = -_log_probs(target.base, x)
    context = unique_prompts(x)[1].cpu()
    lengths = x.lengths.cpu()
    work = torch.stack([(lengths > t).sum() * (target.space.max_length - t) for t in range(int(lengths.max()))]).double()
    positions, before = [], prefixes.rest(0)
    throttle = Throttle()
    for t in range(int(lengths.max())):
        after, here = prefixes.rest(t + 1), (lengths > t).nonzero()[:, 0]
        positions.append(_Position(t + 1, nll[here, t], before, after, here, context[here], test, confidence).estimates())
        before = after
        if throttle.due():
            left = throttle.seconds_left(float(work[: t + 2].sum()), float(work.sum()))
            say(f"position {t + 1} of {len(work)}  {left:,.0f} s left")
    return positions


@dataclass(frozen=True)
class _LogContinuation:
    """R of each row: exact in `known`, or from draws in the rows `drawn`."""

    known: Float[Tensor, "B"]
    drawn: Int[Tensor, "K"]
    log_weight: Float[Tensor, "K N"]

    def at(self, count: Float[Tensor, "K N"] | None = None) -> Float[Tensor, "B"]:
        """Bias-corrected log means, with each draw counted `count` times."""
        if len(self.drawn) == 0:
            return self.known
        count = torch.ones_like(self.log_weight) if count is None else count
        return self._filled(log_mean(count, self.log_weight) - bias_of_log_mean(self.log_weight))

    def raised(self) -> Float[Tensor, "B"]:
        """By how much draws that were not drawn may raise R of each row."""
        if len(self.drawn) == 0:
            return torch.zeros_like(self.known)
        return torch.zeros_like(self.known).index_put((self.drawn,), raised_by_unseen(self.log_weight, len(self.drawn)))

    def lower_and_upper(self) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
        """The bounds of the residual paper; both are equal where R is exact."""
        if len(self.drawn) == 0:
            return self.known, self.known
        lower, upper = leave_one_out_bounds(self.log_weight)
        return self._filled(lower), self._filled(upper)

    def _filled(self, values: Float[Tensor, "K"]) -> Float[Tensor, "B"]:
        return self.known.index_put((self.drawn,), values)


@dataclass(frozen=True)
class _Prefixes:
    """Prefixes of the test sequences, as prompts of their continuations."""

    target: Tilted
    x: Sequences
    sampler: Sampler
    draws: int
    enumerate_last: bool
    log_weight: Float[Tensor, "B"]
    rng: Rng

    def rest(self, length: int) -> _LogContinuation:
        """R after the first `length` tokens of every point; NaN for shorter points."""
        lengths, space = self.x.lengths.cpu(), self.target.space
        known = torch.where(lengths == length, self.log_weight, torch.nan)
        longer = (lengths > length).nonzero()[:, 0]
        none = torch.zeros(0, dtype=torch.long), torch.zeros(0, self.draws, dtype=torch.float64)
        if len(longer) == 0:
            return _LogContinuation(known, *none)
        if length == space.max_length - 1 and self.enumerate_last:
            return _LogContinuation(known.index_put((longer,), self._enumerated(longer)), *none)
        rest, prefixes = tilted_continuation(self.target, length), self._rows(longer, length)
        drawn = self.sampler(rest, prefixes, self.draws, rng=self.rng.stream("after", length))
        return _LogContinuation(known, longer, independent_log_weights(drawn, "A position"))

    def _rows(self, rows: Int[Tensor, "K"], length: int) -> Sequences:
        x = self.x.rows(rows.to(self.x.tokens.device))
        return Sequences(x.tokens, x.start + length, x.start + length).prompts()

    @torch.no_grad()
    def _enumerated(self, rows: Int[Tensor, "K"]) -> Float[Tensor, "K"]:
        """The log of the sum over the last token, a few rows at a time."""
        vocabulary, last = self.target.space.vocab_size, self.target.space.max_length - 1
        rest, sums = Continuation(self.target.base, last), []
        for part in torch.split(rows, max(1, POINTS_AT_ONCE // vocabulary)):
            prefixes = self._rows(part, last)
            log_base = rest.begin(on_device_of(prefixes, rest))[0].cpu().double()
            every = prefixes.repeat(vocabulary)
            tokens = torch.nn.functional.pad(every.tokens, (0, 1))
            place = torch.arange(len(tokens), device=tokens.device)
            tokens[place, every.start] = place % vocabulary
            whole = Sequences(tokens, every.start - last, every.start + 1)
            sums.append(torch.logsumexp(log_base + log_weight(self.target, whole).view(log_base.shape), -1))
        return torch.cat(sums)


@dataclass(frozen=True)
class _Position:
    """The rows that reach one position: -log a(x_t | x_<t), R before and after it, and the context of each row."""

    number: int
    nll: Float[Tensor, "K"]
    before: _LogContinuation
    after: _LogContinuation
    here: Int[Tensor, "K"]
    context: Int[Tensor, "K"]
    test: TestSetMode
    confidence: float

    def estimates(self) -> PositionEstimates:
        lost = self._change(self.before.at(), self.after.at())
        (low_before, high_before), (low_after, high_after) = self.before.lower_and_upper(), self.after.lower_and_upper()
        lower, upper = self._change(low_before, high_after), self._change(high_before, low_after)
        draws = f"{self.before.log_weight.shape[1]} draws after each prefix"
        how, low, high = f"{draws}, bias corrected", f"lower bound in expectation, {draws}", f"asymptotic upper bound, {draws}"
        if self._exact:
            how = low = high = "the rest summed up"
        nll, ends = self.nll, ((lower, low), (upper, high))
        if self.test == "sample":
            columns = ((nll, "base"), (nll + lost, how), (-lost, how), *((nll + end, name) for end, name in ends))
            base, tilted, reduction, *bounds = (self._over_contexts(values, method) for values, method in columns)
        else:  # all but the base share one interval, moved by constants
            base = Estimate.exact(float(nll.mean()), method="exact, fixed test set", unit=UNIT)
            change = self._over_draws(lost, f"{how}, fixed test set")
            tilted, reduction, bounds = change, change, [change, change]
            if bool(lost.isfinite().all()):
                tilted, reduction = _moved(change, base.value), -change
                moved = ((_moved(tilted, float((end - lost).mean())), f"{name}, fixed test set") for end, name in ends)
                bounds = [replace(bound, method=method) for bound, method in moved]
        tilted, base = nonnegative(tilted), nonnegative(base)
        return PositionEstimates(self.number, len(self.here), base, tilted, reduction, LogZBounds(*bounds))

    @property
    def _exact(self) -> bool:
        return len(self.before.drawn) + len(self.after.drawn) == 0

    def _change(self, before: Float[Tensor, "B"], after: Float[Tensor, "B"]) -> Float[Tensor, "K"]:
        return before[self.here] - after[self.here]

    def _over_contexts(self, values: Float[Tensor, "K"], how: str) -> Estimate:
        if not bool(values.isfinite().all()):
            return self._infinite()
        contexts, group = torch.unique(self.context, return_inverse=True)
        what, replicates, n = "contexts", len(contexts), len(values)
        if replicates < 2:
            what, replicates, group = "sequences", n, torch.arange(n)
        if n < 2:
            method = f"{how}; one sequence reaches this position, so there is no interval"
            return Estimate(float(values.mean()), -math.inf, math.inf, self.confidence, n, method, UNIT, "test sequences")

        def mean(count: Tensor) -> Tensor:
            return (count[0][group] * values).sum() / count[0][group].sum()

        method = f"{how}; {replicates} {what} as a sample"
        return interval(
            mean, [(1, replicates)], confidence=self.confidence, n=n, method=method, unit=UNIT, counted="test sequences"
        )

    def _over_draws(self, lost: Float[Tensor, "K"], method: str) -> Estimate:
        """The mean change of R over exactly these rows."""
        if not bool(lost.isfinite().all()):
            return self._infinite()
        if self._exact:
            return Estimate.exact(float(lost.mean()), method=method, unit=UNIT)
        sides = [side for side in (self.before, self.after) if len(side.drawn)]

        def mean(*counts: Tensor) -> Tensor:
            by_side = dict(zip(map(id, sides), counts, strict=True))
            before, after = (side.at(by_side.get(id(side))) for side in (self.before, self.after))
            return self._change(before, after).mean()

        shapes = [(side.log_weight.shape[0], side.log_weight.shape[1]) for side in sides]
        total = sum(side.log_weight.numel() for side in sides)
        unseen = float(self.after.raised()[self.here].mean()), float(self.before.raised()[self.here].mean())
        return interval(mean, shapes, confidence=self.confidence, n=total, method=method, unit=UNIT, unseen=unseen)

    def _infinite(self) -> Estimate:
        method = "no bound: one draw has all the weight after some prefix, or the energy forbids a test sequence"
        return Estimate(math.inf, -math.inf, math.inf, self.confidence, len(self.here), method, UNIT, "test sequences")


def _moved(estimate: Estimate, by: float) -> Estimate:
    """The estimate of a number that differs by a constant."""
    return estimate.map(lambda value: value + by)


@torch.no_grad()
def _log_probs(base: Base, x: Sequences) -> Float[Tensor, "B L"]:
    """log a(x_t | x_<t) by position in the point, 0 after its end."""
    longest, at_once = int(x.lengths.max()), min(rows_at_once(base.space), max_rows(x.tokens.shape[1]))
    parts = [on_device_of(rows, base) for rows in x.split(at_once)]
    return torch.cat([point_values(rows, base.log_probs(rows), longest).cpu().double() for rows in parts])
