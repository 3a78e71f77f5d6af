"""Texts from files or from a Hugging Face data set, read with the library `datasets`, and their splits.

A source is a path (a file, a folder, a pattern with `*`) or else a name on the hub; what looks like a path is never looked for
there. Files are text (lines, paragraphs, whole files, or parts between separators), jsonl or parquet. Empty texts are counted.
"""

import glob
import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from esscher.core.bounded_files import (
    RefusedError,
    bounded_rows,
    check_compressed,
    check_json_lines,
    read_bytes,
    refuse_link_outside,
)

Unit = Literal["line", "paragraph", "document"]
SPLIT_NAMES = ("train", "validation", "test")
T = TypeVar("T")

LOADER_BY_EXTENSION = {
    **dict.fromkeys((".txt", ".text", ".md", ".tsv", ""), "text"),
    **dict.fromkeys((".jsonl", ".ndjson"), "json"),
    ".parquet": "parquet",
}  # the loader of `datasets` for a file extension


@dataclass(frozen=True)
class Texts:
    """Texts in the order of their source; `skipped` empty ones were left out."""

    texts: tuple[str, ...]
    source: str
    skipped: int = 0
    unit: str = "text"

    def __len__(self) -> int:
        return len(self.texts)

    def __str__(self) -> str:
        empty = f", {self.skipped:,} empty {self.unit}{'s' * (self.skipped != 1)} skipped" if self.skipped else ""
        return f"{self.source}: {len(self):,} text{'s' * (len(self) != 1)}{empty}"


@dataclass(frozen=True)
class Splits(Generic[T]):
    """Data for training, validation and test, iterated in this order."""

    train: T
    validation: T
    test: T

    def __iter__(self) -> Iterator[T]:
        return iter((self.train, self.validation, self.test))


def read_texts(
    source: str, *, column: str = "text", unit: Unit = "line", separator: str | None = None, keep_empty: bool = False
) -> Texts:
    """All texts of a source; `column` is for jsonl, parquet and the hub, `unit` and `separator` for text files."""
    files = find_files(source)
    if not files:
        return _collect_texts(_column(hub_rows(source), column, source), source, "text", keep_empty)
    kind = _kind(files, source)
    if kind != "text":
        return _collect_texts(_rows(files, kind, unit, column), source, "text", keep_empty)
    if separator is None:
        return _collect_texts(_rows(files, kind, unit, "text"), source, unit, keep_empty)
    parts = (part.strip() for row in _rows(files, kind, "document", "text") for part in row.split(separator))
    return _collect_texts(parts, source, "part", keep_empty)


def find_files(source: str) -> list[Path]:
    """The files of a path, folder or pattern, sorted; empty if there are none."""
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        files = sorted(
            file for file in path.rglob("*") if file.is_file() and file.suffix and file_extension(file) in LOADER_BY_EXTENSION
        )
        if not files:
            known = " ".join(ending for ending in LOADER_BY_EXTENSION if ending)
            raise FileNotFoundError(f"The folder {source} holds no file ending in {known}. Nothing was read.")
        for file in files:
            refuse_link_outside(file, path)
        return files
    return sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())


def read_raw(source: str) -> bytes:
    """The content of one file, decompressed if it ends in `.gz`."""
    files = find_files(source)
    if len(files) != 1:
        raise FileNotFoundError(f"{source!r} names {len(files)} files, and raw text is one. Nothing was read; name one file.")
    return read_bytes(files[0])


def read_lines(file: Path) -> list[str]:
    """The lines of a text file, empty ones included; only a newline ends a line, so that parallel files stay aligned."""
    try:
        text = read_bytes(file).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"The file {file} is not UTF-8 text: {error}. Nothing was read; convert it first.") from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def split_raw(content: bytes, *, held_out: float = 0.05) -> Splits[bytes]:
    """Train, validation and test: the last share `held_out` of the bytes is for test, as much before it for validation."""
    size = round(held_out * len(content))
    if not 0 < size < len(content) / 2:
        raise ValueError(
            f"{len(content):,} bytes are too few to hold out {100 * held_out:g} % twice. Give more text, or another share."
        )
    return Splits(content[: -2 * size], content[-2 * size : -size], content[-size:])


