"""Scores of declared features for one text or one list of tokens, and the files they read. Without torch.

A word is letters, digits and apostrophes, and case is ignored; n-grams of a reference do not cross an empty line. A text
without words, or with fewer than n, has share 0. Files are identified by a digest of their content; a changed one is refused.

Patterns are those of `re`, and are searched for by the package `regex`, which has a time limit and lets other threads run. Its
tables of characters are its own: combining marks belong to a word (\\w), superscripts and fractions such as ² do not.
"""

import hashlib
import os
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import regex

from esscher.energies.feature_spec import DEFAULT_N, WORD, FeatureSpec, list_words, token_numbers
from esscher.exact.counting import leading_zero_bits

PATTERN_SECONDS = 1.0  # for one pattern on one text
REGEX_ONLY = re.compile(r"\\N\{[^}]*\}|\\.|\{(?!\d*,?\d*\})|\[\^?:", re.DOTALL)  # escapes, plain braces, [:
HASHED_SUFFIXES = (".json", ".safetensors", ".bin", ".txt", ".model")


def content_digest(path: str | Path) -> str:
    """The digest of a file, or of the files of a folder that determine a classifier's scores."""
    hasher, path, folder = hashlib.blake2b(digest_size=16), Path(path), Path(path).is_dir()
    for file in sorted(file for file in path.iterdir() if file.suffix in HASHED_SUFFIXES) if folder else [path]:
        if not file.is_file():
            continue
        if folder:
            hasher.update(repr((file.name, file.stat().st_size)).encode())
        with file.open("rb") as stream:
            while piece := stream.read(2**20):
                hasher.update(piece)
    return hasher.hexdigest()


def with_digest(spec: FeatureSpec) -> FeatureSpec:
    """The declaration with the absolute path of the file it reads and its digest; unchanged if it reads none."""
    if not spec.source:
        return spec
    check_content(spec)
    path = os.path.abspath(spec.source)
    digest = spec.digest or content_digest(path)
    classifier = spec.kind == "classifier"
    return replace(spec, value=path if classifier else spec.value, file="" if classifier else path, digest=digest)


def check_content(spec: FeatureSpec) -> None:
    """Refuse a file or folder that is missing, or that changed since its digest was taken."""
    path, what = Path(spec.source), "folder" if spec.kind == "classifier" else "file"
    if not (path.is_dir() if what == "folder" else path.is_file()):
        raise FileNotFoundError(
            f"Feature {spec.title!r} reads the {what} {path}, which is not there. "
            "Nothing was computed; bring it back, or change the path."
        )
    actual = content_digest(path) if spec.digest else ""
    if actual != spec.digest:
        raise ValueError(
            f"Feature {spec.title!r} was declared with another {path}: its content had digest {spec.digest[:12]} and "
            f"now has {actual[:12]}, so weights fitted before are meaningless. Nothing was computed; restore the {what}, or "
            f"fit anew."
        )


def content(spec: FeatureSpec) -> str:
    """The value of a word list or a reference, read from its file if it has one."""
    if not spec.file:
        return spec.value
    check_content(spec)
    try:
        return Path(spec.file).read_text(encoding="utf8")
    except UnicodeDecodeError as error:
        raise ValueError(f"The file {spec.file} of feature {spec.title!r} is no text in UTF-8: {error}.") from error


def text_scorer(spec: FeatureSpec) -> Callable[[str], float]:
    """The score of a text, before any threshold; for every kind but classifiers."""
    if spec.kind in ("word-list", "ngram-overlap"):
        of_units = _unit_scorer(spec)
        return lambda text: of_units(words(text))
    value = spec.value
    if spec.kind == "matches":
        return pattern_scorer(value)
    if spec.kind == "hash":
        zero_bits = int(value)
        return lambda text: float(leading_zero_bits(text) >= zero_bits)
    scorers: dict[str, Callable[[str], float]] = {
        "contains": lambda text: float(value in text),
        "lacks": lambda text: float(value not in text),
        "count": lambda text: float(text.count(value)),
        "starts-with": lambda text: float(text.startswith(value)),
        "ends-with": lambda text: float(text.endswith(value)),
        "characters": lambda text: float(len(text)),
        "words": lambda text: float(len(text.split())),
    }
    return scorers[spec.kind]


