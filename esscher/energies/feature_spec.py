"""Declared features: what YAML files, the command line and the folder of an energy say about a feature. Without torch.

On `text` a feature reads the decoded point without its end symbol; on `tokens` the token ids of the point with its end symbol,
and its value is ids, too: "12 7 9". Prompts are not read. The long form is a mapping, the short form one string
`kind[setting=value,flag]:value`:

    {kind: word-list, value: [happy, glad], measure: presence}
    word-list[measure=presence]:happy,glad
    word-list:@happy.txt                          the words are in a file
    starts-with[negated,name=no article]:The
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from esscher.core.reading import read_yaml

WORD = re.compile(r"\w+(?:['\u2019]\w+)*")  # with straight or curly apostrophes inside


@dataclass(frozen=True)
class FeatureKind:
    """A kind of feature: its meaning, its value ("" for none), what it can read, and its own settings."""

    says: str
    value: str = ""
    on: tuple[str, ...] = ("text", "tokens")
    boolean: bool = False
    settings: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()  # the first is the default


FEATURE_KINDS: Mapping[str, FeatureKind] = {
    "contains": FeatureKind("1 where the string appears, else 0", "a string", boolean=True),
    "lacks": FeatureKind("1 where the string is absent, else 0", "a string", boolean=True),
    "count": FeatureKind("how often the string appears, overlaps not counted", "a string"),
    "starts-with": FeatureKind("1 where the point begins with the string, else 0", "a string", boolean=True),
    "ends-with": FeatureKind("1 where the point ends with the string, else 0", "a string", boolean=True),
    "matches": FeatureKind("1 where the regular expression is found, else 0", "a regular expression", boolean=True),
    "hash": FeatureKind(
        "1 where the BLAKE2b hash of the text begins with so many zero bits, else 0",
        "a number of bits",
        on=("text",),
        boolean=True,
    ),
    "characters": FeatureKind("how many characters the text has", on=("text",)),
    "words": FeatureKind("how many words the text has, as white space separates them", on=("text",)),
    "tokens": FeatureKind("how many tokens the point has, the end symbol included", on=("tokens",)),
    "word-list": FeatureKind(
        "the share of the words that are in the list, whether there is one, or how many",
        "words, separated by commas",
        settings=("file", "measure"),
        measures=("share", "presence", "count"),
    ),
    "ngram-overlap": FeatureKind(
        "the share of the n-grams that occur in the reference too", "a reference text", settings=("file", "n")
    ),
    "classifier": FeatureKind(
        "the score that a Hugging Face classifier gives a label",
        "the classifier's folder",
        settings=("label", "measure"),
        measures=("probability", "logit"),
    ),
}
DEFAULT_N = 3
COMMON_SETTINGS = ("name", "on", "at_least", "negated")  # settings of every kind


@dataclass(frozen=True)
class FeatureSpec:
    """A declared feature. `kind` is one of `FEATURE_KINDS`; `value` is what it looks for.

    `on` is "text" or "tokens" (None: the default of the kind). With `at_least` the feature is 1 where its value is at least
    that, else 0; `negated` swaps 0 and 1. `file` holds the value of a word list or a reference; `digest` is that of the content
    of the file, or of the classifier, when weights were fitted.
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
        if self.kind not in FEATURE_KINDS:
            raise ValueError(f"No feature of kind {self.kind!r}. Choose from: {', '.join(FEATURE_KINDS)}.")
        _check_settings(self)
        _check_value(self)

    @property
    def reads(self) -> str:
        """ "text" or "tokens"."""
        return self.on or FEATURE_KINDS[self.kind].on[0]

    @property
    def measures(self) -> str:
        """The measure; "" for kinds without one."""
        return self.measure or next(iter(FEATURE_KINDS[self.kind].measures), "")

    @property
    def source(self) -> str:
        """The file or folder whose content the feature depends on; "" for none."""
        return self.value if self.kind == "classifier" else self.file

    @property
    def boolean(self) -> bool:
        """Whether its values are 0 and 1."""
        return self.at_least is not None or FEATURE_KINDS[self.kind].boolean or self.measures == "presence"

    @property
    def is_share(self) -> bool:
        """Whether its values lie between 0 and 1."""
        return self.boolean or self.measures in ("share", "probability") or self.kind == "ngram-overlap"

    @property
    def title(self) -> str:
        """The name in reports: `name`, or else a description."""
        if self.name:
            return self.name
        value = Path(self.source).name if self.source else self.value
        size = f"n={self.n or DEFAULT_N}" if self.kind == "ngram-overlap" else ""
        threshold = "" if self.at_least is None else f"at least {self.at_least:g}"
        where = "(tokens)" if self.on == "tokens" and self.kind != "tokens" else ""
        words = ["not" if self.negated else "", self.kind, size, self.label, value, self.measure, threshold, where]
        return " ".join(filter(None, words))

    @property
    def motif(self) -> tuple[int, ...]:
        """The value of a feature on tokens: their ids."""
        return token_numbers(self.value)