def split_by_hash(texts: Texts, *, held_out: float = 0.05) -> Splits[Texts]:
    """A share `held_out` of the texts for validation and as much for test, by the hash of each text."""
    parts = split_indices(texts.texts, held_out, f"{texts.source} has {len(texts)} texts")
    return _text_splits(texts, [[texts.texts[index] for index in part] for part in parts])


def split_indices(keys: Sequence[str], held_out: float, what: str) -> Splits[list[int]]:
    """Indices of train, validation and test, by the hash of each key: equal keys stay together, whatever other keys there are.
    `what` begins the message of an empty part."""
    parts = _empty_splits(held_out)
    for index, key in enumerate(keys):
        parts[split_index(key, held_out)].append(index)
    if not all(parts):
        sizes = ", ".join(f"{name} ({len(part)})" for name, part in zip(SPLIT_NAMES, parts, strict=True))
        raise ValueError(
            f"{what}, too few to hold out {held_out:.0%} twice: one of {sizes} is empty. Nothing was made; give more, files of "
            f"their own for validation and test, or a larger share."
        )
    return Splits(*parts)


def split_index(key: str, held_out: float) -> int:
    """The part of a key by its hash: 0 train, 1 validation, 2 test; a share `held_out` is in each of the last two."""
    number = unit_hash(key)
    return 1 if number < held_out else 2 if number < 2 * held_out else 0


