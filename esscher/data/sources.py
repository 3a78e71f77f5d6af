"""Texts from files or from a Hugging Face data set, read with the library `datasets`.

A source is a path (a file, a folder, a pattern with `*`) or else the name of a data set on the hub; what looks like a path is
never looked for on the hub. Files are text (a text is a line, a paragraph, a whole file, or a part between separators), jsonl
or parquet. Empty texts are left out and counted.
"""

import glob
import gzip
import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

Unit = Literal["line", "paragraph", "document"]
SPLIT_NAMES = ("train", "validation", "test")

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


class Splits(NamedTuple):
    """Texts for training, validation and test."""

    train: Texts
    validation: Texts
    test: Texts


def read_texts(
    source: str,
    *,
    column: str = "text",
    unit: Unit = "line",
    separator: str | None = None,
    keep_empty: bool = False,
) -> Texts:
    """All texts of a source.

    `column` is for jsonl, parquet and the hub; `unit` and `separator` are for text files. `keep_empty` keeps empty texts.
    """
    files = find_files(source)
    if files:
        kind = _kind(files, source)
        rows: Iterator[Any] = _rows(files, kind, "document" if separator is not None else unit, column)
        if kind != "text":
            return _collect_texts(rows, source, "text", keep_empty)
        if separator is not None:
            rows = (part.strip() for row in rows for part in row.split(separator))
        return _collect_texts(rows, source, unit if separator is None else "part", keep_empty)
    refuse_absent(source)
    return _collect_texts(_column(hub_rows(source), column, source), source, "text", keep_empty)


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
        return files
    return sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())


def read_raw(source: str) -> bytes:
    """The content of one file, decompressed if it ends in `.gz`."""
    files = [Path(source).expanduser()] if Path(source).expanduser().is_file() else find_files(source)
    if len(files) != 1:
        raise FileNotFoundError(f"{source!r} names {len(files)} files, and raw text is one. Nothing was read; name one file.")
    return read_bytes(files[0])


def read_bytes(file: Path) -> bytes:
    """The content of a file, decompressed if it ends in `.gz`."""
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


def read_lines(file: Path) -> list[str]:
    """The lines of a text file, empty ones included; only a newline ends a line, so that parallel files stay aligned."""
    try:
        text = read_bytes(file).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"The file {file} is not UTF-8 text: {error}. Nothing was read; convert it first.") from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def split_raw(content: bytes, *, held_out: float = 0.05) -> tuple[bytes, bytes, bytes]:
    """Train, validation and test: the last share `held_out` of the bytes is for test, as much before it for validation."""
    size = round(held_out * len(content))
    if not 0 < size < len(content) / 2:
        raise ValueError(
            f"{len(content):,} bytes are too few to hold out {100 * held_out:g} % twice. Give more text, or another share."
        )
    return content[: -2 * size], content[-2 * size : -size], content[-size:]


def split_by_hash(texts: Texts, *, held_out: float = 0.05) -> Splits:
    """A share `held_out` of the texts for validation and as much for test, by the hash of each text."""
    parts = split_indices(texts.texts, held_out, f"{texts.source} has {len(texts)} texts")
    return _splits(texts, [[texts.texts[index] for index in part] for part in parts])


def split_indices(keys: Sequence[str], held_out: float, what: str) -> tuple[list[int], list[int], list[int]]:
    """Indices of train, validation and test, by the hash of each key; `what` begins the message of an empty part.

    A key stays in its part when others come or go, and equal keys stay together.
    """
    parts = _empty_splits(held_out)
    for index, key in enumerate(keys):
        parts[split_index(key, held_out)].append(index)
    train, validation, test = parts
    if not (train and validation and test):
        raise ValueError(
            f"{what}, too few to hold out {held_out:.0%} twice: one of train ({len(train)}), validation ({len(validation)}), "
            f"test ({len(test)}) is empty. Nothing was made; give more, files of their own for validation and test, or a "
            f"larger share."
        )
    return parts