def token_numbers(value: str) -> tuple[int, ...]:
    """Token ids separated by spaces or commas."""
    pieces = value.replace(",", " ").split()
    wrong = [piece for piece in pieces if not (piece.isascii() and piece.isdecimal())]
    if wrong:
        raise ValueError(
            f"{wrong[0]!r} is no token id; on tokens a value is ids such as '12 7 9'. Ask the base's tokenizer for them "
            f"(`tokenizer.encode`), because a text can be tokenized in many ways, or let the feature read text."
        )
    return tuple(int(piece) for piece in pieces)


def list_words(value: str) -> frozenset[str]:
    """The words of a list, case-folded; each entry must be one word."""
    entries = [entry.strip() for entry in re.split(r"[,\n]", value) if entry.strip()]
    for entry in entries:
        if not WORD.fullmatch(entry):
            raise ValueError(f"{entry!r} is not one word; a word is letters, digits and apostrophes. Separate words by commas.")
    return frozenset(entry.casefold() for entry in entries)


def _check_settings(spec: FeatureSpec) -> None:
    kind, known = FEATURE_KINDS[spec.kind], FEATURE_KINDS[spec.kind].settings
    for key in ("file", "measure", "n", "label"):
        if getattr(spec, key) not in ("", None) and key not in known:
            settings = ", ".join([*COMMON_SETTINGS, *known])
            raise ValueError(f"A feature of kind {spec.kind!r} has no setting {key!r}. Choose from: {settings}.")
    if spec.on is not None and spec.on not in kind.on:
        raise ValueError(f"A feature of kind {spec.kind!r} reads {' or '.join(kind.on)}, not {spec.on!r}.")
    if spec.measure and spec.measure not in kind.measures:
        measures = ", ".join(kind.measures)
        raise ValueError(f"A feature of kind {spec.kind!r} has no measure {spec.measure!r}. Choose from: {measures}.")
    if spec.n is not None and spec.n < 1:
        raise ValueError(f"An n-gram has at least one word, not n = {spec.n}.")
    if spec.at_least is not None and not abs(spec.at_least) < float("inf"):
        raise ValueError(f"A threshold is a finite number, not at_least = {spec.at_least}.")
    if spec.negated and not spec.boolean:
        raise ValueError(f"A feature of kind {spec.kind!r} is a number and cannot be negated; with at_least it becomes 0 or 1.")


def _check_value(spec: FeatureSpec) -> None:
    kind, value = FEATURE_KINDS[spec.kind], spec.value
    if not kind.value:
        if value:
            raise ValueError(f"A feature of kind {spec.kind!r} takes no value; got {value!r}.")
        return
    if spec.file and value:
        raise ValueError(f"A feature of kind {spec.kind!r} takes a value or a file, not both: {value!r}, {spec.file!r}.")
    if not value and not spec.file:
        or_file = " (or a file)" if "file" in kind.settings else ""
        raise ValueError(f"A feature of kind {spec.kind!r} needs a value to look for{or_file}, {kind.value}.")
    if spec.kind == "matches":
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"The pattern {value!r} is no regular expression: {error}.") from error
    elif spec.kind == "hash":
        if not (value.isascii() and value.isdecimal() and 1 <= int(value) <= 64):
            raise ValueError(f"A hash begins with 1 to 64 zero bits, not {value!r}.")
    elif spec.kind != "classifier" and not spec.file:
        if spec.reads == "tokens" and not token_numbers(value):
            raise ValueError(f"There is no token id in {value!r}.")
        if spec.kind == "word-list" and spec.reads == "text" and not list_words(value):
            raise ValueError(f"There is no word in {value!r}.")


