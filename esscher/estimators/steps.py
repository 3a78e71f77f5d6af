"""Perplexity at each position: what a tilted model, which only scores whole sequences, says of the next token.

    log p(x_t | x_<t) = log a(x_t | x_<t) + R(x_<=t) - R(x_<t),        R(prefix) = log E[exp(-E(x))]

The expectation is over the rest of the point, drawn from the base after the prefix; R of the prompt alone is log Z, R of the
whole point is -E(x) itself. One set of draws for each prefix serves twice, as what follows one step and what precedes the
next. Before the last possible position nothing need be drawn: R is a sum over the vocabulary.

Every test sequence has draws of its own, even where prompts agree, so that sequences, or the contexts that some share, are
replicates. The bias of each log mean is corrected to first order. A position is told of the sequences that reach it.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.bases.continued import Continued, rest_of
from esscher.draws import Sampler
from esscher.estimate import Estimate
from esscher.estimators.intervals import interval, log_mean
from esscher.estimators.log_z import Bounds, bias_of_log_mean, lower_and_upper
from esscher.estimators.perplexity import Test, check_test, clipped
from esscher.estimators.replicates import check_weights
from esscher.randomness import Rng
from esscher.samplers.ancestral import rows_at_once
from esscher.samplers.scores import log_weight, rows_of
from esscher.space import Sequences, by_position, distinct_prompts, refuse_foreign
from esscher.target import Base, Tilted

PAUSE = 10.0  # seconds between two words about progress
POINTS_AT_ONCE = 2**16  # that a sum over the vocabulary holds
UNIT = "nats per token"


@dataclass(frozen=True)
class Step:
    """Nats per token at one position, counted from 1, over the test sequences that reach it; `saved` is base less tilted."""

    position: int
    sequences: int
    base: Estimate
    tilted: Estimate
    saved: Estimate
    bounds: Bounds


def per_step(
    target: Tilted,
    x: Sequences,
    sampler: Sampler,
    draws: int,
    *,
    enumerate_last: bool = True,
    test: Test = "sample",
    level: float = 0.95,
    rng: Rng,
    say: Callable[[str], None] = lambda text: None,
) -> list[Step]:
    """Every position of the test sequences `x`, with `draws` after each of their prefixes.

    `enumerate_last=False` draws before the last position too, where the vocabulary is too large to score every token.
    """
    check_test(test)
    if len(x) == 0:
        raise ValueError("The test set is empty. Nothing was measured.")
    refuse_foreign(x, target.space, "test sequences")
    prefixes = _Prefixes(target, x, sampler, draws, enumerate_last, log_weight(target, x), rng)
    surprise, context = -_log_probs(target.base, x), distinct_prompts(x)[1].cpu()
    lengths = x.lengths.cpu()
    work = torch.stack([(lengths > t).sum() * (target.space.max_length - t) for t in range(int(lengths.max()))]).double()
    found, before = [], prefixes.rest(0)
    started = spoken = time.monotonic()
    for t in range(int(lengths.max())):
        after, here = prefixes.rest(t + 1), (lengths > t).nonzero()[:, 0]
        found.append(_Position(t + 1, surprise[here, t], before, after, here, context[here], test, level).step())
        before, now = after, time.monotonic()
        if now - spoken > PAUSE:
            spoken, done = now, float(work[: t + 2].sum())
            left = (now - started) / done * (float(work.sum()) - done)
            say(f"position {t + 1} of {len(work)}  {left:,.0f} s left")
    return found


@dataclass(frozen=True)
class _Rest:
    """R of some rows: exact where `known`, and by draws in the rows `drawn`."""

    known: Float[Tensor, "B"]
    drawn: Int[Tensor, "K"]
    log_weight: Float[Tensor, "K N"]

    def at(self, count: Float[Tensor, "K N"] | None = None, *, floor: float = 0.0) -> Float[Tensor, "B"]:
        """The log means, each draw counted as told, with their bias taken off."""
        if len(self.drawn) == 0:
            return self.known
        count = torch.ones_like(self.log_weight) if count is None else count
        return self._filled(log_mean(count, self.log_weight, floor=floor) - bias_of_log_mean(self.log_weight))

    def lower_and_upper(self) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
        """The bounds of the residual paper; what is known is both."""
        if len(self.drawn) == 0:
            return self.known, self.known
        lower, upper = lower_and_upper(self.log_weight)
        return self._filled(lower), self._filled(upper)

    def _filled(self, found: Float[Tensor, "K"]) -> Float[Tensor, "B"]:
        return self.known.index_put((self.drawn,), found)


@dataclass(frozen=True)
class _Prefixes:
    """The first tokens of the test sequences, as prompts of what may follow."""

    target: Tilted
    x: Sequences
    sampler: Sampler
    draws: int
    enumerate_last: bool
    log_weight: Float[Tensor, "B"]
    rng: Rng

    def rest(self, length: int) -> _Rest:
        """R after `length` tokens of every point that has as many, NaN for shorter ones."""
        lengths, space = self.x.lengths.cpu(), self.target.space
        known = torch.where(lengths == length, self.log_weight, torch.nan)
        going_on = (lengths > length).nonzero()[:, 0]
        none = torch.zeros(0, dtype=torch.long), torch.zeros(0, self.draws, dtype=torch.float64)
        if len(going_on) == 0:
            return _Rest(known, *none)
        if length == space.max_length - 1 and self.enumerate_last:
            return _Rest(known.index_put((going_on,), self._enumerated(going_on)), *none)
        rest, prefixes = rest_of(self.target, length), self._rows(going_on, length)
        drawn = self.sampler(rest, prefixes, self.draws, rng=self.rng.stream("after", length))
        drawn.log_z()
        check_weights(drawn)
        if not drawn.independent or drawn.log_weight.shape[1] < 2:
            raise ValueError("A step needs 2 or more independent draws of each prefix. Nothing was measured; use Importance.")
        return _Rest(known, going_on, drawn.log_weight.detach().double().cpu())

    def _rows(self, rows: Int[Tensor, "K"], length: int) -> Sequences:
        some = self.x.rows(rows.to(self.x.tokens.device))
        return Sequences(some.tokens, some.start + length, some.start + length).prompts()

    @torch.no_grad()
    def _enumerated(self, rows: Int[Tensor, "K"]) -> Float[Tensor, "K"]:
        """The log of the sum over the last token, some rows at a time."""
        vocabulary, last = self.target.space.vocab_size, self.target.space.max_length - 1
        rest, found = Continued(self.target.base, last), []
        for some in torch.split(rows, max(1, POINTS_AT_ONCE // vocabulary)):
            prefixes = self._rows(some, last)
            log_base = rest.begin(prefixes)[0].double().cpu()
            every = prefixes.repeat(vocabulary)
            tokens = torch.nn.functional.pad(every.tokens, (0, 1))
            place = torch.arange(len(tokens), device=tokens.device)
            tokens[place, every.start] = place % vocabulary
            whole = Sequences(tokens, every.start - last, every.start + 1)
            found.append(torch.logsumexp(log_base + log_weight(self.target, whole).view(log_base.shape), -1))
        return torch.cat(found)


@dataclass(frozen=True)
class _Position:
    """The rows that reach one position: -log a(x_t | x_<t), R before and after it, and whose replicate each row is."""

    number: int
    surprise: Float[Tensor, "K"]
    before: _Rest
    after: _Rest
    here: Int[Tensor, "K"]
    context: Int[Tensor, "K"]
    test: Test
    level: float

    def step(self) -> Step:
        lost = self._change(self.before.at(), self.after.at())
        (low_before, high_before), (low_after, high_after) = self.before.lower_and_upper(), self.after.lower_and_upper()
        lower, upper = self._change(low_before, high_after), self._change(high_before, low_after)
        found = self._of_a_sample(lost, lower, upper) if self.test == "sample" else self._of_these(lost, lower, upper)
        base, tilted, saved, low, high = found
        return Step(self.number, len(self.here), clipped(base), clipped(tilted), saved, Bounds(low, high))

    @property
    def _exact(self) -> bool:
        return len(self.before.drawn) + len(self.after.drawn) == 0

    @property
    def _methods(self) -> tuple[str, str, str]:
        """Of the value and of its two bounds."""
        if self._exact:
            return ("the rest summed up",) * 3
        draws = f"{self.before.log_weight.shape[1]} draws after each prefix"
        return f"{draws}, bias corrected", f"lower bound in expectation, {draws}", f"asymptotic upper bound, {draws}"

    def _of_a_sample(self, lost: Tensor, lower: Tensor, upper: Tensor) -> list[Estimate]:
        """Base, tilted, saved and the bounds, with the contexts as replicates."""
        how, low, high = self._methods
        own = self.surprise
        columns = ((own, "base"), (own + lost, how), (-lost, how), (own + lower, low), (own + upper, high))
        return [self._over_contexts(values, method) for values, method in columns]

    def _of_these(self, lost: Tensor, lower: Tensor, upper: Tensor) -> list[Estimate]:
        """The same for just these sequences: all but the base share one interval, moved by constants."""
        how, low, high = self._methods
        base = Estimate.exact(float(self.surprise.mean()), method="exact, fixed test set", unit=UNIT)
        if not bool(lost.isfinite().all()):
            return [base, *([self._infinite()] * 4)]
        exact = Estimate.exact(float(lost.mean()), method=f"{how}, fixed test set", unit=UNIT)
        own = exact if self._exact else self._over_draws(how)
        tilted = _moved(own, base.value)
        saved = replace(own, value=-own.value, low=-own.high, high=-own.low)
        bounds = [_moved(tilted, float((end - lost).mean()), name) for end, name in ((lower, low), (upper, high))]
        return [base, tilted, saved, *bounds]

    def _change(self, before: Float[Tensor, "B"], after: Float[Tensor, "B"]) -> Float[Tensor, "K"]:
        return before[self.here] - after[self.here]

    def _over_contexts(self, values: Float[Tensor, "K"], how: str) -> Estimate:
        if not bool(values.isfinite().all()):
            return self._infinite()
        names, group = torch.unique(self.context, return_inverse=True)
        what = "contexts" if len(names) > 1 else "sequences"
        replicates, group = (len(names), group) if len(names) > 1 else (len(values), torch.arange(len(values)))
        value = float(values.mean())
        if replicates < 2:
            method = f"{how}; one sequence reaches this position, so there is no interval"
            return Estimate(value, -math.inf, math.inf, self.level, len(values), method, UNIT)

        def mean(count: Tensor) -> Tensor:
            return (count[0][group] * values).sum() / count[0][group].sum()

        method = f"{how}; {replicates} {what} as a sample"
        return interval(mean, [(1, replicates)], level=self.level, draws=len(values), method=method, unit=UNIT)

    def _over_draws(self, how: str) -> Estimate:
        """What the rest adds, as a mean over just these rows."""
        sides = [side for side in (self.before, self.after) if len(side.drawn)]
        floor = (1 - self.level) / 2

        def mean(*counts: Tensor) -> Tensor:
            given = dict(zip(map(id, sides), counts, strict=True))
            before, after = (side.at(given.get(id(side)), floor=floor) for side in (self.before, self.after))
            return self._change(before, after).mean()

        shapes = [(side.log_weight.shape[0], side.log_weight.shape[1]) for side in sides]
        total = sum(side.log_weight.numel() for side in sides)
        return interval(mean, shapes, level=self.level, draws=total, method=f"{how}, fixed test set", unit=UNIT)

    def _infinite(self) -> Estimate:
        method = "no bound: one draw has all the weight after some prefix, or the energy forbids a test sequence"
        return Estimate(math.inf, -math.inf, math.inf, self.level, len(self.here), method, UNIT)


def _moved(found: Estimate, by: float, method: str | None = None) -> Estimate:
    """The same interval for a number that differs by a constant."""
    method = found.method if method is None else f"{method}, fixed test set"
    return replace(found, value=found.value + by, low=found.low + by, high=found.high + by, method=method)


@torch.no_grad()
def _log_probs(base: Base, x: Sequences) -> Float[Tensor, "B L"]:
    """log a(x_t | x_<t) by position in the point, 0 after its end."""
    longest, at_once = int(x.lengths.max()), min(rows_at_once(base.space), rows_of(x.tokens.shape[1]))
    return torch.cat([by_position(rows, base.log_probs(rows).double(), longest).cpu() for rows in x.split(at_once)])
