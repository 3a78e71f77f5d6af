"""The docstring corpus: English text of Python's standard library, parsed and never imported, without tests, installed packages
and interactive examples; equal docstrings are kept once. The split is by hash. Results are cached in `~/.cache/esscher` (or
below XDG_CACHE_HOME) until a source changes."""

import ast
import contextlib
import functools
import hashlib
import json
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from esscher.core.reading import read_json
from esscher.core.storage import SavingError, write_file
from esscher.data.sources import Splits, Texts, split_by_hash

EXCLUDED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
EXAMPLE = re.compile(r"^[ \t]*>>>.*(?:\n[ \t]*\S.*)*\n?", re.MULTILINE)  # from a prompt to the next blank line
WORD = re.compile(r"[A-Za-z]{2,}")


@functools.cache
def read_docstrings(library: Path | None = None) -> Texts:
    """The distinct docstrings of the standard library (or of another source folder), in order of file name."""
    root = Path(sysconfig.get_paths()["stdlib"]) if library is None else library
    files = sorted(_sources(root))
    texts = _cached_docstrings(root, files)
    if not texts:
        raise FileNotFoundError(f"No docstring was found below {root}: this Python comes without sources. Use a text file.")
    return Texts(texts, f"docstrings of {root.name}")


def docstring_splits() -> Splits[Texts]:
    """The corpus in its fixed split: nine tenths for training, a twentieth each for validation and test."""
    return split_by_hash(read_docstrings(), held_out=0.05)


def _sources(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in EXCLUDED_FOLDERS]  # not entered, because they are large
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _cached_docstrings(root: Path, files: Sequence[Path]) -> tuple[str, ...]:
    """The docstrings of the files, from the cache if neither the files nor this module changed in size or time."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "esscher"
    cache = folder / f"docstrings-{_digest(str(root))}.json"
    state = _digest(repr([(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in [Path(__file__), *files]]))
    try:
        saved = read_json(cache)
        if saved["state"] == state:
            return tuple(saved["docstrings"])
    except (OSError, ValueError, LookupError, TypeError):  # absent or damaged: it is made again
        pass
    texts = tuple(dict.fromkeys(text for file in files for text in _docstrings(file)))
    with contextlib.suppress(SavingError):  # without a writable home the next call takes as long again
        write_file(cache, json.dumps({"state": state, "docstrings": texts}).encode())
    return texts


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _docstrings(file: Path) -> Iterator[str]:
    """The docstrings of a file without interactive examples, trailing whitespace and runs of empty lines."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # sources for other versions of Python
        return
    for node in _documented(tree):
        text = EXAMPLE.sub("", (ast.get_docstring(node) or "").expandtabs())
        text = "\n".join(line.rstrip() for line in text.splitlines())
        text = re.sub(r"\n{3,}", "\n\n", text).strip()
        if len(WORD.findall(text)) >= 3:
            yield text


def _documented(node: ast.AST) -> Iterator[DOCUMENTED]:
    """All nodes that may have a docstring; expressions, which have none, are not visited."""
    if isinstance(node, DOCUMENTED):
        yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _documented(child)
