"""Every point of a small space, and the exact probability of each under any tilted model, neural ones included. K is the number
of points after a prompt, M the number of prefixes of one length."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.device import on_device_of
from esscher.core.draws import BYTES_PER_NUMBER, gigabytes, short_number
from esscher.core.space import Sequences, Space, empty_prompts
from esscher.core.target import Tilted

MAX_ROWS = 2**20
ROWS_PER_BATCH = 8192
LARGEST_POWER = 10_000  # bits of a number of points that is still counted


def count_points(space: Space) -> int:
    """The number of points of a space."""
    if space.eos is None:
        return space.vocab_size**space.max_length
    return sum((space.vocab_size - 1) ** length for length in range(space.max_length + 1))


def enumerate_points(space: Space, prompts: Sequences | None = None) -> Sequences:
    """All points after each prompt (by default one empty prompt), prompt-major, in the same order for each: first those with an
    end symbol, by length; then those of `max_length` tokens without one."""
    prompts = empty_prompts(1) if prompts is None else prompts
    refuse_large(space, len(prompts))
    count = count_points(space)
    device = prompts.tokens.device
    points, lengths = (part.to(device) for part in _all_points(space))
    rows = prompts.repeat(count)
    width = int(prompts.start.max()) + space.max_length
    tokens = torch.nn.functional.pad(rows.tokens, (0, width - rows.tokens.shape[1]))
    points, lengths = points.repeat(len(prompts), 1), lengths.repeat(len(prompts))
    position = torch.arange(space.max_length, device=device)
    row, column = (position < lengths[:, None]).nonzero(as_tuple=True)
    tokens[row, rows.start[row] + column] = points[row, column]
    return Sequences(tokens, rows.start, rows.start + lengths)


def refuse_large(space: Space, prompts: int = 1) -> None:
    """Refuse to enumerate more than `MAX_ROWS` sequences, with what all would cost."""
    symbols = max(1, space.vocab_size - (space.eos is not None))
    countable = space.max_length * math.log2(symbols) < LARGEST_POWER
    rows = count_points(space) * prompts if countable else 0
    if countable and rows <= MAX_ROWS:
        return
    count = short_number(rows) if countable else f"about 10^{space.max_length * math.log10(symbols):.0f}"
    cost = gigabytes(rows * space.max_length * BYTES_PER_NUMBER) if countable else "more memory than there is"
    raise ValueError(
        f"All points after {prompts} prompts are {count} sequences of up to {space.max_length:,} tokens, {cost}; enumeration "
        f"stops at {MAX_ROWS:,}. Nothing was enumerated; use fewer prompts, a shorter max_length, or an automaton "
        f"(`esscher.exact.automaton`)."
    )


def _all_points(space: Space) -> tuple[Int[Tensor, "K L"], Int[Tensor, "K"]]:
    """The tokens of all points, padded, and their lengths."""
    symbols = torch.tensor([v for v in range(space.vocab_size) if v != space.eos], dtype=torch.long)
    ended = range(space.max_length) if space.eos is not None else ()
    blocks, lengths = [], []
    for length in [*ended, space.max_length]:
        number = torch.arange(len(symbols) ** length)[:, None]
        digits = number // len(symbols) ** torch.arange(length - 1, -1, -1) % max(len(symbols), 1)
        words = torch.zeros(len(number), space.max_length, dtype=torch.long)
        words[:, :length] = symbols[digits]
        if length < space.max_length:
            words[:, length] = space.eos if space.eos is not None else 0
        blocks.append(words)
        lengths.append(torch.full((len(number),), min(length + 1, space.max_length)))
    return torch.cat(blocks), torch.cat(lengths)


@dataclass(frozen=True)
class ExactTable:
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

    def kl(self, other: "ExactTable") -> Float[Tensor, "P"]:
        """KL(p || other) after each prompt; infinite where the other forbids what this one allows."""
        self._check_comparable(other)
        return _mean(self.log_prob, self.log_prob - other.log_prob)

    def total_variation(self, other: "ExactTable") -> Float[Tensor, "P"]:
        """Half the summed difference of probabilities."""
        self._check_comparable(other)
        return (self.log_prob.exp() - other.log_prob.exp()).abs().sum(-1) / 2

    def log_next(self, length: int) -> Float[Tensor, "P M V"]:
        """log p(next token | prefix) for all prefixes of `length` tokens, in lexicographic order; -inf where p(prefix) = 0."""
        if not 0 <= length < self.space.max_length:
            raise ValueError(
                f"A prefix leaves room for a token: its length is from 0 to {self.space.max_length - 1}, not {length}."
            )
        total = self._log_prefix[length][..., None]
        return torch.where(total > -torch.inf, self._join(length, self._log_prefix[length + 1]) - total, -torch.inf)

    def log_probs(self, x: Sequences, prompt: Int[Tensor, "B"] | None = None) -> Float[Tensor, "B T"]:
        """The tilted model's log p(x_t | x_<t); `prompt` is the index of each row's prompt (None: the first)."""
        row = torch.zeros(len(x), dtype=torch.long) if prompt is None else prompt
        digit, number = self._digits, torch.zeros(len(x), dtype=torch.long)
        log_probs = torch.zeros(x.tokens.shape, dtype=torch.float64)
        for t in range(min(self.space.max_length, int(x.lengths.max()) if len(x) else 0)):
            inside = x.start + t < x.stop
            column = (x.start + t).clamp(max=x.tokens.shape[1] - 1)
            token = x.tokens.gather(1, column[:, None])[:, 0]
            log_prob = self.log_next(t)[row, number, token]
            log_probs[torch.arange(len(x))[inside], column[inside]] = log_prob[inside]
            number = torch.where(inside & (digit[token] >= 0), number * self._symbols + digit[token], number * self._symbols)
        return log_probs

    @property
    def _symbols(self) -> int:
        return self.space.vocab_size - (self.space.eos is not None)

    @property
    def _digits(self) -> Int[Tensor, "V"]:
        """The digit of each token in the index of a prefix; -1 for the end symbol."""
        token, eos = torch.arange(self.space.vocab_size), self.space.eos
        return token if eos is None else torch.where(token == eos, -1, token - (token > eos).long())

    @cached_property
    def _log_prefix(self) -> list[Float[Tensor, "P M"]]:
        """log p of all points with each prefix, by length of the prefix."""
        full = self._symbols**self.space.max_length
        masses = [self.log_prob[:, self.log_prob.shape[1] - full :]]
        for length in range(self.space.max_length - 1, -1, -1):
            masses.append(torch.logsumexp(self._join(length, masses[-1]), -1))
        return masses[::-1]

    def _join(self, length: int, longer: Float[Tensor, "P L"]) -> Float[Tensor, "P M V"]:
        """log p of each prefix followed by each token: longer prefixes, and points that end there."""
        count = self._symbols**length
        by_symbol = longer.view(len(longer), count, self._symbols)
        if self.space.eos is None:
            return by_symbol
        first = sum(self._symbols**shorter for shorter in range(length))
        ended = self.log_prob[:, first : first + count, None]
        return torch.cat([by_symbol[..., : self.space.eos], ended, by_symbol[..., self.space.eos :]], -1)

    def _check_comparable(self, other: "ExactTable") -> None:
        same = self.space == other.space and torch.equal(self.x.start, other.x.start)
        if not same or not torch.equal(self.x.tokens, other.x.tokens):
            raise ValueError("Only tables over the same space and the same prompts can be compared. Nothing was computed.")


def tabulate(target: Tilted, prompts: Sequences | None = None, *, gradients: bool = False) -> ExactTable:
    """Score every point after each prompt (by default one empty prompt), in float64 on the CPU; with `gradients`,
    differentiable."""
    x, count = enumerate_points(target.space, prompts).to("cpu"), count_points(target.space)
    log_base, log_weight = [], []
    with torch.set_grad_enabled(gradients and torch.is_grad_enabled()):
        for first in range(0, len(x), ROWS_PER_BATCH):
            batch = on_device_of(x.rows(slice(first, first + ROWS_PER_BATCH)), target)
            log_base.append(target.base.log_probs(batch).sum(-1).cpu().double())
            log_weight.append(target.log_weight(batch).cpu().double())
        table = ExactTable(target.space, x, torch.cat(log_base).view(-1, count), torch.cat(log_weight).view(-1, count))
        empty = table.log_z == -math.inf
    if bool(empty.any()):
        raise ValueError(
            f"The energy forbids every point after {int(empty.sum())} of {len(empty)} prompts, so Z is 0 there. No table was "
            f"made; look for an energy that is always +inf, or drop those prompts."
        )
    return table


def _mean(log_prob: Float[Tensor, "P K"], value: Float[Tensor, "P K"]) -> Float[Tensor, "P"]:
    """The expectation of values; points of probability 0 are left out, even with infinite values."""
    possible = log_prob > -torch.inf
    return torch.where(possible, log_prob.exp() * torch.where(possible, value, 0.0), 0.0).sum(-1)
