"""Writes `esscher/__init__.pyi`, which tells type checkers where the public names come from: `python tests/stub.py`."""

from pathlib import Path

import esscher

FILE = Path(esscher.__file__).with_suffix(".pyi")
HEAD = '''\
"""The public names for type checkers, which do not see what is loaded when first used. Written by `python tests/stub.py` from
the list in `__init__.py`; a test compares both."""

# ruff: noqa: I001

__version__: str
'''


def stub() -> str:
    """The text of the stub."""
    lines = [HEAD]
    for home, names in sorted(esscher._HOMES.items()):
        lines.append(f"from {home} import (")
        lines += [f"    {name} as {name}," for name in sorted(names)]
        lines.append(")")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(stub(), encoding="utf8")
    print(FILE)
