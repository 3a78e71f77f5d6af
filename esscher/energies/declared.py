"""Features that can be written down: in YAML, on the command line, in an energy's folder.

A declaration is a kind, a value and a name; `declared_feature` makes it a `Feature` of the decoded text. The
end symbol is not part of the text.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from esscher.energies.features import Feature, of_text

Decode = Callable[[list[list[int]]], list[str]]

JUDGES: Mapping[str, Callable[[str, str], float]] = {
    "contains": lambda text, value: float(value in text),
    "lacks": lambda text, value: float(value not in text),
    "count": lambda text, value: float(text.count(value)),
    "starts-with": lambda text, value: float(text.startswith(value)),
    "ends-with": lambda text, value: float(text.endswith(value)),
    "matches": lambda text, value: float(re.search(value, text) is not None),
    "characters": lambda text, value: float(len(text)),
    "words": lambda text, value: float(len(text.split())),
}


@dataclass(frozen=True)
class Declared:
    """`kind` is one of `JUDGES`; `value` is the string or pattern it looks for, where it looks for one."""

    kind: str
    value: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if self.kind not in JUDGES:
            raise ValueError(f"No feature of kind {self.kind!r}. Choose from: {', '.join(JUDGES)}.")
        if self.kind in ("characters", "words"):
            if self.value:
                raise ValueError(f"A feature of kind {self.kind!r} takes no value; got {self.value!r}.")
        elif not self.value:
            raise ValueError(f"A feature of kind {self.kind!r} needs a value to look for; an empty one is everywhere.")
        if self.kind == "matches":
            _compile(self.value)

    @property
    def title(self) -> str:
        return self.name or f"{self.kind} {self.value}".strip()


def declared_feature(declared: Declared, decode: Decode) -> Feature:
    """The feature of a declaration, read off text that `decode` makes of tokens."""
    judge = JUDGES[declared.kind]
    return of_text(declared.title, decode, lambda text: judge(text, declared.value))


def _compile(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"The pattern {pattern!r} is no regular expression: {error}.") from error
