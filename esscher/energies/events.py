"""Events of sequences with a score that leads to them: an event happens where the score is at least the threshold.

A score is known for every prefix, so that a sampler sees how near a sequence has come before it ends. Where the event is a
yes or no, the score grades it: the longest beginning of a string that is found, or of a pattern, element by element. A feature
that is a number is its own score. What cannot be graded has two values, and only direct draws measure its probability.
Letters as in `esscher.samplers.splitting`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.space import Sequences, Space, sequences
from esscher.energies.declared_features import feature_from_spec
from esscher.energies.event_acceptors import event_acceptor, top_level
from esscher.energies.event_spec import INDICES, EventSpec, parse_event
from esscher.energies.feature_spec import FeatureSpec
from esscher.energies.features import Decode, TextFunction, TokenFunction
from esscher.energies.text_scorers import pattern_scorer
from esscher.exact.acceptors import Acceptor

PREFIXES_AT_ONCE = 4096
CACHED_TEXTS = 2**16
CLASSIFIER_PREFIXES = 8  # prefixes of a sequence that a classifier scores
MAX_ALTERNATIVES = 64  # of a pattern, by which it is graded
SYLLABLES = ("flesch_kincaid", "flesch", "smog", "fog")  # indices that count syllables by a dictionary

TextEvent = Callable[[str], float]
"""A function of a text: True or False, or a number that is 1 or more where the event happens."""


@dataclass(frozen=True)
class Event:
    """A name, the score of whole sequences, the threshold, and how many tokens lie between two prefixes that are scored; and
    what makes an acceptor of the points for which the event happens, or None where there is no small one."""

    name: str
    score: Callable[[Sequences], Tensor]
    threshold: float
    stride: int = 1
    acceptor: Callable[[Space], Acceptor | None] = lambda space: None

    def scores(self, x: Sequences) -> Float[Tensor, "B L"]:
        """The scores of the first 1, 2, ... tokens of each point, and from its end on that of the whole; -inf where a prefix is
        not scored. Equal prefixes are scored once."""
        lengths = x.lengths.cpu()
        width = max(1, int(lengths.max())) if len(x) else 1
        table = torch.full((len(x), width), -torch.inf, dtype=torch.float64)
        for (row, position), values in _prefix_scores(self.score, x, lengths, self.stride):
            table[row, position] = values
        last = (lengths - 1).clamp(min=0)
        whole = table.gather(1, last[:, None])
        return torch.where(torch.arange(width) >= last[:, None], whole, table)


def _prefix_scores(score: Callable[[Sequences], Tensor], x: Sequences, lengths: Tensor, stride: int) -> Any:
    """Rows and positions of prefixes, with their scores; each different prefix is scored once, many together."""
    prompts, points = x.prompt_keys(), x.points()
    places: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[list[int], list[int]]] = {}
    for row, point in enumerate(points):
        ends = {*range(stride, len(point) + 1, stride), len(point)}
        for end in ends:
            rows, positions = places.setdefault((prompts[row], tuple(point[:end])), ([], []))
            rows.append(row)
            positions.append(max(0, end - 1))
    keys = list(places)
    for first in range(0, len(keys), PREFIXES_AT_ONCE):
        some = keys[first : first + PREFIXES_AT_ONCE]
        values = score(sequences([list(point) for _, point in some], [list(prompt) for prompt, _ in some])).cpu().double()
        if bool(values.isnan().any()):
            raise ValueError("The score of the event is not a number for some text. Nothing was kept; correct the function.")
        counts = torch.tensor([len(places[key][0]) for key in some])
        row_index = torch.tensor([row for key in some for row in places[key][0]])
        column = torch.tensor([position for key in some for position in places[key][1]])
        yield (row_index, column), values.repeat_interleave(counts)


def make_event(event: str | EventSpec | TextEvent, decode: Decode | None, max_length: int, *, at_least: float = 1.0) -> Event:
    """The event of a declaration, or of a function of a text, which happens where that gives `at_least` or more."""
    if callable(event):
        name = getattr(event, "__name__", type(event).__name__)
        return Event(name, _of_texts(event, _required(decode, name)), float(at_least))
    spec = parse_event(event) if isinstance(event, str) else event
    return replace(_of_spec(spec, decode, max_length), acceptor=partial(event_acceptor, spec, decode))


def _of_spec(spec: EventSpec, decode: Decode | None, max_length: int) -> Event:
    if spec.phrases:
        graders = [string_grade(phrase) for phrase in spec.phrases]
        folded = _of_texts(lambda text: max(grade(text.casefold()) for grade in graders), _required(decode, spec.text))
        return Event(spec.text, folded, 1.0)
    if spec.index:
        return _bounded(spec, _of_texts(readability(spec.index), _required(decode, spec.text)))
    assert spec.feature is not None
    if spec.bound is None:
        return _graded(spec.text, spec.feature, decode)
    of = feature_from_spec(spec.feature, decode).of
    stride = max(1, max_length // CLASSIFIER_PREFIXES) if spec.feature.kind == "classifier" else 1
    return _bounded(spec, of, stride)


def _bounded(spec: EventSpec, of: Callable[[Sequences], Tensor], stride: int = 1) -> Event:
    assert spec.bound is not None
    if spec.at_most:
        return Event(spec.text, lambda x: -of(x), -spec.bound, stride)
    return Event(spec.text, of, spec.bound, stride)


def _required(decode: Decode | None, name: str) -> Decode:
    if decode is None:
        raise ValueError(f"The event {name!r} reads text, and the model has none. Nothing was drawn; use an event on tokens.")
    return decode


def _of_texts(function: TextEvent, decode: Decode) -> Callable[[Sequences], Tensor]:
    """The function on decoded points, each text once."""
    cached = lru_cache(CACHED_TEXTS)(lambda text: float(function(text)))
    return TextFunction(decode, lambda texts: [cached(text) for text in texts])


def _graded(name: str, spec: FeatureSpec, decode: Decode | None) -> Event:
    """An event that a sequence has or has not, by how much of it the sequence has."""
    of = feature_from_spec(spec, decode).of
    absent = spec.kind == "lacks" if not spec.negated else spec.kind == "contains"
    present = not spec.negated and spec.kind in ("contains", "starts-with", "ends-with", "matches")
    if spec.reads == "tokens":
        if present and spec.kind != "matches":
            grade: Callable[[Any], float] = token_grade(spec.kind, spec.motif)
            return Event(name, _exact(of, TokenFunction(lambda points: [grade(point) for point in points])), 1.0)
        return Event(name, of, 1.0)
    if absent:
        return Event(name, _of_texts(lambda text: -float(text.count(spec.value)), _required(decode, name)), 0.0)
    if not present:
        return Event(name, of, 1.0)
    graders: dict[str, Callable[[str], Callable[[str], float]]] = {
        "contains": string_grade,
        "starts-with": lambda value: partial(_common_start, value),
        "ends-with": lambda value: partial(_common_end, value),
        "matches": pattern_grade,
    }
    return Event(name, _exact(of, _of_texts(graders[spec.kind](spec.value), _required(decode, name))), 1.0)


def _exact(of: Callable[[Sequences], Tensor], grade: Callable[[Sequences], Tensor]) -> Callable[[Sequences], Tensor]:
    """The grade, which is 1 exactly where the feature is."""
    return lambda x: torch.where(of(x) >= 1, 1.0, grade(x).clamp(max=0.999))


def string_grade(value: str) -> Callable[[str], float]:
    """The share of a string, from its beginning, that is found in a text."""

    def grade(text: str) -> float:
        low, high = 0, len(value)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if value[:middle] in text else (low, middle - 1)
        return low / len(value)

    return grade


def _common_start(value: str, text: str) -> float:
    return next((end for end in range(len(value), 0, -1) if text.startswith(value[:end])), 0) / len(value)


def _common_end(value: str, text: str) -> float:
    return next((end for end in range(len(value), 0, -1) if text.endswith(value[:end])), 0) / len(value)


def token_grade(kind: str, motif: Sequence[int]) -> Callable[[list[int]], float]:
    """The share of a motif, from its beginning, that is found in a list of tokens: anywhere, at its start or at its end."""
    motif = list(motif)

    def grade(point: list[int]) -> float:
        starts = {"contains": range(len(point)), "starts-with": range(1)}.get(kind)
        if starts is None:
            return next((end for end in range(len(motif), 0, -1) if point[-end:] == motif[:end]), 0) / len(motif)
        best = 0
        for start in starts:
            while best < len(motif) and point[start : start + best + 1] == motif[: best + 1]:
                best += 1
        return best / len(motif)

    return grade


def pattern_grade(pattern: str) -> Callable[[str], float]:
    """The share of a pattern's elements, from its beginning, that are found in a text, of the alternative with the largest."""
    ladders = [[pattern_scorer(part) for part in beginnings(branch)] for branch in alternatives(pattern)]

    def grade(text: str) -> float:
        best = 0.0
        for ladder in ladders:
            low, high = 0, len(ladder)
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if ladder[middle - 1](text) else (low, middle - 1)
            best = max(best, low / max(1, len(ladder)))
        return best

    return grade


