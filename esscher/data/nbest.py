"""N-best lists: for each id the candidates of another system, its scores, and references.

A file has one list per line, as JSON, plain or compressed (`.gz`):

    {"id": "a-1", "reference": "the cat sat",
     "candidates": [{"text": "the cats at", "score": -1.5}, {"text": "the cat sat", "score": -1.7}]}

Candidates are in the order of the other system, its best first; a higher score is better. Instead of "score" a candidate may
have several by name, "scores": {"acoustic": -1.5, "translation": -0.2}, or none; all candidates of a file have the same names.
"reference" may be a list, and is needed only to tune and to evaluate. "scored_by" names the model of a score that this library
computed. The form {"id", "ref", "hyps": [[score, text], ...]} is read, too.
"""

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from esscher.core.bounded_files import open_bytes
from esscher.core.reading import parse_json
from esscher.data.sources import unit_hash

SCORE = "score"  # the name of the only score of candidates
LIST_KEYS = ("id", "reference", "candidates", "scored_by")
CANDIDATE_KEYS = ("text", "score", "scores")
SHORT_KEYS = ("id", "ref", "hyps")


@dataclass(frozen=True)
class Candidate:
    """A proposed text with its scores by name; higher is better."""

    text: str
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class NBest:
    """The candidates for one id, best first as their system has it; `scored_by` names the model behind a score."""

    id: str
    candidates: tuple[Candidate, ...]
    references: tuple[str, ...] = ()
    scored_by: Mapping[str, str] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        return [candidate.text for candidate in self.candidates]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the scores that every candidate has."""
        return tuple(self.candidates[0].scores)

    def top(self, count: int | None) -> "NBest":
        return replace(self, candidates=self.candidates[:count])

    def lowered(self) -> "NBest":
        """The list in lower case, references too."""
        candidates = tuple(replace(candidate, text=candidate.text.lower()) for candidate in self.candidates)
        return replace(self, candidates=candidates, references=tuple(text.lower() for text in self.references))

    def to_json(self) -> str:
        """The line of a file."""
        candidates = [{"text": candidate.text, "scores": dict(candidate.scores)} for candidate in self.candidates]
        references = {"reference": list(self.references)} if self.references else {}
        scored_by = {"scored_by": dict(self.scored_by)} if self.scored_by else {}
        return json.dumps({"id": self.id, **references, "candidates": candidates, **scored_by}, ensure_ascii=False)


def read_nbest(file: str | Path) -> tuple[NBest, ...]:
    """All lists of a file; errors name the line and the key."""
    lists: list[NBest] = []
    seen: dict[str, int] = {}
    for number, line in _lines(Path(file)):
        where = f"{file}, line {number}"
        nbest = _parse(line, where)
        if nbest.id in seen:
            raise ValueError(
                f"{where}: the id {nbest.id!r} is in line {seen[nbest.id]}, too. Nothing was read; ids are unique."
            )
        if lists and set(nbest.names) != set(lists[0].names):
            raise ValueError(
                f"{where}: the scores are {_listed(nbest.names)}, and before they were {_listed(lists[0].names)}. Nothing was "
                f"read; all candidates of a file have the same scores."
            )
        seen[nbest.id] = number
        lists.append(nbest)
    if not lists:
        raise ValueError(f"{file} holds no n-best list. Nothing was read; it has one a line, as JSON.")
    return tuple(lists)


def split_by_id(lists: Sequence[NBest], share: float) -> tuple[tuple[NBest, ...], tuple[NBest, ...]]:
    """About this share of the lists, and the others, by the hash of each id."""
    if not 0 < share < 1:
        raise ValueError(f"The share to tune on lies between 0 and 1, not {share}. Nothing was done; 0.5 is usual.")
    tune = tuple(nbest for nbest in lists if unit_hash(nbest.id) < share)
    test = tuple(nbest for nbest in lists if unit_hash(nbest.id) >= share)
    if not (tune and test):
        raise ValueError(
            f"{len(lists)} lists are too few to tune on {share:g} of them and test on the others: one part is empty. Nothing "
            f"was done; give more lists, another share, or a file of its own to tune on."
        )
    return tune, test


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file} with n-best lists. Nothing was read; check the path.")
    with open_bytes(file) as content:
        try:
            lines = io.TextIOWrapper(content, encoding="utf8")
            yield from ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        except UnicodeDecodeError as error:
            raise ValueError(f"The file {file} is not UTF-8 text: {error}. Nothing was read.") from error


def _parse(line: str, where: str) -> NBest:
    record = parse_json(line, where, then="Nothing was read; correct the line.")
    if not isinstance(record, dict):
        raise ValueError(f"{where} holds no list: it must be an object with {_listed(LIST_KEYS[:3])}. Nothing was read.")
    if "hyps" in record:
        record = _from_short(record, where)
    _check_keys(record, LIST_KEYS, ("id", "candidates"), where)
    name = _of_type(record["id"], str, where, "id")
    rows = _of_type(record["candidates"], list, where, "candidates")
    if not rows:
        raise ValueError(f"{where}: 'candidates' is empty. Nothing was read; a list has at least one candidate.")
    candidates = tuple(_candidate(row, where, f"candidates[{index}]") for index, row in enumerate(rows))
    for index, candidate in enumerate(candidates):
        if set(candidate.scores) != set(candidates[0].scores):
            raise ValueError(
                f"{where}: 'candidates[{index}]' has the scores {_listed(candidate.scores)}, and candidates[0] has "
                f"{_listed(candidates[0].scores)}. Nothing was read; all candidates of a file have the same scores."
            )
    scored_by = _of_type(record.get("scored_by", {}), dict, where, "scored_by")
    references = record.get("reference")
    references = [] if references is None else references if isinstance(references, list) else [references]
    return NBest(name, candidates, tuple(_of_type(text, str, where, "reference") for text in references), scored_by)


def _from_short(record: dict[str, Any], where: str) -> dict[str, Any]:
    """Convert {"id", "ref", "hyps": [[score, text], ...]}."""
    _check_keys(record, SHORT_KEYS, ("id", "hyps"), where)
    rows = _of_type(record["hyps"], list, where, "hyps")
    for index, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != 2:
            raise ValueError(f"{where}: 'hyps[{index}]' must be a pair [score, text], not {row!r:.60}. Nothing was read.")
    candidates = [{"text": text, SCORE: score} for score, text in rows]
    return {"id": record["id"], "reference": record.get("ref"), "candidates": candidates}


def _candidate(row: Any, where: str, key: str) -> Candidate:
    row = _of_type(row, dict, where, key)
    _check_keys(row, CANDIDATE_KEYS, ("text",), f"{where}: {key}")
    if SCORE in row and "scores" in row:
        raise ValueError(f"{where}: '{key}' has both 'score' and 'scores'. Nothing was read; give one of them.")
    scores = {SCORE: row[SCORE]} if SCORE in row else _of_type(row.get("scores", {}), dict, where, f"{key}.scores")
    for name, value in scores.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{where}: the {name!r} of '{key}' must be a finite number, not {value!r:.60}. Nothing was read.")
    text = _of_type(row["text"], str, where, f"{key}.text")
    return Candidate(text, {name: float(value) for name, value in scores.items()})


def _check_keys(record: Mapping[str, Any], known: Sequence[str], needed: Sequence[str], where: str) -> None:
    missing, unknown = [key for key in needed if key not in record], [key for key in record if key not in known]
    if missing or unknown:
        what = f"the key {missing[0]!r} is missing" if missing else f"the key {unknown[0]!r} is unknown"
        raise ValueError(f"{where}: {what}; known are {_listed(known)}. Nothing was read; correct the line.")


def _of_type(value: Any, kind: type, where: str, key: str) -> Any:
    if not isinstance(value, kind):
        what = "text" if kind is str else "a list" if kind is list else "an object"
        raise ValueError(f"{where}: {key!r} must be {what}, not {value!r:.60}. Nothing was read; correct the line.")
    return value


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"