def parse_feature(form: str | Mapping[str, Any] | FeatureSpec) -> FeatureSpec:
    """A declaration from its short or long form; a `FeatureSpec` is returned as it is."""
    if isinstance(form, FeatureSpec):
        return form
    try:
        return spec_from_dict(_parse_short(form) if isinstance(form, str) else form)
    except ValueError as error:
        raise ValueError(f"The feature {form if isinstance(form, str) else dict(form)!r} cannot be used: {error}") from error


def parse_features(forms: Sequence[str | Mapping[str, Any] | FeatureSpec]) -> tuple[FeatureSpec, ...]:
    """Declarations in order, with distinct titles, which identify their weights."""
    specs = tuple(parse_feature(form) for form in forms)
    titles = [spec.title for spec in specs]
    duplicates = sorted({title for title in titles if titles.count(title) > 1})
    if duplicates:
        raise ValueError(f"Two features are called {duplicates[0]!r}. Give each a name of its own, for instance [name=...].")
    return specs


def read_features(file: str | Path) -> tuple[FeatureSpec, ...]:
    """The features of a YAML file: a list of short or long forms, or a mapping with such a list under `features`."""
    content = read_yaml(Path(file), then="Nothing was done; check the path, and quote values with special signs.")
    forms = content.get("features") if isinstance(content, Mapping) and set(content) == {"features"} else content
    if not isinstance(forms, list) or not all(isinstance(form, str | Mapping) for form in forms):
        raise ValueError(f"{file} holds no list of features (or a mapping with just the key 'features'). Nothing was done.")
    try:
        return parse_features(forms)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def spec_to_dict(spec: FeatureSpec) -> dict[str, Any]:
    """The long form, without settings at their defaults; the inverse of `spec_from_dict`."""
    return {field.name: value for field in fields(spec) if (value := getattr(spec, field.name)) != field.default}


def spec_from_dict(form: Mapping[str, Any]) -> FeatureSpec:
    """The declaration of a long form; an unknown key, or a value of the wrong type (as YAML guessed it), is an error."""
    known = [field.name for field in fields(FeatureSpec)]
    unknown = [key for key in form if key not in known]
    if unknown:
        raise ValueError(f"No setting {unknown[0]!r}. Choose from: {', '.join(known)}.")
    if "kind" not in form:
        raise ValueError(f"It has no kind. Choose from: {', '.join(FEATURE_KINDS)}.")
    return FeatureSpec(**{key: _checked(key, value) for key, value in form.items()})


def _parse_short(form: str) -> dict[str, Any]:
    """The long form of `kind[setting=value,flag]:value`."""
    match = re.fullmatch(r"([^:\[\]]*)(?:\[([^\]]*)\])?(?::(.*))?", form, flags=re.DOTALL)
    if match is None:
        raise ValueError("It is not of the form kind:value or kind[setting=value,...]:value.")
    kind, settings, value = match.groups()
    long: dict[str, Any] = {"kind": kind.strip()}
    for setting in (settings or "").split(",") if settings else []:
        key, equals, text = setting.partition("=")
        long[key.strip()] = _typed(key.strip(), text.strip()) if equals else True
    if value is not None:
        takes_file = kind in FEATURE_KINDS and "file" in FEATURE_KINDS[kind].settings
        long |= {"file": value[1:]} if takes_file and value.startswith("@") else {"value": value}
    return long


def _typed(key: str, text: str) -> Any:
    """The setting of a short form, converted to its type."""
    if key == "negated" and text in ("true", "false"):
        return text == "true"
    try:
        return {"n": int, "at_least": float}.get(key, str)(text)
    except ValueError as error:
        raise ValueError(f"The setting {key!r} is a number, not {text!r}.") from error


def _checked(key: str, value: Any) -> Any:
    """The setting of a long form, converted where that is unambiguous."""
    if key == "value" and isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return ",".join(map(str, value))
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and key in ("label", "at_least"):
        return str(value) if key == "label" else float(value)
    numeric = {"n": int, "at_least": float, "negated": bool}
    right = isinstance(value, numeric.get(key, str)) and (key != "n" or whole)
    if not right and not (value is None and key in ("on", "n", "at_least")):
        advice = "" if key in numeric else "; put it in quotes"
        wanted = {"n": "a whole number", "at_least": "a number", "negated": "true or false"}.get(key, "a string")
        raise ValueError(f"The setting {key!r} is {wanted}, and {value!r} was read as {type(value).__name__}{advice}.")
    return value
