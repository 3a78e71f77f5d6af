"""Exact counts of strings with and without a motif, their entropy, and zero bits of a hash; without torch, so that it imports
fast."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence

HASH_BITS = 64


def leading_zero_bits(text: str) -> int:
    """How many zero bits the BLAKE2b hash of a text begins with, at most 64."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=HASH_BITS // 8).digest()
    return HASH_BITS - int.from_bytes(digest, "big").bit_length()


def kmp_transitions(motif: Sequence[int], symbols: int) -> list[list[int]]:
    """The transition table of Knuth, Morris and Pratt (1977): `moves[state][symbol]` is the next state. In state s the longest
    suffix of the text that is a prefix of the motif has s symbols; the last state has read the motif."""
    moves: list[list[int]] = []
    fallback = 0  # the state after all but the first symbol: where a mismatch continues
    for state, symbol in enumerate(motif):
        moves.append(list(moves[fallback]) if state else [0] * symbols)
        moves[state][symbol] = state + 1
        fallback = moves[fallback][symbol] if state else 0
    return [*moves, list(moves[fallback])]


def count_strings(motif: str, length: int, alphabet: str = "01") -> tuple[int, int]:
    """How many strings of `length` symbols contain the motif, and how many do not."""
    check_motif(motif, length, alphabet)
    moves = kmp_transitions([alphabet.index(symbol) for symbol in motif], len(alphabet))[:-1]
    ways = [[(target, times) for target, times in Counter(row).items() if target < len(motif)] for row in moves]
    counts = [1] + [0] * (len(motif) - 1)  # strings without the motif by the state they lead to
    for _ in range(length):
        following = [0] * len(motif)
        for count, targets in zip(counts, ways, strict=True):
            for target, times in targets:
                following[target] += count * times
        counts = following
    return len(alphabet) ** length - sum(counts), sum(counts)


def motif_entropy(counts: tuple[int, int], mixture: float | None) -> float:
    """The entropy in nats of the uniform distribution over strings with the motif, or of its mixture with those without."""
    if mixture is None:
        return math.log(counts[0])
    parts = [(mixture, counts[0]), (1 - mixture, counts[1])]
    return sum(share * (math.log(count) - math.log(share)) for share, count in parts if share > 0)


def check_motif(motif: str, length: int, alphabet: str, mixture: float | None = None) -> None:
    """Refuse a motif that no string, or every string, can contain."""
    if not motif:
        raise ValueError("A motif needs at least one symbol: every string contains the empty one.")
    if not alphabet or len(set(alphabet)) < len(alphabet):
        raise ValueError(f"An alphabet is one or more different symbols, not {alphabet!r}.")
    foreign = sorted(set(motif) - set(alphabet))
    if foreign:
        raise ValueError(
            f"The motif {motif!r} has symbols {foreign} that are not in the alphabet {alphabet!r}; add them to it."
        )
    if len(motif) > length:
        raise ValueError(
            f"No string of {length} symbols contains the motif {motif!r}, which has {len(motif)}; give a longer length."
        )
    if mixture is not None and not 0 <= mixture <= 1:
        raise ValueError(f"The mixture is the share of strings with the motif, between 0 and 1, not {mixture}.")
    if mixture is not None and mixture < 1 and len(alphabet) == 1:
        raise ValueError(f"With the alphabet {alphabet!r} every string contains the motif {motif!r}: there is nothing to mix.")