def token_scorer(spec: FeatureSpec) -> Callable[[list[int]], float]:
    """The score of a list of tokens, for regular expressions (of the ids, separated by spaces), word lists and n-grams."""
    if spec.kind == "matches":
        of_text = pattern_scorer(spec.value)
        return lambda point: of_text(" ".join(map(str, point)))
    return _unit_scorer(spec)


class PatternTimeoutError(ValueError):
    """A pattern took longer than `PATTERN_SECONDS` on one text."""


def pattern_scorer(pattern: str) -> Callable[[str], float]:
    """1 where a regular expression of `re` is found in a text, else 0; takes `PATTERN_SECONDS` a text at most."""
    re.compile(pattern)  # `regex` knows more than `re`: what `re` refuses is refused
    compiled = regex.compile(REGEX_ONLY.sub(lambda part: _escaped(part[0]), pattern), regex.VERSION0)

    def score(text: str) -> float:
        try:
            return float(compiled.search(text, timeout=PATTERN_SECONDS) is not None)
        except TimeoutError as error:
            raise PatternTimeoutError(
                f"The pattern {pattern!r} took more than {PATTERN_SECONDS:g} s on a text of {len(text):,} characters: it "
                f"backtracks. Nothing was computed; write it without repeats inside repeats, or alternatives that overlap."
            ) from error

    return score


def _escaped(part: str) -> str:
    """What `re` reads as plain characters and `regex` does not (fuzzy matching, classes of POSIX), escaped for it."""
    if part[0] == "\\":
        return part
    return "\\{" if part == "{" else part[:-1] + "\\:"


def words(text: str) -> list[str]:
    """The words of a text, case-folded."""
    return WORD.findall(text.casefold())


def _unit_scorer(spec: FeatureSpec) -> Callable[[Sequence[Hashable]], float]:
    """The score of a sequence of words or of tokens."""
    try:
        return _word_list_scorer(spec) if spec.kind == "word-list" else _overlap_scorer(spec)
    except ValueError as error:
        if spec.file:
            raise ValueError(f"The file {spec.file} of feature {spec.title!r}: {error}") from error
        raise


def _word_list_scorer(spec: FeatureSpec) -> Callable[[Sequence[Hashable]], float]:
    parse = token_numbers if spec.reads == "tokens" else list_words
    wanted: frozenset[Hashable] = frozenset(parse(content(spec)))
    if not wanted:
        raise ValueError("there is nothing in the list.")

    def score(units: Sequence[Hashable]) -> float:
        hits = sum(unit in wanted for unit in units)
        return {"share": hits / max(1, len(units)), "presence": float(hits > 0), "count": float(hits)}[spec.measures]

    return score


def _overlap_scorer(spec: FeatureSpec) -> Callable[[Sequence[Hashable]], float]:
    n, split = spec.n or DEFAULT_N, token_numbers if spec.reads == "tokens" else words
    paragraphs = re.split(r"\n[ \t\r]*\n", content(spec))
    known = set(chain.from_iterable(_ngrams(split(paragraph), n) for paragraph in paragraphs))
    if not known:
        raise ValueError(f"the reference has no {n} words in a row, so nothing could overlap with it; use a smaller n.")

    def score(units: Sequence[Hashable]) -> float:
        ngrams = _ngrams(units, n)
        return sum(ngram in known for ngram in ngrams) / max(1, len(ngrams))

    return score


def _ngrams(units: Sequence[Hashable], n: int) -> list[tuple[Hashable, ...]]:
    return [tuple(units[first : first + n]) for first in range(len(units) - n + 1)]
