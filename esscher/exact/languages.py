"""Exact string distributions: white noise, regular expressions, and the motif processes of Parshakova et al. (2019).

Symbols of the alphabet are tokens 0, 1, ...; the end symbol is the token after them. The *pure* motif process is uniform over
the strings of one length that contain the motif. The *mixture* draws from it with probability `mixture`, and otherwise
uniformly from the strings of that length without the motif.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from esscher.core.space import Sequences, Space, sequences
from esscher.exact.acceptors import Acceptor, alphabet_symbols, contains, regex_acceptor
from esscher.exact.automaton import Automaton, NormalisedAutomaton, WeightedAutomaton, intersect
from esscher.exact.counting import check_motif, count_strings, motif_entropy
from esscher.exact.dynamic_programming import normalise


def white_noise(symbols: int, length: int) -> Automaton:
    """Uniform over the strings of `length` symbols, followed by the end symbol; a prompt is the beginning of the string."""
    if symbols < 1 or length < 1:
        raise ValueError(f"White noise needs at least one symbol and one position; got {symbols} and {length}.")
    log_emission = torch.full((length + 1, symbols + 1), -math.log(symbols), dtype=torch.float64)
    log_emission[:, -1] = -torch.inf
    log_emission[-1] = -torch.inf
    log_emission[-1, -1] = 0.0
    next_position = (torch.arange(length + 1) + 1).clamp(max=length)
    return Automaton(log_emission, next_position[:, None].repeat(1, symbols + 1), Space(symbols + 1, length + 1, eos=symbols))


@dataclass(frozen=True)
class MotifProcess:
    """A motif process, made by `motif_process`. Entropies are in nats; the end symbol is counted as a symbol."""

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
        """The log of `count`: the partition function if every string with the motif has weight 1."""
        return math.log(self.count)

    @property
    def log_share(self) -> float:
        """The log of the share of strings that contain the motif: log Z of white noise restricted to them."""
        return self.log_z - self.length * math.log(len(self.alphabet))

    @property
    def entropy(self) -> float:
        """The entropy of a string; see `motif_entropy`."""
        return motif_entropy(self.counts, self.mixture)

    @property
    def entropy_per_symbol(self) -> float:
        return self.entropy / (self.length + 1)

    @cached_property
    def base(self) -> NormalisedAutomaton:
        """The process as a base; a prompt is the beginning of the string."""
        acceptor, pure = self.acceptor, 1.0 if self.mixture is None else self.mixture
        parts = [(1 - pure, self.counts[1]), (pure, self.counts[0])]
        weight = [math.log(share) - math.log(count) if share > 0 else -math.inf for share, count in parts]  # of a string
        log_emission = torch.zeros(acceptor.next_state.shape, dtype=torch.float64)
        log_emission[:, self.space.eos] = torch.tensor(weight, dtype=torch.float64)[acceptor.accepting.long()]
        weights = WeightedAutomaton(log_emission, acceptor.next_state, self.space)
        return normalise(intersect(white_noise(len(self.alphabet), self.length), weights))

    def encode(self, strings: Sequence[str]) -> Sequences:
        """Strings as points, the end symbol added."""
        return sequences([[*map(self.alphabet.index, string), len(self.alphabet)] for string in strings])

    def decode(self, x: Sequences) -> list[str]:
        """Points as strings, the end symbol left out."""
        return ["".join(self.alphabet[token] for token in point if token < len(self.alphabet)) for point in x.points()]


def motif_process(motif: str, length: int, alphabet: str = "01", mixture: float | None = None) -> MotifProcess:
    """The process of strings of `length` symbols that contain `motif`; with `mixture`, with that probability only."""
    check_motif(motif, length, alphabet, mixture)
    return MotifProcess(motif, length, alphabet, mixture)


def matching_strings(pattern: str, length: int, alphabet: str = "01", *, match: str = "full") -> NormalisedAutomaton:
    """Uniform over the strings of `length` symbols that match a regular expression, wholly or (`search`) somewhere."""
    noise = white_noise(len(alphabet), length)
    symbols = alphabet_symbols(alphabet, noise.space)
    return normalise(intersect(noise, regex_acceptor(pattern, symbols, match=match).to_weighted_automaton(noise.space)))
