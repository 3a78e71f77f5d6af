"""The one place where text goes to the terminal, without torch: control characters in it are shown, never sent.

Texts, paths and settings come from others; an escape sequence in them could rewrite the screen, the title or the clipboard, and
overrides of the direction of writing can make a text read as another. `escaped` shows each such character as its escape, as
Python writes it. Newlines and tabs stay.
"""

import sys
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

SENT = "\n\t"
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}  # controls, format characters such as bidi overrides, surrogates, line separators
JOINERS = "\u200c\u200d"  # part of words in Persian and of emoji


def escaped(text: str) -> str:
    """The text with each character that a terminal would obey, or not show, as its escape."""
    if text.isprintable():
        return text
    return "".join(_escape(character) for character in text)


@cache
def _escape(character: str) -> str:
    if character in SENT or character in JOINERS or unicodedata.category(character) not in HIDDEN:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()


def write_line(text: str, *, error: bool = False, end: str = "\n") -> None:
    """Write text to standard output, or to standard error."""
    print(escaped(text), file=sys.stderr if error else sys.stdout, end=end, flush=True)


def write_data(text: str) -> None:
    """Write the text of a result to standard output as it is, unless that is a terminal."""
    stream: TextIO = sys.stdout
    print(escaped(text) if stream.isatty() else text, end="", flush=True)


class EscapedConsole(Console):
    """A console of `rich` that escapes the text of whatever it shows; its own colours are sent."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escaped(segment.text), segment.style)


def console(*, error: bool = False, **options: Any) -> EscapedConsole:
    """A console on standard output or standard error."""
    return EscapedConsole(stderr=error, **options)
