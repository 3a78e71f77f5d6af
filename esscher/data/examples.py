"""Texts with what is known of them: classes, numbers, the right one of several choices, answers within passages, grades.

Rows come from files (csv and tsv with a line of names first, jsonl, parquet, the nested json of SQuAD) or from a Hugging Face
name. An example has one reading or several that are judged together; a reading is one text or two. What is right is None where
it is not known. Examples with one `key` belong together: they are never parted, and are one replicate of an interval.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from esscher.data.sources import KINDS, ending, file_rows, find_files, hub_rows, part_of, refuse_absent

Task = Literal["classify", "regress", "choose", "extract", "rank"]
Row = Mapping[str, Any]
Reading = tuple[str, ...]
DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class Columns:
    """The names of what a row holds; `options` is a list, or names of several columns with commas between them."""

    text: str
    second: str | None
    label: str
    options: str = "options"
    group: str | None = None


USUAL: dict[str, Columns] = {
    "classify": Columns("text", None, "label"),
    "regress": Columns("text", None, "label"),
    "choose": Columns("article", "question", "answer"),
    "extract": Columns("context", "question", "answers"),
    "rank": Columns("query", "document", "label"),
}
"""The names that data sets usually have."""


@dataclass(frozen=True)
class Example:
    """Readings that are judged together and what is right of them.

    Right is the name of a class; a number; the number of a choice; for each right answer its place in the first text and its
    words, none where there is no answer; or a grade for each reading.
    """

    readings: tuple[Reading, ...]
    right: Any
    key: str


def read_rows(source: str) -> list[Row]:
    """All rows of a source."""
    files = find_files(source)
    if not files:
        refuse_absent(source)
        return list(hub_rows(source))
    rows = [row for file in files for row in _file(file)]
    if not rows:
        raise ValueError(f"{source} holds no row. Nothing was read; check the file.")
    return rows


def examples_of(task: Task, rows: Sequence[Row], columns: Columns, where: str) -> list[Example]:
    """The examples of a task; labels may be missing in all rows."""
    names = [columns.text, *([columns.second] if columns.second else []), *([columns.group] if columns.group else [])]
    for number, row in enumerate(rows):
        missing = next((name for name in names if row.get(name) is None), None)
        if missing is not None:
            raise ValueError(
                f"Row {number + 1} of {where} has no {missing!r}; its columns are {', '.join(map(str, row))}. Nothing was "
                f"read; name the right column."
            )
    if task == "rank":
        return _ranked(rows, columns)
    made = {"classify": _classified, "regress": _measured, "choose": _chosen, "extract": _answered}[task]
    return [made(row, columns, f"row {number + 1} of {where}") for number, row in enumerate(rows)]


def split_examples(examples: Sequence[Example], held_out: float, where: str) -> tuple[list[Example], ...]:
    """To learn from, to choose by and to judge by, as the hash of their keys says."""
    parts: tuple[list[Example], ...] = ([], [], [])
    for one in examples:
        parts[part_of(one.key, held_out)].append(one)
    if not all(parts):
        raise ValueError(
            f"{where} has {len({one.key for one in examples})} groups of examples, too few to hold out {held_out:.0%} twice: "
            f"one of train ({len(parts[0])}), validation ({len(parts[1])}), test ({len(parts[2])}) is empty. Nothing was "
            f"learnt; give more, files of their own for validation and test, or a larger share."
        )
    return parts


def _file(file: Path) -> Iterator[Row]:
    if ending(file) in DELIMITERS:
        with file.open(encoding="utf8", newline="") as lines:
            yield from csv.DictReader(lines, delimiter=DELIMITERS[ending(file)])
    elif ending(file) == ".json":
        yield from _nested(json.loads(file.read_text(encoding="utf8")), file)
    elif KINDS.get(ending(file), "text") == "text":
        known = ", ".join((*DELIMITERS, ".json", *(one for one, kind in KINDS.items() if kind != "text")))
        raise ValueError(f"{file} has no columns by its ending; examples are read from {known}. Nothing was read.")
    else:
        yield from file_rows(file, KINDS[ending(file)], "line")


def _nested(whole: Any, file: Path) -> Iterator[Row]:
    """The questions of SQuAD's files, each with its passage."""
    try:
        for article in whole["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    yield {**question, "context": paragraph["context"], "title": article.get("title", "")}
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{file} is not in the form of SQuAD (data, paragraphs, qas): {error!r} is missing. Nothing was read; other data "
            f"come as jsonl."
        ) from error


