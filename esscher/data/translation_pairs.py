"""Parallel text from files or a Hugging Face data set, and as `Sequences`: the prompt is the source, the point the translation,
both with the end symbol.

Two text files are aligned line by line; the second is given by its path, or by the extension that replaces that of the first
(`train.fr` with `en` is `train.en`). Columns of a tsv file are numbered from 1; in jsonl, parquet and data sets of the hub they
have names, also inside a column `translation`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from esscher.core.space import Sequences, sequences
from esscher.data.sources import (
    LOADER_BY_EXTENSION,
    SPLIT_NAMES,
    Splits,
    file_extension,
    file_rows,
    find_files,
    hub_rows,
    read_lines,
    split_indices,
)
from esscher.data.text import TextSet
from esscher.data.tokenizers import NAME_KEY, Tokenizer

TRANSLATION = "translation"  # column of data sets with all languages


@dataclass(frozen=True)
class Pairs:
    """Sources and their translations in order; `skipped` pairs had an empty side."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    name: str
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.sources)

    def __str__(self) -> str:
        empty = f", {self.skipped:,} with an empty side skipped" if self.skipped else ""
        return f"{self.name}: {len(self):,} pair{'s' * (len(self) != 1)}{empty}"


def read_pairs(source: str, target: str, *, column: str = "text") -> Pairs:
    """All pairs of a source; `target` is the other file, its extension, or the column of the translations."""
    files = find_files(source)
    if len(files) > 1:
        raise ValueError(f"{source!r} names {len(files)} files, and pairs come from one. Nothing was read; name one file.")
    if not files:
        rows = _columns(hub_rows(source), column, target, source)
    elif file_extension(files[0]) == ".tsv":
        rows = _cells(files[0], column, target)
    elif (kind := LOADER_BY_EXTENSION.get(file_extension(files[0]), "text")) == "text":
        rows = _lines(files[0], _target_file(files[0], target))
    else:
        rows = _columns(file_rows(files[0], kind, "line"), column, target, source)
    return _collect_pairs(rows, source)


def split_pairs(pairs: Pairs, *, held_out: float = 0.05) -> Splits[Pairs]:
    """A share `held_out` for validation and as much for test, by the hash of the source: equal sources stay together."""

    def select(part: str, rows: Sequence[int]) -> Pairs:
        sources, targets = (tuple(side[row] for row in rows) for side in (pairs.sources, pairs.targets))
        return Pairs(sources, targets, f"{pairs.name} ({part})")

    parts = split_indices(pairs.sources, held_out, f"{pairs.name} has {len(pairs)} pairs")
    return Splits(*map(select, SPLIT_NAMES, parts))


def pair_points(pairs: Pairs, tokenizer: Tokenizer, *, longest: int) -> TextSet:
    """Pairs as points after prompts, without those that have more than `longest` tokens, end symbol included, on a side."""
    encoded = zip(encode_sources(pairs.sources, tokenizer), tokenizer.encode(pairs.targets), pairs.targets, strict=True)
    fitting = [(source, [*target, tokenizer.eos], text) for source, target, text in encoded]
    fitting = [row for row in fitting if max(len(row[0]), len(row[1])) <= longest]
    if not fitting:
        what = f"All {len(pairs):,} pairs of {pairs.name} have a side of more than {longest} tokens"
        raise ValueError(f"{what}. Nothing was made; raise the length.")
    sources, targets, texts = zip(*fitting, strict=True)
    words, size = ([len(text.split()) + 1 for text in texts], [len(text.encode()) + 1 for text in texts])
    return TextSet(sequences(targets, sources), torch.tensor(words), torch.tensor(size), len(pairs) - len(fitting))


def encode_sources(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The tokens of sources with the end symbol, or with the special tokens of a pretrained tokenizer."""
    if not tokenizer.settings or NAME_KEY in tokenizer.settings:
        return [[*tokens, tokenizer.eos] for tokens in tokenizer.encode(texts)]
    rows = [encoding.ids for encoding in tokenizer.backend.encode_batch(list(texts), add_special_tokens=True)]
    return [row if row[-1:] == [tokenizer.eos] else [*row, tokenizer.eos] for row in rows]


def decode_targets(x: Sequences, tokenizer: Tokenizer) -> list[str]:
    """The texts of points, each on one line: line breaks become spaces."""
    return [text.replace("\r", " ").replace("\n", " ").strip() for text in tokenizer.decode(x.points())]


def _target_file(file: Path, target: str) -> Path:
    places = [Path(target).expanduser(), file.parent / f"{file.stem}.{target.removeprefix('.')}"]
    for place in places:
        if place.is_file() and place != file:
            return place
    raise FileNotFoundError(
        f"The translation of {file} is neither {places[0]} nor {places[1]}: there is no such file. Nothing was read; name the "
        f"file, or its ending."
    )


def _lines(file: Path, other: Path) -> Iterator[tuple[Any, Any]]:
    first, second = read_lines(file), read_lines(other)
    if len(first) != len(second):
        raise ValueError(
            f"{file} has {len(first):,} lines and {other} has {len(second):,}: they do not match. Nothing was read."
        )
    return zip(first, second, strict=True)


def _cells(file: Path, column: str, target: str) -> Iterator[tuple[Any, Any]]:
    """Two cells of each line of a tsv file, which has no header."""
    names = ("1" if column == "text" else column, target)
    for name in names:
        if not name.isdecimal() or int(name) < 1:
            raise ValueError(f"Columns of a tsv file are numbers from 1, not {name!r}. Nothing was read.")
    first, second = (int(name) - 1 for name in names)
    for number, line in enumerate(read_lines(file)):
        cells, needed = line.split("\t"), 1 + max(first, second)
        if line.strip() and len(cells) < needed:
            raise ValueError(
                f"Line {number + 1} of {file} has {len(cells)} columns, and column {needed} is asked for: {line[:40]!r}. "
                f"Nothing was read."
            )
        yield (cells[first], cells[second]) if line.strip() else ("", "")


def _columns(rows: Iterator[dict[str, Any]], column: str, target: str, where: str) -> Iterator[tuple[Any, Any]]:
    for row in rows:
        languages = row.get(TRANSLATION)
        known = {**languages, **row} if isinstance(languages, dict) else row
        for name in (column, target):
            if name not in known:
                raise ValueError(f"{where} has no column {name!r}; its columns are {', '.join(known)}. Nothing was read.")
        yield known[column], known[target]


def _collect_pairs(rows: Iterator[tuple[Any, Any]], name: str) -> Pairs:
    pairs = []
    for number, pair in enumerate(rows):
        if not all(side is None or isinstance(side, str) for side in pair):
            raise ValueError(f"{name}: row {number} holds something else than text. Choose other columns. Nothing was read.")
        pairs.append(tuple((side or "").strip() for side in pair))
    complete = [pair for pair in pairs if all(pair)]
    if not complete:
        raise ValueError(f"{name} holds no pair of texts: {len(pairs):,} have an empty side. Nothing was read.")
    sources, targets = zip(*complete, strict=True)
    return Pairs(sources, targets, name, len(pairs) - len(complete))
