"""Features of a translation, the point, beside its source, the prompt: length, what should be copied, what is left out.

Each reads both as decoded text. `lexicon_of` tells, from pairs alone, which words go with which: a word of the target goes with
one of the source when their Dice coefficient over the pairs, twice the pairs with both over the pairs with either, is high.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from esscher.energies.declaration import WORD
from esscher.energies.features import Feature
from esscher.energies.reading import Decode
from esscher.space import Sequences

Lexicon = Mapping[str, frozenset[str]]
NUMBER = re.compile(r"\d+")


def length_ratio(decode: Decode, *, usual: float = 1.0) -> Feature:
    """How far the number of words is from `usual` times that of the source: the absolute logarithm of their ratio."""
    return _beside(
        "length ratio", decode, lambda source, target: abs(math.log((_size(target) + 1) / (usual * _size(source) + 1)))
    )


def copied(decode: Decode) -> Feature:
    """The share of the source's numbers and names that the translation has too; 1 where there is none.

    A name is a word with a capital that does not begin the sentence.
    """
    return _beside("copied", decode, lambda source, target: _share(_lasting(source), set(WORD.findall(target))))


def coverage(decode: Decode, lexicon: Lexicon) -> Feature:
    """The share of the source's words that are in the lexicon of which a translation stands there; 1 where none is in it."""

    def judge(source: str, target: str) -> float:
        said = set(_words(target))
        known = [word for word in _words(source) if word in lexicon]
        return sum(not lexicon[word].isdisjoint(said) for word in known) / len(known) if known else 1.0

    return _beside("coverage", decode, judge)


def lexicon_of(sources: Sequence[str], targets: Sequence[str], *, least: int = 3, dice: float = 0.2) -> Lexicon:
    """For each word of at least `least` sources the words of targets whose Dice coefficient with it is at least `dice`."""
    alone, others, both = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for source, target in zip(sources, targets, strict=True):
        left, right = set(_words(source)), set(_words(target))
        alone.update(left)
        others.update(right)
        both.update((one, other) for one in left for other in right)
    found: dict[str, set[str]] = {}
    for (one, other), together in both.items():
        if alone[one] >= least and 2 * together / (alone[one] + others[other]) >= dice:
            found.setdefault(one, set()).add(other)
    return {word: frozenset(some) for word, some in found.items()}


def _beside(name: str, decode: Decode, judge: Callable[[str, str], float]) -> Feature:
    def of(x: Sequences) -> Tensor:
        rows = zip(x.tokens.tolist(), x.start.tolist(), strict=True)
        sources = decode([row[:start] for row, start in rows])
        pairs = zip(sources, decode(x.points()), strict=True)
        return torch.tensor([judge(source, target) for source, target in pairs], dtype=torch.float64)

    return Feature(name, of)


def _size(text: str) -> int:
    return len(text.split())


def _words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def _lasting(text: str) -> list[str]:
    """What a translation keeps as it is."""
    words = WORD.findall(text)
    return [*NUMBER.findall(text), *(word for word in words[1:] if word[0].isupper())]


def _share(wanted: Sequence[str], said: set[str]) -> float:
    return sum(one in said for one in wanted) / len(wanted) if wanted else 1.0
