"""Files of others, read with bounds, without torch: links, and compressed data (`reading` has JSON and YAML).

A file of a few bytes can stand for gigabytes: gzip, zip and image formats. What such a file
expands to is counted while it is read, and refused beyond `MAX_RATIO` times the size of the file; up to `FREE_BYTES` any ratio
passes, because short texts that repeat themselves are common. Errors name the file.
"""

import gzip
import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

FREE_BYTES = 64 * 2**20  # what any file may expand to
MAX_RATIO = 200  # text compresses 3 to 20 times, at most 1,032 times in gzip
MAX_DEPTH = 500  # of brackets in a line of jsonl: more of them overflow the stack of the parsers of data libraries
CHUNK = 2**20
SIGNATURES = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd",
              b"\x04\x22\x4d\x18": "lz4"}  # fmt: skip
T = TypeVar("T")


class RefusedError(ValueError):
    """What a file of others may not do, or would cost too much; the message says all, and callers add nothing to it."""


def refuse_link_outside(file: Path, folder: Path) -> None:
    """Refuse a symbolic link that leads out of a folder; those of a snapshot in Hugging Face's cache lead to its blobs."""
    target = Path(os.path.realpath(file))
    if not file.is_symlink() or target.is_relative_to(os.path.realpath(folder)):
        return
    cache = folder.absolute().parent
    if cache.name == "snapshots" and target.is_relative_to(os.path.realpath(cache.parent / "blobs")):
        return
    raise RefusedError(
        f"{file} is a link to {target}, outside of its folder. Nothing was read; put the file itself there if you trust it."
    )


def expansion_limit(size: int) -> int:
    """The most bytes that a file of this size may expand to."""
    return max(FREE_BYTES, MAX_RATIO * size)


def refuse_expansion(file: Path, expanded: int) -> None:
    """Refuse a file that expands to more than its limit."""
    size = file.stat().st_size
    if expanded > expansion_limit(size):
        raise RefusedError(
            f"The file {file} has {size:,} bytes and expands to more than {expansion_limit(size):,}: texts and images do not "
            f"compress {MAX_RATIO} times. Nothing was read; if you trust the file, unpack it first."
        )


def read_bytes(file: Path) -> bytes:
    """The content of a file, decompressed if it ends in `.gz`."""
    if file.suffix != ".gz":
        return file.read_bytes()
    parts: list[bytes] = []
    with open_bytes(file) as content:
        while part := content.read(CHUNK):
            parts.append(part)
    return b"".join(parts)


@contextmanager
def open_bytes(file: Path) -> Iterator[IO[bytes]]:
    """A file to read bytes from, decompressed if it ends in `.gz`, up to its limit; a broken one is an error that names it."""
    if file.suffix != ".gz":
        with file.open("rb") as plain:
            yield plain
        return
    try:
        with gzip.open(file) as packed, io.BufferedReader(_Counted(packed, file), CHUNK) as content:
            yield content
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"The file {file} is no gzip file, or cut short: {error}. Nothing was read; restore it.") from error


class _Counted(io.RawIOBase):
    """Bytes of a compressed file, counted against its limit."""

    def __init__(self, content: Any, file: Path):
        self.content, self.file, self.expanded = content, file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part: bytes = self.content.read(min(len(buffer), CHUNK))
        self.expanded += len(part)
        refuse_expansion(self.file, self.expanded)
        buffer[: len(part)] = part
        return len(part)


def check_compressed(file: Path) -> None:
    """Refuse a `.gz` file that expands beyond its limit, and compressed content under a name that does not say so: libraries
    that sniff the content would unpack it."""
    with file.open("rb") as content:
        begin = content.read(8)
    kind = next((kind for signature, kind in SIGNATURES.items() if begin.startswith(signature)), None)
    if file.suffix == ".gz":
        with open_bytes(file) as content:
            while content.read(CHUNK):
                pass
    elif kind is not None:
        raise ValueError(
            f"The file {file} is compressed ({kind}), and its name does not say so. Nothing was read; unpack it, or let the "
            f"name of a gzip file end in .gz."
        )


def check_json_lines(file: Path) -> None:
    """Refuse a file of JSON lines with a line that is nested more than `MAX_DEPTH` deep."""
    with open_bytes(file) as lines:
        for number, line in enumerate(lines, 1):
            if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _depth(line) > MAX_DEPTH:
                raise RefusedError(
                    f"Line {number} of {file} is nested more than {MAX_DEPTH} deep. Nothing was read; take the line out."
                )


def _depth(line: bytes) -> int:
    """How deep brackets are nested outside of strings."""
    depth = deepest = 0
    for mark in re.findall(rb"[\[{\]}]", re.sub(rb'"(?:[^"\\]|\\.)*+"', b"", line)):
        depth += 1 if mark in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def bounded_rows(rows: Iterable[T], file: Path) -> Iterator[T]:
    """The rows of a file, counted by the characters in them against its limit."""
    expanded = 0
    for row in rows:
        values = row.values() if isinstance(row, dict) else (row,)
        expanded += 8 + sum(len(value) if isinstance(value, str | bytes | list) else 8 for value in values)
        refuse_expansion(file, expanded)
        yield row


def check_zip(file: Path) -> None:
    """Refuse a zip archive (such as .npz) whose members expand beyond its limit; the sizes they state bound what is read."""
    try:
        with zipfile.ZipFile(file) as archive:
            refuse_expansion(file, sum(member.file_size for member in archive.infolist()))
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"The file {file} is no zip archive, or cut short: {error}. Nothing was read; restore it.") from error
