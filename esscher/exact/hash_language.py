"""Strings whose hash begins with zero bits: a rule that one look at the whole string decides, and that no model of the next
symbol can learn from examples (Parshakova et al., 2019, section 4.3, on cryptographic predicates).

The hash is BLAKE2b with 8 bytes of digest, of the string in UTF-8. The process is uniform over the strings of one length that
obey; all strings are tried, so that number, entropy and the cross-entropy of any base are exact. Symbols of the alphabet are
tokens 0, 1, ...; the end symbol is the token after them, and strings of the one length end without it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.device import on_device_of
from esscher.core.space import Sequences, Space, sequences
from esscher.core.target import Base
from esscher.exact.counting import HASH_BITS, leading_zero_bits

MAX_STRINGS = 2**22  # about five seconds to try
ROWS_PER_BATCH = 8192


@dataclass(frozen=True)
class HashProcess:
    """Uniform over the strings of `length` symbols whose hash begins with `zero_bits` zero bits. Entropies are in nats."""

    zero_bits: int
    length: int = 20
    alphabet: str = "01"

    def __post_init__(self) -> None:
        if not 1 <= self.zero_bits <= HASH_BITS:
            raise ValueError(f"A hash has {HASH_BITS} bits, of which the first {self.zero_bits} cannot be asked for.")
        if self.length < 1 or len(set(self.alphabet)) < max(1, len(self.alphabet)):
            raise ValueError(f"Strings have one or more different symbols, not {self.length} of {self.alphabet!r}.")
        if len(self.alphabet) ** self.length > MAX_STRINGS:
            raise ValueError(
                f"All strings of {self.length} symbols over {self.alphabet!r} are too many to be tried (at most "
                f"{MAX_STRINGS:,}). Nothing was made; take a shorter length, such as 20 for two symbols."
            )

    @property
    def space(self) -> Space:
        return Space(len(self.alphabet) + 1, self.length, eos=len(self.alphabet))

    @cached_property
    def strings(self) -> tuple[str, ...]:
        """All strings that obey, in the order of the alphabet."""
        found = tuple(self._obeying(self.length))
        if not found:
            raise ValueError(f"No string of {self.length} symbols has a hash with {self.zero_bits} leading zero bits.")
        return found

    def _obeying(self, length: int) -> Iterator[str]:
        texts = map("".join, product(self.alphabet, repeat=length))
        return (text for text in texts if leading_zero_bits(text) >= self.zero_bits)

    @cached_property
    def points(self) -> Sequences:
        """All strings that obey, as points."""
        return self._encode(self.strings)

    @cached_property
    def shorter_points(self) -> Sequences:
        """The strings of less than `length` symbols whose hash obeys, ended: a base that ends too early may draw them."""
        return self._encode([text for length in range(self.length) for text in self._obeying(length)])

    def _encode(self, texts: Sequence[str]) -> Sequences:
        numbers = {symbol: token for token, symbol in enumerate(self.alphabet)}
        end = [len(self.alphabet)]
        return sequences([([numbers[symbol] for symbol in text] + end)[: self.length] for text in texts])

    @property
    def count(self) -> int:
        """How many strings obey."""
        return len(self.strings)

    @property
    def share(self) -> float:
        """The share of all strings that obey."""
        return self.count / len(self.alphabet) ** self.length

    @property
    def entropy(self) -> float:
        """The entropy of a string."""
        return math.log(self.count)

    @property
    def entropy_per_symbol(self) -> float:
        return self.entropy / self.length

    def cross_entropy(self, base: Base, weight: float = 0.0) -> float:
        """Exact nats per symbol of the process under a base of its space, tilted by exp(weight) where the hash obeys."""
        log_prob, log_z = _log_prob(base, self.points), 0.0
        if weight:
            obeys = log_prob.exp().sum() + _log_prob(base, self.shorter_points).exp().sum()  # probability under the base
            log_z = math.log1p(float(obeys) * math.expm1(weight))
        return (log_z - weight - float(log_prob.mean())) / self.length


@lru_cache(maxsize=4)
def hash_process(zero_bits: int, length: int = 20, alphabet: str = "01") -> HashProcess:
    """The process, whose strings are tried once, however often it is asked for."""
    return HashProcess(zero_bits, length, alphabet)


@torch.no_grad()
def _log_prob(base: Base, x: Sequences) -> Float[Tensor, "K"]:
    """log a(x) of each point."""
    batches = (x.rows(slice(first, first + ROWS_PER_BATCH)) for first in range(0, len(x), ROWS_PER_BATCH))
    empty = torch.zeros(0, dtype=torch.float64)
    return torch.cat([empty, *(base.log_probs(on_device_of(rows, base)).double().sum(-1).cpu() for rows in batches)])