def unit_hash(text: str) -> float:
    """A number in [0, 1) that is a function of the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest(), "big") / 2**64


def split_by_position(texts: Texts, *, held_out: float = 0.05) -> Splits[Texts]:
    """Cut each of a few long texts at line ends: its last share `held_out` is for test, as much before it for validation."""
    parts = _empty_splits(held_out)
    for text in texts.texts:
        ends = [0]
        for share in (1 - 2 * held_out, 1 - held_out):
            newline = text.find("\n", round(share * len(text)))
            ends.append(len(text) if newline < 0 else newline)
        for part, first, last in zip(parts, ends, [*ends[1:], len(text)], strict=True):
            if text[first:last].strip():
                part.append(text[first:last].strip())
    if not all(parts):
        raise ValueError(
            f"{texts.source} is too short to hold out {100 * held_out:g} % twice by place. Give more text, or a larger share."
        )
    return _text_splits(texts, parts)


def _empty_splits(held_out: float) -> tuple[list[Any], list[Any], list[Any]]:
    if not 0 < held_out < 0.5:
        raise ValueError(f"The share held out lies between 0 and 0.5, not {held_out}.")
    return [], [], []


def _text_splits(texts: Texts, parts: Sequence[Sequence[str]]) -> Splits[Texts]:
    return Splits(*(Texts(tuple(part), f"{texts.source} ({name})") for part, name in zip(parts, SPLIT_NAMES, strict=True)))


def _kind(files: Sequence[Path], source: str) -> str:
    """The loader of all files, which must be the same."""
    endings = sorted({file_extension(file) for file in files})
    unknown = [ending for ending in endings if ending not in LOADER_BY_EXTENSION]
    if unknown:
        known = ", ".join(ending for ending in LOADER_BY_EXTENSION if ending)
        raise ValueError(f"{source}: files ending in {unknown[0]!r} are not read; the known endings are {known}.")
    kinds = {LOADER_BY_EXTENSION[ending] for ending in endings}
    if len(kinds) > 1:
        raise ValueError(f"{source} mixes kinds of files ({', '.join(endings)}). Nothing was read; name one, such as '*.txt'.")
    return kinds.pop()


def _rows(files: Sequence[Path], kind: str, unit: Unit, column: str) -> Iterator[Any]:
    """A column of all files, in order."""
    for file in files:
        if file.stat().st_size == 0:
            raise ValueError(f"The file {file} is empty. Nothing was read; check the path, or leave the file out.")
        yield from _column(file_rows(file, kind, unit), column, str(file))


def file_rows(file: Path, kind: str, unit: Unit) -> Iterator[dict[str, Any]]:
    """Rows of one file, streamed, so that `datasets` makes no copy; its lock file goes to a temporary folder."""
    import datasets

    check_compressed(file)
    if kind == "json":
        check_json_lines(file)
    all_options: dict[str, dict[str, Any]] = {"text": {"sample_by": unit}, "parquet": {"batch_size": 1000}}
    options = all_options.get(kind, {})
    name = glob.escape(str(file.absolute()))
    with tempfile.TemporaryDirectory() as cache, _quiet():
        try:
            rows = datasets.load_dataset(kind, data_files=[name], split="train", streaming=True, cache_dir=cache, **options)
            yield from bounded_rows(rows, file)
        except RefusedError:
            raise
        except UnicodeDecodeError as error:
            raise ValueError(f"The file {file} is not UTF-8 text: {error}. Nothing was read; convert it first.") from error
        except (ValueError, RecursionError, datasets.exceptions.DatasetsError) as error:
            raise ValueError(f"The file {file} is not valid {kind}: {error}. Nothing was read; correct that line.") from error


def _column(rows: Iterable[dict[str, Any]], column: str, where: str) -> Iterator[Any]:
    for row in rows:
        if column not in row:
            raise ValueError(f"{where} has no column {column!r}; its columns are {', '.join(row)}. Nothing was read.")
        yield row[column]


def hub_rows(name: str, split: str = "train") -> Iterator[dict[str, Any]]:
    """Rows of `name`, `name:config` or `name:config:split` (overrides `split`) on the hub; a path is refused."""
    import datasets

    looks_like_path = (
        name.startswith((".", "/", "~"))
        or "\\" in name
        or name.count("/") > 1
        or any(mark in name for mark in "*?[")
        or (Path(name).suffix != "" and file_extension(Path(name)) in LOADER_BY_EXTENSION)
    )
    if looks_like_path:
        raise FileNotFoundError(f"There is no file, folder or pattern {name!r} here. Nothing was read; check the path.")
    path, config, split_in_name = (*name.split(":", 2), "", "")[:3]
    if path in datasets.packaged_modules._PACKAGED_DATASETS_MODULES or Path(path).exists():
        what = "is a folder or file here" if Path(path).exists() else "is the name of a reader, which reads all it finds here"
        raise FileNotFoundError(
            f"{name!r} names no data: {path!r} {what}. Nothing was read; name files by their path, such as ./{path}/train.txt, "
            f"'./{path}/*.jsonl' or data.parquet, or a data set by owner/name."
        )
    with _quiet():
        try:
            rows = datasets.load_dataset(path, config or None, split=split_in_name or split)
        except Exception as error:
            raise FileNotFoundError(
                f"{name!r} is no file here, and no data set that could be fetched: {error}. Nothing was read; check the "
                f"path or the name, or fetch it once while online (HF_HUB_OFFLINE=1 forbids fetching)."
            ) from error
        yield from rows


def _collect_texts(rows: Iterable[Any], source: str, unit: str, empty: bool) -> Texts:
    whole = list(rows)
    for number, row in enumerate(whole):
        if row is not None and not isinstance(row, str):
            raise ValueError(f"{source}: row {number} holds {type(row).__name__} instead of text. Choose another column.")
    texts = tuple(row for row in whole if row is not None and (empty or row.strip()))
    skipped = len(whole) - len(texts)
    if not any(text.strip() for text in texts):
        raise ValueError(f"{source} holds no text: all {skipped:,} {unit}s are empty. Nothing was read.")
    return Texts(texts, source, skipped, unit)


def file_extension(file: Path) -> str:
    """The extension, without a final `.gz`."""
    return Path(file.stem).suffix if file.suffix == ".gz" else file.suffix


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the progress bars and the log of `datasets` within the block."""
    import datasets

    level, bars = datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if not bars:
            datasets.enable_progress_bars()
