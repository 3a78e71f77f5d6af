"""Texts from files or from a Hugging Face data set, read with the library `datasets`.

A name is first a path here (a file, a folder, a pattern with `*`), and only then a name on the hub; what
looks like a path is never looked for on the hub. Files are text (a text is a line, a paragraph, a whole
file, or what stands between separators), jsonl or parquet. Empty texts are left out and counted.
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
NAMES = ("train", "validation", "test")

KINDS = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".tsv": "text",
    "": "text",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}  # a name's ending: the loader of `datasets` that reads it


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
    """Texts to learn from, to choose by, and to judge by."""

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
    """All texts of a source; `column` matters for jsonl, parquet and the hub, `unit` and `separator` for text files.

    Empty texts are left out, unless `keep_empty`.
    """
    files = find_files(source)
    if files:
        kind = _kind(files, source)
        rows: Iterator[Any] = _rows(files, kind, "document" if separator is not None else unit, column)
        if kind == "text" and separator is not None:
            rows = (part.strip() for row in rows for part in row.split(separator))
        return _keep(rows, source, ("part" if separator is not None else unit) if kind == "text" else "text", keep_empty)
    refuse_absent(source)
    return _keep(_column(hub_rows(source), column, source), source, "text", keep_empty)


def find_files(source: str) -> list[Path]:
    """The files that a path, folder or pattern names, sorted; none, when it names nothing."""
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix and ending(file) in KINDS)
        if not files:
            known = " ".join(ending for ending in KINDS if ending)
            raise FileNotFoundError(f"The folder {source} holds no file ending in {known}. Nothing was read.")
        return files
    return sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())


def read_raw(source: str) -> bytes:
    """The content of one file as it is, unpacked if it ends in `.gz`."""
    files = [Path(source).expanduser()] if Path(source).expanduser().is_file() else find_files(source)
    if len(files) != 1:
        raise FileNotFoundError(f"{source!r} names {len(files)} files, and raw text is one. Nothing was read; name one file.")
    return _unpacked(files[0])


def _unpacked(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


def read_lines(file: Path) -> list[str]:
    """The lines of a text file, empty ones too; only a newline ends a line, so that files stay aligned."""
    try:
        text = _unpacked(file).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"The file {file} is not UTF-8 text: {error}. Nothing was read; convert it first.") from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def split_raw(content: bytes, *, held_out: float = 0.05) -> tuple[bytes, bytes, bytes]:
    """The last share `held_out` of the bytes for test, as much before it for validation, and all before that to learn from."""
    size = round(held_out * len(content))
    if not 0 < size < len(content) / 2:
        raise ValueError(
            f"{len(content):,} bytes are too few to hold out {100 * held_out:g} % twice. Give more text, or another share."
        )
    return content[: -2 * size], content[-2 * size : -size], content[-size:]


def split_by_hash(texts: Texts, *, held_out: float = 0.05) -> Splits:
    """Each text's own hash decides where it goes: a share `held_out` to validation, as much to test.

    A text stays where it is when others come or go, and equal texts stay together.
    """
    places = _places(held_out)
    for text in texts.texts:
        places[part_of(text, held_out)].append(text)
    if not all(places):
        raise ValueError(
            f"{texts.source} has {len(texts)} texts, too few to hold out {held_out:.0%} twice: one of train "
            f"({len(places[0])}), validation ({len(places[1])}), test ({len(places[2])}) is empty. Give more texts, "
            f"files of their own for validation and test, or a larger share."
        )
    return _splits(texts, places)


def part_of(text: str, held_out: float) -> int:
    """Where the hash of a text puts it: 0 to train, 1 to validation, 2 to test, a share `held_out` to either of these."""
    number = hashed(text)
    return 1 if number < held_out else 2 if number < 2 * held_out else 0


def hashed(text: str) -> float:
    """A number from 0 to 1 that is a function of the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest(), "big") / 2**64


def split_by_place(texts: Texts, *, held_out: float = 0.05) -> Splits:
    """Each text is cut where lines end: its last share `held_out` goes to test, as much before it to validation.

    For few long texts: what is held out is as connected as the rest.
    """
    places = _places(held_out)
    for text in texts.texts:
        ends = [0, *(_line_end(text, round(share * len(text))) for share in (1 - 2 * held_out, 1 - held_out)), len(text)]
        for place, first, last in zip(places, ends, ends[1:], strict=False):
            if text[first:last].strip():
                place.append(text[first:last].strip())
    if not all(places):
        raise ValueError(
            f"{texts.source} is too short to hold out {100 * held_out:g} % twice by place. Give more text, or a larger share."
        )
    return _splits(texts, places)