def _texts(row: Row, columns: Columns) -> Reading:
    first = str(row[columns.text])
    return (first,) if columns.second is None else (first, str(row[columns.second]))


def _key(row: Row, columns: Columns, otherwise: str) -> str:
    return otherwise if columns.group is None else str(row[columns.group])


def _classified(row: Row, columns: Columns, where: str) -> Example:
    label, texts = row.get(columns.label), _texts(row, columns)
    return Example((texts,), None if label is None else str(label), _key(row, columns, "\n".join(texts)))


def _measured(row: Row, columns: Columns, where: str) -> Example:
    label, texts = row.get(columns.label), _texts(row, columns)
    try:
        number = None if label is None else float(label)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The label of {where} is {label!r}, which is no number. Nothing was read.") from error
    return Example((texts,), number, _key(row, columns, "\n".join(texts)))


def _chosen(row: Row, columns: Columns, where: str) -> Example:
    """Each choice, after the question where there is one, is read with the text."""
    names = columns.options.split(",")
    options = [str(row[name.strip()]) for name in names] if len(names) > 1 else row.get(columns.options)
    if not isinstance(options, list) or len(options) < 2:
        raise ValueError(
            f"{where} has no list of two or more choices in {columns.options!r}, but {options!r}. Nothing was read."
        )
    asked = "" if columns.second is None else f"{row[columns.second]} "
    text = str(row[columns.text])
    readings = tuple((text, f"{asked}{option}") for option in options)
    return Example(readings, _place(row.get(columns.label), options, where), _key(row, columns, text))


def _place(label: Any, options: Sequence[str], where: str) -> int | None:
    """The right choice by its number, its letter, or its words."""
    if label is None:
        return None
    told = str(label).strip()
    if told in options:
        return options.index(told)
    number = int(told) if told.isdecimal() else ord(told.upper()) - ord("A") if len(told) == 1 else -1
    if not 0 <= number < len(options):
        raise ValueError(f"The answer of {where} is {label!r}, none of its {len(options)} choices. Nothing was read.")
    return number


def _answered(row: Row, columns: Columns, where: str) -> Example:
    """A passage and a question; answers as data sets have them, lists of texts and places, or as SQuAD's files do."""
    given, texts = row.get(columns.label), _texts(row, columns)
    if isinstance(given, Mapping):
        given = [
            {"text": text, "answer_start": place} for text, place in zip(given["text"], given["answer_start"], strict=True)
        ]
    right = None if given is None else tuple((int(one["answer_start"]), str(one["text"])) for one in given)
    for place, words in right or ():
        if texts[0][place : place + len(words)] != words:
            raise ValueError(
                f"The answer {words[:40]!r} of {where} does not stand at place {place} of its passage. Nothing was read."
            )
    return Example((texts,), right, _key(row, columns, texts[0]))


def _ranked(rows: Sequence[Row], columns: Columns) -> list[Example]:
    """The documents of each query in the order of the rows."""
    if columns.second is None:
        raise ValueError("Ranking needs two texts, a query and a document. Nothing was read; name the second column.")
    queries: dict[str, list[Row]] = {}
    for row in rows:
        queries.setdefault(str(row[columns.text]), []).append(row)
    return [
        Example(
            tuple((query, str(row[columns.second])) for row in found),
            _grades(row.get(columns.label) for row in found),
            query,
        )
        for query, found in queries.items()
    ]


def _grades(given: Iterable[Any]) -> tuple[float, ...] | None:
    labels = list(given)
    return None if any(one is None for one in labels) else tuple(float(one) for one in labels)
