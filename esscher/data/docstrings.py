"""The docstring corpus: the English of the running Python's own standard library, on every machine, without download.

The sources are parsed, never imported. Test packages and installed packages are left out, and so are
interactive examples, which are code. Equal docstrings are kept once. The split is by hash, so it is the same
on every machine, and nearly the same for every version of Python. What was found is kept in the user's cache folder
(`~/.cache/esscher`, or below XDG_CACHE_HOME), one file for each folder of sources, and found anew when they change.
"""

import ast
import functools
import hashlib
import json
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from esscher.data.sources import Splits, Texts, split_by_hash
from esscher.storage import SavingError, write_file

LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
EXAMPLE = re.compile(r"^[ \t]*>>>.*(?:\n[ \t]*\S.*)*\n?", re.MULTILINE)  # from a prompt to the next blank line
WORD = re.compile(r"[A-Za-z]{2,}")


@functools.cache
def read_docstrings(library: Path | None = None) -> Texts:
    """All different docstrings of the standard library (or of another folder of sources), in order of file name."""
    root = Path(sysconfig.get_paths()["stdlib"]) if library is None else library
    files = sorted(_sources(root))
    place, state = _place(root), _state(files)
    found = _kept(place, state)
    if found is None:
        found = tuple(dict.fromkeys(text for file in files for text in _docstrings(file)))
        _keep(place, state, found)
    if not found:
        raise FileNotFoundError(f"No docstring was found below {root}: this Python comes without sources. Use a text file.")
    return Texts(found, f"docstrings of {root.name}")


def docstring_splits() -> Splits:
    """The corpus in its fixed split: nine tenths to learn from, a twentieth each to choose by and to judge by."""
    return split_by_hash(read_docstrings(), held_out=0.05)


def _sources(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in LEFT_OUT]  # not entered: packages installed there are many
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _place(root: Path) -> Path:
    """Where the docstrings of this folder are kept."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "esscher"
    return folder / f"docstrings-{_digest(str(root))}.json"


def _state(files: Sequence[Path]) -> str:
    """Another size or time of a file, or other rules, are another state."""
    known = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in [Path(__file__), *files]]
    return _digest(repr(known))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _kept(place: Path, state: str) -> tuple[str, ...] | None:
    try:
        kept = json.loads(place.read_text(encoding="utf8"))
        return tuple(kept["docstrings"]) if kept["state"] == state else None
    except (OSError, ValueError, LookupError, TypeError):  # not there yet, or damaged: it is made anew
        return None


def _keep(place: Path, state: str, found: tuple[str, ...]) -> None:
    try:
        write_file(place, json.dumps({"state": state, "docstrings": found}).encode())
    except SavingError:  # a home that cannot be written to costs time at every call, and nothing else
        return


def _docstrings(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # sources of other versions, kept as data
        return
    for node in _documented(tree):
        text = _clean(ast.get_docstring(node) or "")
        if len(WORD.findall(text)) >= 3:
            yield text


def _documented(node: ast.AST) -> Iterator[DOCUMENTED]:
    """A node and all in it that may have a docstring; expressions, which have none, are not entered."""
    if isinstance(node, DOCUMENTED):
        yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _documented(child)


def _clean(text: str) -> str:
    """Without interactive examples, trailing blanks and runs of empty lines."""
    text = EXAMPLE.sub("", text.expandtabs())
    text = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", text).strip()
