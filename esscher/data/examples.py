"""Labelled examples for fine-tuning: classes, numbers, multiple choice, answers within passages, graded documents.

Rows come from files (csv and tsv with a header, jsonl, parquet, the nested json of SQuAD) or from a Hugging Face data set.
Examples with equal `group` stay in one part of a split, and are one replicate of an interval.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from esscher.core.reading import read_json
from esscher.data.sources import LOADER_BY_EXTENSION, file_extension, file_rows, find_files, hub_rows, split_indices

TaskKind = Literal["classify", "regress", "choose", "extract", "rank"]
Row = Mapping[str, Any]
InputTexts = tuple[str, ...]
DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True, kw_only=True)
class ColumnConfig:
    """The columns of a row; those that are None are the usual ones of the task."""

    text: str | None = None
    """Column of the text; of choices the article, of answers the passage, of rankings the query."""
    second: str | None = None
    """Column of a second text; of choices and answers the question, of rankings the document."""
    label: str | None = None
    """Column of the label."""
    options: str | None = None
    """Of choices: the column with the list of them, or several columns separated by commas."""
    group: str | None = None
    """Column of the group; examples of a group are never in two splits, and are one replicate of the intervals."""


@dataclass(frozen=True, kw_only=True)
class ColumnNames(ColumnConfig):
    """The columns of a row, all of them named."""

    text: str = "text"
    label: str = "label"
    options: str = "options"


DEFAULT_COLUMNS: dict[str, ColumnNames] = {
    "classify": ColumnNames(),
    "regress": ColumnNames(),
    "choose": ColumnNames(text="article", second="question", label="answer"),
    "extract": ColumnNames(text="context", second="question", label="answers"),
    "rank": ColumnNames(text="query", second="document"),
}
"""The usual names of each task's data sets."""


@dataclass(frozen=True)
class Example:
    """Inputs (one text or two) that are judged together, and their label, None if unknown: a class; a number; the index of a
    choice; offset in the first text and words of each right answer, empty if there is none; or a grade for each input."""

    inputs: tuple[InputTexts, ...]
    label: Any
    group: str


def read_rows(source: str) -> list[Row]:
    """All rows of a source."""
    files = find_files(source)
    rows: list[Row] = [row for file in files for row in _file(file)] if files else [*hub_rows(source)]
    if not rows:
        raise ValueError(f"{source} holds no row. Nothing was read; check the file.")
    return rows


def make_examples(task: TaskKind, rows: Sequence[Row], columns: ColumnNames, where: str) -> list[Example]:
    """The examples of a task; rows may have no labels."""
    names = (columns.text, columns.second, columns.group)
    for number, row in enumerate(rows):
        missing = next((name for name in names if name and row.get(name) is None), None)
        if missing is not None:
            raise ValueError(
                f"Row {number + 1} of {where} has no {missing!r}; its columns are {', '.join(map(str, row))}. Nothing was "
                f"read; name the right column."
            )
    if task == "rank":
        return _ranking_examples(rows, columns)
    return [_example(task, row, columns, f"row {number + 1} of {where}") for number, row in enumerate(rows)]


def split_examples(examples: Sequence[Example], held_out: float, where: str) -> tuple[list[Example], ...]:
    """Train, validation and test, by the hash of the groups."""
    groups = [example.group for example in examples]
    parts = split_indices(groups, held_out, f"{where} has {len(set(groups))} groups of examples")
    return tuple([examples[index] for index in part] for part in parts)


def _file(file: Path) -> Iterator[Row]:
    if file_extension(file) in DELIMITERS:
        with file.open(encoding="utf8", newline="") as lines:
            yield from csv.DictReader(lines, delimiter=DELIMITERS[file_extension(file)])
    elif file_extension(file) == ".json":
        yield from _nested(read_json(file, then="Nothing was read; correct the file."), file)
    elif LOADER_BY_EXTENSION.get(file_extension(file), "text") == "text":
        known = ", ".join((*DELIMITERS, ".json", *(ending for ending, kind in LOADER_BY_EXTENSION.items() if kind != "text")))
        raise ValueError(f"{file} has no columns by its extension; examples are read from {known}. Nothing was read.")
    else:
        yield from file_rows(file, LOADER_BY_EXTENSION[file_extension(file)], "line")


def _nested(whole: Any, file: Path) -> Iterator[Row]:
    """The questions of a SQuAD file, each with its passage."""
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


def _example(task: TaskKind, row: Row, columns: ColumnNames, where: str) -> Example:
    """The example of a row; of choices each is one input: the text, and the question (if there is one) with the choice."""
    label, text = row.get(columns.label), str(row[columns.text])
    texts = (text,) if columns.second is None else (text, str(row[columns.second]))
    inputs: tuple[InputTexts, ...] = (texts,)
    group = text if task in ("choose", "extract") else "\n".join(texts)
    if task == "choose":
        options = _options(row, columns, where)
        inputs = tuple((text, " ".join([*texts[1:], str(option)])) for option in options)
        label = None if label is None else _choice_index(label, options, where)
    elif task == "extract":
        label = None if label is None else _answers(label, text, where)
    elif label is not None:
        label = _number(label, where) if task == "regress" else str(label)
    return Example(inputs, label, group if columns.group is None else str(row[columns.group]))


def _number(label: Any, where: str) -> float:
    try:
        return float(label)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The label of {where} is {label!r}, which is no number. Nothing was read.") from error


def _options(row: Row, columns: ColumnNames, where: str) -> list[Any]:
    names = columns.options.split(",")
    options = [str(row[name.strip()]) for name in names] if len(names) > 1 else row.get(columns.options)
    if not isinstance(options, list) or len(options) < 2:
        raise ValueError(f"{where} has no list of two or more choices in {columns.options!r}: {options!r}. Nothing was read.")
    return options


def _choice_index(label: Any, options: Sequence[Any], where: str) -> int:
    """The index of the right choice, which a label states as a number, a letter, or the words."""
    answer = str(label).strip()
    if answer in options:
        return options.index(answer)
    number = int(answer) if answer.isdecimal() else ord(answer.upper()) - ord("A") if len(answer) == 1 else -1
    if not 0 <= number < len(options):
        raise ValueError(f"The answer of {where} is {label!r}, none of its {len(options)} choices. Nothing was read.")
    return number


def _answers(label: Any, passage: str, where: str) -> tuple[tuple[int, str], ...]:
    """Offset and words of each answer, from the lists of texts and offsets of a data set, or from those of a SQuAD file."""
    if isinstance(label, Mapping):
        pairs = list(zip(label["answer_start"], label["text"], strict=True))
    else:
        pairs = [(answer["answer_start"], answer["text"]) for answer in label]
    answers = tuple((int(offset), str(words)) for offset, words in pairs)
    for offset, words in answers:
        if passage[offset : offset + len(words)] != words:
            raise ValueError(
                f"The answer {words[:40]!r} of {where} does not stand at place {offset} of its passage. Nothing was read."
            )
    return answers


def _ranking_examples(rows: Sequence[Row], columns: ColumnNames) -> list[Example]:
    """The documents of each query in the order of the rows."""
    if columns.second is None:
        raise ValueError("Ranking needs two texts, a query and a document. Nothing was read; name the second column.")
    queries: dict[str, list[Row]] = {}
    for row in rows:
        queries.setdefault(str(row[columns.text]), []).append(row)
    examples = []
    for query, documents in queries.items():
        labels: list[Any] = [row.get(columns.label) for row in documents]
        grades = None if None in labels else tuple(map(float, labels))
        examples.append(Example(tuple((query, str(row[columns.second])) for row in documents), grades, query))
    return examples
