"""The processes of the paper on global autoregressive models (Parshakova et al., 2019), for any motif and alphabet.

Symbols of the alphabet are tokens 0, 1, ...; the end symbol is the token after them. The *pure* process is
uniform over the strings of one length that contain a motif. The *mixture* draws from it with probability
`mixture`, and otherwise uniformly from the strings of that length without the motif; because the two sets are
disjoint it is still one deterministic automaton.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from esscher.exact.acceptors import Acceptor, contains
from esscher.exact.automaton import Automaton, Normalised, Weighted
from esscher.exact.counting import check_motif, count_strings, process_entropy
from esscher.exact.partition import normalise
from esscher.exact.products import intersect
from esscher.exact.regular import alphabet_symbols, regular
from esscher.space import Sequences, Space, sequences


def white_noise(symbols: int, length: int) -> Automaton:
    """Uniform over the strings of `length` symbols, each followed by the end symbol; its states are positions.

    A prompt is the beginning of the string, so the longer it is the shorter the point.
    """
    if symbols < 1 or length < 1:
        raise ValueError(f"White noise needs at least one symbol and one position; got {symbols} and {length}.")
    emit = torch.full((length + 1, symbols + 1), -math.log(symbols), dtype=torch.float64)
    emit[:, -1] = -torch.inf
    emit[-1] = -torch.inf
    emit[-1, -1] = 0.0
    onward = (torch.arange(length + 1) + 1).clamp(max=length)
    return Automaton(emit, onward[:, None].repeat(1, symbols + 1), Space(symbols + 1, length + 1, eos=symbols))


@dataclass(frozen=True)
class MotifProcess:
    """Made by `motif_process`. Entropies are in nats; the end symbol counts as a symbol, and costs nothing."""

    motif: str
    length: int
    alphabet: str
    mixture: float | None

    @property
    def space(self) -> Space:
        return Space(len(self.alphabet) + 1, self.length + 1, eos=len(self.alphabet))

    @property
    def tokens(self) -> list[int]:
        """The motif as tokens."""
        return [self.alphabet.index(symbol) for symbol in self.motif]

    @property
    def acceptor(self) -> Acceptor:
        """The strings that contain the motif."""
        return contains(self.tokens, self.space.vocab_size)

    @cached_property
    def counts(self) -> tuple[int, int]:
        """How many strings contain the motif, and how many do not, as exact integers."""
        return count_strings(self.motif, self.length, self.alphabet)

    @property
    def count(self) -> int:
        """How many strings contain the motif."""
        return self.counts[0]

    @property
    def log_z(self) -> float:
        """The log of `count`: the partition function of the acceptor that gives each of its strings weight 1."""
        return math.log(self.count)

    @property
    def log_share(self) -> float:
        """The log of the share of all strings that contain the motif: log Z of white noise restricted to them."""
        return self.log_z - self.length * math.log(len(self.alphabet))

    @property
    def entropy(self) -> float:
        """Of a whole string; see `process_entropy`."""
        return process_entropy(self.counts, self.mixture)

    @property
    def entropy_per_symbol(self) -> float:
        return self.entropy / (self.length + 1)

    @cached_property
    def base(self) -> Normalised:
        """The process as a base; a prompt is the beginning of the string."""
        return normalise(intersect(white_noise(len(self.alphabet), self.length), self._judge()))

    def _judge(self) -> Weighted:
        """The weight of a whole string by whether it contains the motif: its class's share, divided by the class's size."""
        acceptor, eos = self.acceptor, len(self.alphabet)
        pure = 1.0 if self.mixture is None else self.mixture
        parts = [(1 - pure, self.counts[1]), (pure, self.counts[0])]
        weight = [math.log(share) - math.log(count) if share > 0 else -math.inf for share, count in parts]
        emit = torch.zeros(acceptor.move.shape, dtype=torch.float64)
        emit[:, eos] = torch.tensor(weight, dtype=torch.float64)[acceptor.accepting.long()]
        return Weighted(emit, acceptor.move, self.space)

    def encode(self, strings: Sequence[str]) -> Sequences:
        """Strings as points, the end symbol added."""
        return sequences([[*map(self.alphabet.index, string), len(self.alphabet)] for string in strings])

    def decode(self, x: Sequences) -> list[str]:
        """Points as strings, the end symbol left out."""
        return ["".join(self.alphabet[token] for token in point if token < len(self.alphabet)) for point in x.points()]


def motif_process(motif: str, length: int, alphabet: str = "01", mixture: float | None = None) -> MotifProcess:
    """Strings of `length` symbols that contain `motif`; with `mixture`, only that share of them does."""
    check_motif(motif, length, alphabet, mixture)
    return MotifProcess(motif, length, alphabet, mixture)


def matching_strings(pattern: str, length: int, alphabet: str = "01", *, match: str = "full") -> Normalised:
    """Uniform over the strings of `length` symbols that a regular expression matches, wholly or (`search`) somewhere."""
    noise = white_noise(len(alphabet), length)
    symbols = alphabet_symbols(alphabet, noise.space)
    return normalise(intersect(noise, regular(pattern, symbols, match=match).weighted(noise.space)))