def beginnings(pattern: str) -> list[str]:
    """The beginnings of a pattern that are patterns, each one element longer than the one before; a repeat of at least n counts
    as n elements."""
    whole, found, known = _elements(pattern), list[str](), 0
    assert whole is not None
    for end in range(1, len(pattern) + 1):
        part = _elements(pattern[:end])
        if part is not None and known < len(part) and part == whole[: len(part)]:
            found, known = [*found, *_partial_repeats(pattern[:end])], len(part)
    return found or [pattern]


def _elements(pattern: str) -> list[str] | None:
    from re import _parser  # type: ignore[attr-defined]

    try:
        return [repr(item) for item in _parser.parse(pattern)]
    except re.error:
        return None


def _partial_repeats(beginning: str) -> list[str]:
    """The beginning, after those in which its last element, a repeat of n or more, is repeated once, twice, ..."""
    repeat = re.fullmatch(r"(.*)\{(\d+)(?:,\d*)?\}[?+]?", beginning, flags=re.DOTALL)
    if repeat is None or not 2 <= int(repeat[2]) <= MAX_ALTERNATIVES:
        return [beginning]
    return [*(f"{repeat[1]}{{{times}}}" for times in range(1, int(repeat[2]))), beginning]


def alternatives(pattern: str) -> list[str]:
    """The patterns of which one must match: the alternatives of plain groups, written out, at most `MAX_ALTERNATIVES`."""
    pieces = re.split(r"(\((?:\?:)?[^()\\\[\]|?*+{}]*(?:\|[^()\\\[\]|?*+{}]*)+\)(?![?*+{]))", pattern)
    if re.search(r"\\\d|\(\?P[=<]|\(\?\(", pattern):
        return [pattern]
    choices = [re.sub(r"^\((?:\?:)?|\)$", "", piece).split("|") if place % 2 else [piece] for place, piece in enumerate(pieces)]
    written = ["".join(parts) for parts in product(*choices)] if _count(choices) <= MAX_ALTERNATIVES else [pattern]
    return [branch for text in written for branch in top_level(text) if _elements(branch) is not None] or [pattern]


def _count(choices: Sequence[Sequence[str]]) -> int:
    total = 1
    for options in choices:
        total *= len(options)
    return total


def readability(index: str) -> Callable[[str], float]:
    """A readability index of textstat; nothing is downloaded."""
    try:
        import textstat
        from nltk.data import find
    except ImportError as error:
        raise ImportError(
            "Readability indices are those of textstat. Nothing was drawn; pip install 'esscher[readability]'."
        ) from error
    if index in SYLLABLES:
        try:
            find("corpora/cmudict")
        except LookupError as error:
            raise ValueError(
                f"The index {index} counts syllables by nltk's cmudict, which is not here, and textstat would download it. "
                f"Nothing was drawn; run `python -m nltk.downloader cmudict`, or take index=automated or coleman_liau."
            ) from error
    function = getattr(textstat, INDICES[index])
    return lambda text: float(function(text)) if text.strip() else 0.0
