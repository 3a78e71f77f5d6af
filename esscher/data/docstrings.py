"""The docstring corpus: the English of the running Python's own standard library, on every machine, without download.

The sources are parsed, never imported. Test packages and installed packages are left out, and so are
interactive examples, which are code. Equal docstrings are kept once. The split is by hash, so it is the same
on every machine, and nearly the same for every version of Python.
"""

import ast
import functools
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from esscher.data.sources import Splits, Texts, split_by_hash

LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
EXAMPLE = re.compile(r"^[ \t]*>>>.*(?:\n[ \t]*\S.*)*\n?", re.MULTILINE)  # from a prompt to the next blank line
WORD = re.compile(r"[A-Za-z]{2,}")


@functools.cache
def read_docstrings(library: Path | None = None) -> Texts:
    """All different docstrings of the standard library (or of another folder of sources), in order of file name."""
    root = Path(sysconfig.get_paths()["stdlib"]) if library is None else library
    found: dict[str, None] = {}
    for file in sorted(root.rglob("*.py")):
        if not LEFT_OUT.intersection(file.relative_to(root).parts):
            found.update(dict.fromkeys(_docstrings(file)))
    if not found:
        raise FileNotFoundError(f"No docstring was found below {root}: this Python comes without sources. Use a text file.")
    return Texts(tuple(found), f"docstrings of {root.name}")


def docstring_splits() -> Splits:
    """The corpus in its fixed split: nine tenths to learn from, a twentieth each to choose by and to judge by."""
    return split_by_hash(read_docstrings(), held_out=0.05)


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
