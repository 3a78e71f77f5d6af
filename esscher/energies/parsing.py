"""Declarations from what people write: one string, a mapping, a YAML file. Without torch.

The long form is a mapping, the short form one string `kind[setting=value,flag]:value`:

    {kind: word-list, value: [happy, glad], measure: presence}
    word-list[measure=presence]:happy,glad
    word-list:@happy.txt                          the words are in a file
    starts-with[negated,name=no article]:The

`to_dict` and `from_dict` are inverse to each other. An error names the piece that is wrong and lists what would be right.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from esscher.energies.declaration import KINDS, Declared


def parse_feature(given: str | Mapping[str, Any] | Declared) -> Declared:
    """A declaration from its short form, its long form, or as it is."""
    if isinstance(given, Declared):
        return given
    try:
        return from_dict(_short(given) if isinstance(given, str) else given)
    except ValueError as error:
        raise ValueError(f"The feature {given if isinstance(given, str) else dict(given)!r} cannot be used: {error}") from error


def parse_features(given: Sequence[str | Mapping[str, Any] | Declared]) -> tuple[Declared, ...]:
    """Declarations in order; two with the same title are an error, because weights are told apart by it."""
    declared = tuple(parse_feature(one) for one in given)
    titles = [one.title for one in declared]
    twice = sorted({title for title in titles if titles.count(title) > 1})
    if twice:
        raise ValueError(f"Two features are called {twice[0]!r}. Give each a name of its own, for instance [name=...].")
    return declared


def read_features(file: str | Path) -> tuple[Declared, ...]:
    """The features of a YAML file: a list of short or long forms, or a mapping with such a list under `features`."""
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"There is no file {file} to read features from. Nothing was done; check the path.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is no YAML file: {error}. Nothing was done; quote values with special signs.") from error
    listed = content.get("features") if isinstance(content, Mapping) and set(content) == {"features"} else content
    if not isinstance(listed, list) or not all(isinstance(one, str | Mapping) for one in listed):
        raise ValueError(f"{file} holds no list of features (or a mapping with just the key 'features'). Nothing was done.")
    try:
        return parse_features(listed)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def to_dict(declared: Declared) -> dict[str, Any]:
    """The long form: what differs from the defaults."""
    found = {field.name: (getattr(declared, field.name), field.default) for field in fields(declared)}
    return {key: value for key, (value, default) in found.items() if value != default}


def from_dict(given: Mapping[str, Any]) -> Declared:
    """The declaration of a long form; an unknown key, or a value that YAML took for something else, is an error."""
    known = [field.name for field in fields(Declared)]
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ValueError(f"No setting {unknown[0]!r}. Choose from: {', '.join(known)}.")
    if "kind" not in given:
        raise ValueError(f"It has no kind. Choose from: {', '.join(KINDS)}.")
    return Declared(**{key: _plain(key, value) for key, value in given.items()})


def _short(given: str) -> dict[str, Any]:
    """The long form of `kind[setting=value,flag]:value`."""
    found = re.fullmatch(r"([^:\[\]]*)(?:\[([^\]]*)\])?(?::(.*))?", given, flags=re.DOTALL)
    if found is None:
        raise ValueError("It is not of the form kind:value or kind[setting=value,...]:value.")
    kind, settings, value = found.groups()
    long: dict[str, Any] = {"kind": kind.strip()}
    for setting in (settings or "").split(",") if settings else []:
        key, equals, said = setting.partition("=")
        long[key.strip()] = _typed(key.strip(), said.strip()) if equals else True
    if value is not None:
        takes_file = kind in KINDS and "file" in KINDS[kind].settings
        long |= {"file": value[1:]} if takes_file and value.startswith("@") else {"value": value}
    return long


def _typed(key: str, said: str) -> Any:
    """The setting of a short form, as the number or truth value it stands for."""
    if key == "negated" and said in ("true", "false"):
        return said == "true"
    try:
        return {"n": int, "at_least": float}.get(key, str)(said)
    except ValueError as error:
        raise ValueError(f"The setting {key!r} is a number, not {said!r}.") from error


def _plain(key: str, value: Any) -> Any:
    if key == "value" and isinstance(value, list) and all(isinstance(one, str | int) for one in value):
        return ",".join(map(str, value))
    if key == "label" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if key == "at_least" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    numeric = {"n": int, "at_least": float, "negated": bool}
    right = isinstance(value, numeric.get(key, str)) and (key != "n" or not isinstance(value, bool))
    if not right and not (value is None and key in ("on", "n", "at_least")):
        advice = "" if key in numeric else "; put it in quotes"
        wanted = {"n": "a whole number", "at_least": "a number", "negated": "true or false"}.get(key, "a string")
        raise ValueError(f"The setting {key!r} is {wanted}, and {value!r} was read as {type(value).__name__}{advice}.")
    return value
