"""Features of a translation (the point) and its source (the prompt), both decoded: length ratio, copied words, coverage. A
lexicon has the words of a high Dice coefficient: twice the pairs with both words over the sum of those with each."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from esscher.core.space import Sequences
from esscher.energies.feature_spec import WORD
from esscher.energies.features import Decode, Feature

Lexicon = Mapping[str, frozenset[str]]
NUMBER = re.compile(r"\d+")


def length_ratio(decode: Decode, *, usual: float = 1.0) -> Feature:
    """Absolute log ratio of the number of words to `usual` times that of the source."""

    def score(source: str, target: str) -> float:
        return abs(math.log((len(target.split()) + 1) / (usual * len(source.split()) + 1)))

    return _pair_feature("length ratio", decode, score)


def copied_words(decode: Decode) -> Feature:
    """The share of the source's numbers and names that the translation also has; 1 if there are none. A name is a capitalised
    word that does not start the sentence."""

    def score(source: str, target: str) -> float:
        names = (word for word in WORD.findall(source)[1:] if word[0].isupper())
        wanted, translated = [*NUMBER.findall(source), *names], set(WORD.findall(target))
        return sum(word in translated for word in wanted) / len(wanted) if wanted else 1.0

    return _pair_feature("copied", decode, score)


def coverage(decode: Decode, lexicon: Lexicon) -> Feature:
    """The share of the source's words in the lexicon that have a translation in the target; 1 if none is in it."""

    def score(source: str, target: str) -> float:
        translated = set(_words(target))
        known = [word for word in _words(source) if word in lexicon]
        return sum(not lexicon[word].isdisjoint(translated) for word in known) / len(known) if known else 1.0

    return _pair_feature("coverage", decode, score)


def lexicon_of(sources: Sequence[str], targets: Sequence[str], *, least: int = 3, dice: float = 0.2) -> Lexicon:
    """For each word in at least `least` sources, the target words whose Dice coefficient with it is at least `dice`."""
    in_sources, in_targets, together = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for source, target in zip(sources, targets, strict=True):
        left, right = set(_words(source)), set(_words(target))
        in_sources.update(left)
        in_targets.update(right)
        together.update((word, other) for word in left for other in right)
    lexicon: dict[str, set[str]] = {}
    for (word, other), count in together.items():
        if in_sources[word] >= least and 2 * count / (in_sources[word] + in_targets[other]) >= dice:
            lexicon.setdefault(word, set()).add(other)
    return {word: frozenset(others) for word, others in lexicon.items()}


def _pair_feature(name: str, decode: Decode, score: Callable[[str, str], float]) -> Feature:
    def of(x: Sequences) -> Tensor:
        rows = zip(x.tokens.tolist(), x.start.tolist(), strict=True)
        sources = decode([row[:start] for row, start in rows])
        pairs = zip(sources, decode(x.points()), strict=True)
        return torch.tensor([score(source, target) for source, target in pairs], dtype=torch.float64)

    return Feature(name, of)


def _words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]