def _places(held_out: float) -> tuple[list[str], list[str], list[str]]:
    """Where the texts of the three parts go, for a share that leaves something of each."""
    if not 0 < held_out < 0.5:
        raise ValueError(f"The share held out lies between 0 and 0.5, not {held_out}.")
    return [], [], []


def _splits(texts: Texts, places: Sequence[Sequence[str]]) -> Splits:
    return Splits(*(Texts(tuple(place), f"{texts.source} ({name})") for place, name in zip(places, NAMES, strict=True)))


def _line_end(text: str, place: int) -> int:
    """The next place where a line ends."""
    found = text.find("\n", place)
    return len(text) if found < 0 else found


def _kind(files: Sequence[Path], source: str) -> str:
    """The one loader for all files."""
    endings = sorted({ending(file) for file in files})
    unknown = [ending for ending in endings if ending not in KINDS]
    if unknown:
        known = ", ".join(ending for ending in KINDS if ending)
        raise ValueError(f"{source}: files ending in {unknown[0]!r} are not read; the known endings are {known}.")
    kinds = {KINDS[ending] for ending in endings}
    if len(kinds) > 1:
        raise ValueError(f"{source} mixes kinds of files ({', '.join(endings)}). Nothing was read; name one, such as '*.txt'.")
    return kinds.pop()


def _rows(files: Sequence[Path], kind: str, unit: Unit, column: str) -> Iterator[Any]:
    """One column of all files, in order."""
    for file in files:
        if file.stat().st_size == 0:
            raise ValueError(f"The file {file} is empty. Nothing was read; check the path, or leave the file out.")
        yield from _column(file_rows(file, kind, unit), "text" if kind == "text" else column, str(file))


def file_rows(file: Path, kind: str, unit: Unit) -> Iterator[dict[str, Any]]:
    """Rows of one file, streamed: `datasets` then makes no copy, and its lock file goes to a folder of its own."""
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
            raise ValueError(f"The file {file} is not valid {kind}: {error}. Nothing was read; mend that line.") from error


def _column(rows: Iterable[dict[str, Any]], column: str, where: str) -> Iterator[Any]:
    for row in rows:
        if column not in row:
            raise ValueError(f"{where} has no column {column!r}; its columns are {', '.join(row)}. Nothing was read.")
        yield row[column]


def hub_rows(name: str, split: str = "train") -> Iterator[dict[str, Any]]:
    """The rows of a data set by its name on the hub: `name`, `name:config`, or `name:config:split`, which replaces `split`."""
    import datasets

    path, config, own = (*name.split(":", 2), "", "")[:3]
    with _quiet():
        try:
            rows = datasets.load_dataset(path, config or None, split=own or split)
        except Exception as error:
            raise FileNotFoundError(
                f"{name!r} is no file here, and no data set that could be fetched: {error}. Nothing was read; check the "
                f"path or the name, or fetch it once while online (HF_HUB_OFFLINE=1 forbids fetching)."
            ) from error
        yield from rows


def refuse_absent(source: str) -> None:
    """An error for what can only be a path, where there is nothing."""
    if _looks_like_path(source):
        raise FileNotFoundError(f"There is no file, folder or pattern {source!r} here. Nothing was read; check the path.")


def _keep(rows: Iterable[Any], source: str, unit: str, empty: bool) -> Texts:
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


def _looks_like_path(source: str) -> bool:
    return (
        source.startswith((".", "/", "~"))
        or "\\" in source
        or source.count("/") > 1
        or any(mark in source for mark in "*?[")
        or (Path(source).suffix != "" and ending(Path(source)) in KINDS)
    )


def ending(file: Path) -> str:
    """The ending that tells the kind; a compressed file has it before `.gz`."""
    return Path(file.stem).suffix if file.suffix == ".gz" else file.suffix


@contextmanager
def _quiet() -> Iterator[None]:
    """Within it `datasets` shows no bars and logs nothing; its settings are put back."""
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
