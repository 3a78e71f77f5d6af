"""Features that can be written down: in YAML, on the command line, in an energy's folder. Without torch.

A declaration is a kind, mostly a value, and a few settings; `esscher.energies.parsing` reads it from text. On `text` a
feature reads the decoded point, of which the end symbol is no part. On `tokens` it reads the numbers of the point's
tokens, the end symbol among them, and its value is such numbers: "12 7 9". Prompts are not read.
`esscher.energies.declared` makes features of declarations, `esscher.energies.tallies` exact ones.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WORD = re.compile(r"\w+(?:['\u2019]\w+)*")  # with straight or curly apostrophes inside


@dataclass(frozen=True)
class Kind:
    """What a kind of feature is, what its value is ("" for none), what it may read, and the settings it has of its own."""

    says: str
    value: str = ""
    on: tuple[str, ...] = ("text", "tokens")
    boolean: bool = False
    settings: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()  # the first is meant when none is given


KINDS: Mapping[str, Kind] = {
    "contains": Kind("1 where the string appears, else 0", "a string", boolean=True),
    "lacks": Kind("1 where the string is absent, else 0", "a string", boolean=True),
    "count": Kind("how often the string appears, overlaps not counted", "a string"),
    "starts-with": Kind("1 where the point begins with the string, else 0", "a string", boolean=True),
    "ends-with": Kind("1 where the point ends with the string, else 0", "a string", boolean=True),
    "matches": Kind("1 where the regular expression is found, else 0", "a regular expression", boolean=True),
    "characters": Kind("how many characters the text has", on=("text",)),
    "words": Kind("how many words the text has, as white space separates them", on=("text",)),
    "tokens": Kind("how many tokens the point has, the end symbol included", on=("tokens",)),
    "word-list": Kind(
        "the share of the words that are in the list, whether there is one, or how many",
        "words, separated by commas",
        settings=("file", "measure"),
        measures=("share", "presence", "count"),
    ),
    "ngram-overlap": Kind(
        "the share of the n-grams that occur in the reference too", "a reference text", settings=("file", "n")
    ),
    "classifier": Kind(
        "the score that a Hugging Face classifier gives a label",
        "the classifier's folder",
        settings=("label", "measure"),
        measures=("probability", "logit"),
    ),
}
DEFAULT_N = 3
COMMON = ("name", "on", "at_least", "negated")  # settings of every kind


@dataclass(frozen=True)
class Declared:
    """`kind` is one of `KINDS`; `value` is what it looks for, where it looks for something.

    `on` is "text" or "tokens" (None: what the kind reads by itself). With `at_least` the feature is 1 where its number
    is at least that, else 0; with `negated`, what was 1 is 0 and the other way round. `file` holds the value of a word
    list or a reference; `digest` names the content of that file, or of the classifier, as it was when weights were fitted.
    """

    kind: str
    value: str = ""
    name: str = ""
    on: str | None = None
    file: str = ""
    measure: str = ""
    n: int | None = None
    label: str = ""
    at_least: float | None = None
    negated: bool = False
    digest: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"No feature of kind {self.kind!r}. Choose from: {', '.join(KINDS)}.")
        _check_settings(self)
        _check_value(self)

    @property
    def reads(self) -> str:
        """What it looks at: "text" or "tokens"."""
        return self.on or KINDS[self.kind].on[0]

    @property
    def measures(self) -> str:
        """The measure of a kind that has several."""
        return self.measure or next(iter(KINDS[self.kind].measures), "")

    @property
    def source(self) -> str:
        """The file or folder whose content the feature depends on; "" for none."""
        return self.value if self.kind == "classifier" else self.file

    @property
    def boolean(self) -> bool:
        """Whether its values are 0 and 1 only."""
        return self.at_least is not None or KINDS[self.kind].boolean or self.measures == "presence"

    @property
    def title(self) -> str:
        """The name in reports: as given, or made of what was declared."""
        if self.name:
            return self.name
        looked_for = Path(self.source).name if self.source else self.value
        size = f"n={self.n or DEFAULT_N}" if self.kind == "ngram-overlap" else ""
        threshold = "" if self.at_least is None else f"at least {self.at_least:g}"
        where = "(tokens)" if self.on == "tokens" and self.kind != "tokens" else ""
        said = ["not" if self.negated else "", self.kind, size, self.label, looked_for, self.measure, threshold, where]
        return " ".join(part for part in said if part)

    @property
    def motif(self) -> tuple[int, ...]:
        """The value of a feature on tokens: their numbers."""
        return token_numbers(self.value)


def token_numbers(value: str) -> tuple[int, ...]:
    """Numbers separated by spaces or commas."""
    pieces = value.replace(",", " ").split()
    wrong = [piece for piece in pieces if not (piece.isascii() and piece.isdecimal())]
    if wrong:
        raise ValueError(
            f"{wrong[0]!r} is no token number; on tokens a value is numbers such as '12 7 9'. Ask the base's tokenizer for "
            f"them (`tokenizer.encode`), because a text may be cut into tokens in many ways, or let the feature read text."
        )
    return tuple(int(piece) for piece in pieces)


def list_words(value: str) -> frozenset[str]:
    """The words of a list, in lower case; each entry must be one word."""
    entries = [entry.strip() for entry in re.split(r"[,\n]", value) if entry.strip()]
    for entry in entries:
        if not WORD.fullmatch(entry):
            raise ValueError(f"{entry!r} is not one word; a word is letters, digits and apostrophes. Separate words by commas.")
    return frozenset(entry.casefold() for entry in entries)


def _check_settings(declared: Declared) -> None:
    kind, known = KINDS[declared.kind], KINDS[declared.kind].settings
    for key in ("file", "measure", "n", "label"):
        if getattr(declared, key) not in ("", None) and key not in known:
            settings = ", ".join([*COMMON, *known])
            raise ValueError(f"A feature of kind {declared.kind!r} has no setting {key!r}. Choose from: {settings}.")
    if declared.on is not None and declared.on not in kind.on:
        raise ValueError(f"A feature of kind {declared.kind!r} reads {' or '.join(kind.on)}, not {declared.on!r}.")
    if declared.measure and declared.measure not in kind.measures:
        measures = ", ".join(kind.measures)
        raise ValueError(f"A feature of kind {declared.kind!r} has no measure {declared.measure!r}. Choose from: {measures}.")
    if declared.n is not None and declared.n < 1:
        raise ValueError(f"An n-gram has at least one word, not n = {declared.n}.")
    if declared.at_least is not None and not abs(declared.at_least) < float("inf"):
        raise ValueError(f"A threshold is a finite number, not at_least = {declared.at_least}.")
    if declared.negated and not declared.boolean:
        raise ValueError(
            f"A feature of kind {declared.kind!r} is a number, which has no opposite; with at_least it becomes a yes or no."
        )


def _check_value(declared: Declared) -> None:
    kind, value = KINDS[declared.kind], declared.value
    if not kind.value:
        if value:
            raise ValueError(f"A feature of kind {declared.kind!r} takes no value; got {value!r}.")
        return
    if declared.file and value:
        raise ValueError(
            f"A feature of kind {declared.kind!r} takes a value or a file, not both: {value!r}, {declared.file!r}."
        )
    if not value and not declared.file:
        or_file = " (or a file)" if "file" in kind.settings else ""
        raise ValueError(
            f"A feature of kind {declared.kind!r} needs a value to look for{or_file}, {kind.value}; an empty one is everywhere."
        )
    if declared.kind == "matches":
        _compile(value)
    elif declared.kind != "classifier" and not declared.file:
        if declared.reads == "tokens" and not token_numbers(value):
            raise ValueError(f"There is no token number in {value!r}.")
        if declared.kind == "word-list" and declared.reads == "text" and not list_words(value):
            raise ValueError(f"There is no word in {value!r}.")


def _compile(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"The pattern {pattern!r} is no regular expression: {error}.") from error
