"""Parallel text: sources with their targets, as files, columns or a Hugging Face data set have them, and as `Sequences`.

Two text files are aligned line by line; the second is named by its path, or by the ending that takes the place of the first
one's (`train.fr` with `en` is `train.en`). In a tsv file columns have numbers from 1; in jsonl, parquet and data sets of the
hub they have names, which may also be those within a column `translation`, as is usual there.

A pair is a point after a prompt: the prompt is the source with the end symbol, the point the target with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from esscher.data.sources import KINDS, NAMES, ending, file_rows, find_files, hub_rows, part_of, read_lines, refuse_absent
from esscher.data.text import TextSet
from esscher.data.tokenizers import OWN_NAME, Tokenizer
from esscher.space import Sequences, sequences

TRANSLATION = "translation"  # the column of data sets that holds all languages


@dataclass(frozen=True)
class Pairs:
    """Sources and their targets in the order of where they come from; `skipped` had nothing on one side."""

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
    """All pairs of a source; `target` is the other file, its ending, or the column beside `column`."""
    files = find_files(source)
    if not files:
        refuse_absent(source)
        return _kept(_columns(hub_rows(source), column, target, source), source)
    if len(files) > 1:
        raise ValueError(f"{source!r} names {len(files)} files, and pairs come from one. Nothing was read; name one file.")
    (file,) = files
    if ending(file) == ".tsv":
        return _kept(_cells(file, column, target), source)
    kind = KINDS.get(ending(file), "text")
    if kind == "text":
        return _kept(_lines(file, _beside(file, target)), source)
    return _kept(_columns(file_rows(file, kind, "line"), column, target, source), source)


def split_pairs(pairs: Pairs, *, held_out: float = 0.05) -> tuple[Pairs, Pairs, Pairs]:
    """A share `held_out` to validation, as much to test, by the hash of the source: pairs of one source stay together."""
    places: tuple[list[int], list[int], list[int]] = ([], [], [])
    for number, text in enumerate(pairs.sources):
        places[part_of(text, held_out)].append(number)
    if not all(places):
        raise ValueError(
            f"{pairs.name} has {len(pairs)} pairs, too few to hold out {held_out:.0%} twice. Give more, files of their own for "
            f"validation and test, or a larger share."
        )
    train, validation, test = (_chosen(pairs, place, name) for place, name in zip(places, NAMES, strict=True))
    return train, validation, test


def pair_points(pairs: Pairs, tokenizer: Tokenizer, *, longest: int) -> TextSet:
    """Pairs as points after prompts; those with a side of more than `longest` tokens, end symbols counted, are left out."""
    sources, targets = prompts_of_sources(pairs.sources, tokenizer), tokenizer.encode(pairs.targets)
    kept = [
        number
        for number, (source, target) in enumerate(zip(sources, targets, strict=True))
        if max(len(source), len(target) + 1) <= longest
    ]
    if not kept:
        raise ValueError(
            f"All {len(pairs):,} pairs of {pairs.name} have a side of more than {longest} tokens. Nothing was made; raise the "
            f"length."
        )
    x = sequences([[*targets[one], tokenizer.eos] for one in kept], [sources[one] for one in kept])
    texts = [pairs.targets[one] for one in kept]
    words, size = ([len(text.split()) + 1 for text in texts], [len(text.encode()) + 1 for text in texts])
    return TextSet(x, torch.tensor(words), torch.tensor(size), len(pairs) - len(kept))


def prompts_of_sources(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The tokens of sources as a translator reads them: with the end symbol, or as a pretrained tokenizer has it."""
    if not tokenizer.settings or OWN_NAME in tokenizer.settings:
        return [[*tokens, tokenizer.eos] for tokens in tokenizer.encode(texts)]
    found = tokenizer.backend.encode_batch(list(texts), add_special_tokens=True)
    return [one.ids if one.ids[-1:] == [tokenizer.eos] else [*one.ids, tokenizer.eos] for one in found]


def targets_of(x: Sequences, tokenizer: Tokenizer) -> list[str]:
    """The texts of points, a line each: what would part lines of a file is a space."""
    return [text.replace("\r", " ").replace("\n", " ").strip() for text in tokenizer.decode(x.points())]


def _beside(file: Path, target: str) -> Path:
    """The file with the translation of each line."""
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
            f"{file} has {len(first):,} lines and {other} has {len(second):,}, so they are not translations line by line. "
            f"Nothing was read."
        )
    return zip(first, second, strict=True)


def _cells(file: Path, column: str, target: str) -> Iterator[tuple[Any, Any]]:
    """Two cells of each line of a tsv file, which has no header."""
    numbers = [_number(one) for one in ("1" if column == "text" else column, target)]
    for place, line in enumerate(read_lines(file)):
        cells = line.split("\t")
        if line.strip() and len(cells) < max(numbers):
            raise ValueError(
                f"Line {place + 1} of {file} has {len(cells)} columns, and column {max(numbers)} is asked for: {line[:40]!r}. "
                f"Nothing was read."
            )
        yield tuple(cells[number - 1] for number in numbers) if line.strip() else ("", "")  # type: ignore[misc]


def _number(column: str) -> int:
    if not column.isdecimal() or int(column) < 1:
        raise ValueError(f"Columns of a tsv file are numbers from 1, not {column!r}. Nothing was read.")
    return int(column)


def _columns(rows: Iterator[dict[str, Any]], column: str, target: str, where: str) -> Iterator[tuple[Any, Any]]:
    for row in rows:
        languages = row.get(TRANSLATION)
        known = {**languages, **row} if isinstance(languages, dict) else row
        for name in (column, target):
            if name not in known:
                raise ValueError(f"{where} has no column {name!r}; its columns are {', '.join(known)}. Nothing was read.")
        yield known[column], known[target]


def _kept(rows: Iterator[tuple[Any, Any]], name: str) -> Pairs:
    sources, targets, skipped = [], [], 0
    for number, pair in enumerate(rows):
        if not all(one is None or isinstance(one, str) for one in pair):
            raise ValueError(f"{name}: row {number} holds something else than text. Choose other columns. Nothing was read.")
        source, target = ((one or "").strip() for one in pair)
        if source and target:
            sources.append(source)
            targets.append(target)
        else:
            skipped += 1
    if not sources:
        raise ValueError(f"{name} holds no pair of texts: {skipped:,} have an empty side. Nothing was read.")
    return Pairs(tuple(sources), tuple(targets), name, skipped)


def _chosen(pairs: Pairs, places: Sequence[int], part: str) -> Pairs:
    sources, targets = (tuple(side[place] for place in places) for side in (pairs.sources, pairs.targets))
    return Pairs(sources, targets, f"{pairs.name} ({part})")
