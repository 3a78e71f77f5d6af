"""A small target written out: every point after every prompt, with its exact probability.

For any base and energy, neural ones included, on a space small enough to enumerate. M is the number of
prefixes of one length, K the number of points.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.exact.enumeration import count_points, enumerate_points
from esscher.space import Sequences, Space, empty_prompts
from esscher.target import Tilted

ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class Table:
    """The points of `enumerate_points`, prompt-major, with log a(x) and -E(x)."""

    space: Space
    x: Sequences
    log_base: Float[Tensor, "P K"]
    log_weight: Float[Tensor, "P K"]

    @property
    def log_z(self) -> Float[Tensor, "P"]:
        """log E_a[exp(-E(x))] after each prompt."""
        return torch.logsumexp(self.log_base + self.log_weight, -1)

    @property
    def log_prob(self) -> Float[Tensor, "P K"]:
        """log p(x) of each point."""
        return self.log_base + self.log_weight - self.log_z[:, None]

    @property
    def entropy(self) -> Float[Tensor, "P"]:
        """-E_p[log p(x)] in nats."""
        return -_mean(self.log_prob, self.log_prob)

    def expect(self, function: Callable[[Sequences], Tensor]) -> Float[Tensor, "P"]:
        """E_p[function(x)] after each prompt."""
        return _mean(self.log_prob, function(self.x).double().view(self.log_prob.shape))

    def kl(self, other: "Table") -> Float[Tensor, "P"]:
        """KL(p || other) after each prompt; infinite where the other forbids what this one allows."""
        self._comparable(other)
        return _mean(self.log_prob, self.log_prob - other.log_prob)

    def total_variation(self, other: "Table") -> Float[Tensor, "P"]:
        """Half the summed difference of probabilities."""
        self._comparable(other)
        return (self.log_prob.exp() - other.log_prob.exp()).abs().sum(-1) / 2

    def log_next(self, length: int) -> Float[Tensor, "P M V"]:
        """log p(next token | prefix) for all prefixes of `length` tokens without end symbol, in the order of their numbers.

        The number of a prefix has its tokens as digits, the first one highest, the end symbol left out of the
        count. Rows of a prefix without probability are -inf.
        """
        if not 0 <= length < self.space.max_length:
            raise ValueError(
                f"A prefix leaves room for a token: its length is from 0 to {self.space.max_length - 1}, not {length}."
            )
        total = self._log_prefix[length][..., None]
        return torch.where(total > -torch.inf, self._join(length, self._log_prefix[length + 1]) - total, -torch.inf)

    def log_probs(self, x: Sequences, prompt: Int[Tensor, "B"] | None = None) -> Float[Tensor, "B T"]:
        """log p(x_t | x_<t) of any points, where counted; `prompt` says after which prompt of the table (None: the first).

        The tilted model's own next-token probabilities: they sum to log p(x).
        """
        row = torch.zeros(len(x), dtype=torch.long) if prompt is None else prompt
        digit, number = self._digits, torch.zeros(len(x), dtype=torch.long)
        found = torch.zeros(x.tokens.shape, dtype=torch.float64)
        for t in range(min(self.space.max_length, int(x.lengths.max()) if len(x) else 0)):
            inside = x.start + t < x.stop
            column = (x.start + t).clamp(max=x.tokens.shape[1] - 1)
            token = x.tokens.gather(1, column[:, None])[:, 0]
            log_prob = self.log_next(t)[row, number, token]
            found[torch.arange(len(x))[inside], column[inside]] = log_prob[inside]
            number = torch.where(inside & (digit[token] >= 0), number * self._symbols + digit[token], number * self._symbols)
        return found

    @property
    def _symbols(self) -> int:
        return self.space.vocab_size - (self.space.eos is not None)

    @property
    def _digits(self) -> Int[Tensor, "V"]:
        """The digit of each token; -1 for the end symbol."""
        digit = torch.arange(self.space.vocab_size)
        if self.space.eos is not None:
            digit = torch.where(digit > self.space.eos, digit - 1, torch.where(digit == self.space.eos, -1, digit))
        return digit

    @cached_property
    def _log_prefix(self) -> list[Float[Tensor, "P M"]]:
        """log p of all points that begin with each prefix, by length of the prefix."""
        full = self._symbols**self.space.max_length
        masses = [self.log_prob[:, self.log_prob.shape[1] - full :]]
        for length in range(self.space.max_length - 1, -1, -1):
            masses.append(torch.logsumexp(self._join(length, masses[-1]), -1))
        return masses[::-1]

    def _join(self, length: int, longer: Float[Tensor, "P L"]) -> Float[Tensor, "P M V"]:
        """log p of each prefix and one more token: of the longer prefixes, and of the points that end there."""
        count = self._symbols**length
        onward = longer.view(len(longer), count, self._symbols)
        if self.space.eos is None:
            return onward
        first = sum(self._symbols**shorter for shorter in range(length))
        ended = self.log_prob[:, first : first + count, None]
        return torch.cat([onward[..., : self.space.eos], ended, onward[..., self.space.eos :]], -1)

    def _comparable(self, other: "Table") -> None:
        same = self.space == other.space and torch.equal(self.x.start, other.x.start)
        if not same or not torch.equal(self.x.tokens, other.x.tokens):
            raise ValueError("Two tables are compared on the same space after the same prompts. Nothing was computed.")


def tabulate(target: Tilted, prompts: Sequences | None = None, *, gradients: bool = False) -> Table:
    """Score every point after each prompt (by default one empty prompt); with `gradients`, differentiable."""
    prompts = empty_prompts(1) if prompts is None else prompts
    x = enumerate_points(target.space, prompts)
    base, weight = [], []
    with torch.set_grad_enabled(gradients and torch.is_grad_enabled()):
        for first in range(0, len(x), ROWS_AT_ONCE):
            some = x.rows(slice(first, first + ROWS_AT_ONCE))
            base.append(target.base.log_probs(some).sum(-1).double())
            weight.append(target.log_weight(some).double())
        shape = (len(prompts), count_points(target.space))
        table = Table(target.space, x, torch.cat(base).view(shape), torch.cat(weight).view(shape))
        lost = table.log_z == -math.inf
    if bool(lost.any()):
        raise ValueError(
            f"The energy forbids every point after {int(lost.sum())} of {len(prompts)} prompts, so Z is 0 there and nothing "
            f"is distributed. No table was made; look for an energy that is always +inf, or drop those prompts."
        )
    return table


def _mean(log_prob: Float[Tensor, "P K"], value: Float[Tensor, "P K"]) -> Float[Tensor, "P"]:
    """The expectation of values, those without probability left out, were they infinite."""
    possible = log_prob > -torch.inf
    return torch.where(possible, log_prob.exp() * torch.where(possible, value, 0.0), 0.0).sum(-1)
