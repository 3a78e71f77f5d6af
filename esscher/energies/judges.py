"""What a declared feature says about one text, or about one list of tokens. Without torch.

For word lists and n-grams a word is letters, digits and apostrophes, and case does not matter; n-grams of a reference
do not cross an empty line. A point without words, or with fewer than n, has share 0.
"""

import re
from collections.abc import Callable, Hashable, Sequence
from itertools import chain

from esscher.energies.content import content
from esscher.energies.declaration import DEFAULT_N, WORD, Declared, list_words, token_numbers


def text_judge(declared: Declared) -> Callable[[str], float]:
    """The number of a text, before any threshold; for every kind but classifiers."""
    if declared.kind in ("word-list", "ngram-overlap"):
        of_units = _unit_judge(declared)
        return lambda text: of_units(words(text))
    value = declared.value
    pattern = re.compile(value) if declared.kind == "matches" else re.compile("")
    judges: dict[str, Callable[[str], float]] = {
        "contains": lambda text: float(value in text),
        "lacks": lambda text: float(value not in text),
        "count": lambda text: float(text.count(value)),
        "starts-with": lambda text: float(text.startswith(value)),
        "ends-with": lambda text: float(text.endswith(value)),
        "matches": lambda text: float(pattern.search(text) is not None),
        "characters": lambda text: float(len(text)),
        "words": lambda text: float(len(text.split())),
    }
    return judges[declared.kind]


def token_judge(declared: Declared) -> Callable[[list[int]], float]:
    """The number of a list of tokens, for the kinds that go through them one point at a time.

    A regular expression reads the numbers as text, one space between them.
    """
    if declared.kind == "matches":
        pattern = re.compile(declared.value)
        return lambda point: float(pattern.search(" ".join(map(str, point))) is not None)
    return _unit_judge(declared)


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return WORD.findall(text.casefold())


def _unit_judge(declared: Declared) -> Callable[[Sequence[Hashable]], float]:
    """The number of a sequence of words or of tokens."""
    try:
        return _listed(declared) if declared.kind == "word-list" else _overlapping(declared)
    except ValueError as error:
        if declared.file:
            raise ValueError(f"The file {declared.file} of feature {declared.title!r}: {error}") from error
        raise


def _listed(declared: Declared) -> Callable[[Sequence[Hashable]], float]:
    given = content(declared)
    wanted: frozenset[Hashable] = frozenset(token_numbers(given) if declared.reads == "tokens" else list_words(given))
    if not wanted:
        raise ValueError("there is nothing in the list.")

    def judge(units: Sequence[Hashable]) -> float:
        found = sum(unit in wanted for unit in units)
        return {"share": found / max(1, len(units)), "presence": float(found > 0), "count": float(found)}[declared.measures]

    return judge


def _overlapping(declared: Declared) -> Callable[[Sequence[Hashable]], float]:
    n, split = declared.n or DEFAULT_N, token_numbers if declared.reads == "tokens" else words
    paragraphs = re.split(r"\n[ \t\r]*\n", content(declared))
    known = set(chain.from_iterable(_grams(split(paragraph), n) for paragraph in paragraphs))
    if not known:
        raise ValueError(f"the reference has no {n} words in a row, so nothing could overlap with it; use a smaller n.")

    def judge(units: Sequence[Hashable]) -> float:
        grams = _grams(units, n)
        return sum(gram in known for gram in grams) / max(1, len(grams))

    return judge


def _grams(units: Sequence[Hashable], n: int) -> list[tuple[Hashable, ...]]:
    return [tuple(units[first : first + n]) for first in range(len(units) - n + 1)]