def split_index(key: str, held_out: float) -> int:
    """The part of a key by its hash: 0 train, 1 validation, 2 test; a share `held_out` is in each of the last two."""
    number = unit_hash(key)
    return 1 if number < held_out else 2 if number < 2 * held_out else 0


def unit_hash(text: str) -> float:
    """A number in [0, 1) that is a function of the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest(), "big") / 2**64


def split_by_position(texts: Texts, *, held_out: float = 0.05) -> Splits:
    """Cut each text at line ends: its last share `held_out` is for test, as much before it for validation.

    For few long texts: what is held out is as connected as the rest.
    """
    parts: tuple[list[str], ...] = _empty_splits(held_out)
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
    return _splits(texts, parts)


def _empty_splits(held_out: float) -> tuple[list[Any], list[Any], list[Any]]:
    """Three empty parts; refuses a share that leaves nothing for one of them."""
    if not 0 < held_out < 0.5:
        raise ValueError(f"The share held out lies between 0 and 0.5, not {held_out}.")
    return [], [], []


def _splits(texts: Texts, parts: Sequence[Sequence[str]]) -> Splits:
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
        yield from _column(file_rows(file, kind, unit), "text" if kind == "text" else column, str(file))


def file_rows(file: Path, kind: str, unit: Unit) -> Iterator[dict[str, Any]]:
    """Rows of one file, streamed, so that `datasets` makes no copy; its lock file goes to a temporary folder."""
    import datasets

    options = {"sample_by": unit} if kind == "text" else {}
    with tempfile.TemporaryDirectory() as cache, _quiet():
        try:
            yield from datasets.load_dataset(
                kind, data_files=[str(file)], split="train", streaming=True, cache_dir=cache, **options
            )
        except UnicodeDecodeError as error:
            raise ValueError(f"The file {file} is not UTF-8 text: {error}. Nothing was read; convert it first.") from error
        except ValueError as error:
            raise ValueError(f"The file {file} is not valid {kind}: {error}. Nothing was read; correct that line.") from error


def _column(rows: Iterable[dict[str, Any]], column: str, where: str) -> Iterator[Any]:
    for row in rows:
        if column not in row:
            raise ValueError(f"{where} has no column {column!r}; its columns are {', '.join(row)}. Nothing was read.")
        yield row[column]


def hub_rows(name: str, split: str = "train") -> Iterator[dict[str, Any]]:
    """Rows of a data set on the hub: `name`, `name:config`, or `name:config:split`, which overrides `split`."""
    import datasets

    path, config, split_in_name = (*name.split(":", 2), "", "")[:3]
    with _quiet():
        try:
            rows = datasets.load_dataset(path, config or None, split=split_in_name or split)
        except Exception as error:
            raise FileNotFoundError(
                f"{name!r} is no file here, and no data set that could be fetched: {error}. Nothing was read; check the "
                f"path or the name, or fetch it once while online (HF_HUB_OFFLINE=1 forbids fetching)."
            ) from error
        yield from rows


def refuse_absent(source: str) -> None:
    """Raise if a source can only be a path; call it where there is no such file."""
    looks_like_path = (
        source.startswith((".", "/", "~"))
        or "\\" in source
        or source.count("/") > 1
        or any(mark in source for mark in "*?[")
        or (Path(source).suffix != "" and file_extension(Path(source)) in LOADER_BY_EXTENSION)
    )
    if looks_like_path:
        raise FileNotFoundError(f"There is no file, folder or pattern {source!r} here. Nothing was read; check the path.")


def _collect_texts(rows: Iterable[Any], source: str, unit: str, empty: bool) -> Texts:
    texts, skipped = [], 0
    for number, row in enumerate(rows):
        if row is not None and not isinstance(row, str):
            raise ValueError(f"{source}: row {number} holds {type(row).__name__} instead of text. Choose another column.")
        if row is None or not (empty or row.strip()):
            skipped += 1
        else:
            texts.append(row)
    if not any(text.strip() for text in texts):
        raise ValueError(f"{source} holds no text: all {skipped:,} {unit}s are empty. Nothing was read.")
    return Texts(tuple(texts), source, skipped, unit)


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
