"""Flags from settings: every field of a settings dataclass is a flag, a YAML key and a keyword argument of one name.

A field whose class depends on a kind (`--base.kind xlnet`) has the flags of the kind that the command line or the YAML file
names. Settings that are declared beside torch code (samplers, objectives) are read from their source, without importing torch.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_type_hints

from cyclopts import Parameter, Token

from esscher.core.config import Registry, dataclass_of, load_object, registry_of

TARGET = "__settings_class__"  # attribute of a bound class: "module:Class" of the settings that it stands for
Chosen = Callable[[str], str | None]  # the kind that is chosen at a dotted path, see `chosen_kind`


def chosen_kind(tokens: Sequence[str], file_settings: Mapping[str, Any], path: str) -> str | None:
    """The kind that flags or file choose at a dotted path; flags override the file."""
    flag = f"--{path}.kind"
    for place, token in enumerate(tokens):
        if token == flag and place + 1 < len(tokens):
            return tokens[place + 1]
        if token.startswith(f"{flag}="):
            return token.partition("=")[2]
    value: Any = file_settings
    for key in (*path.split("."), "kind"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def bind(cls: type, chosen: Chosen, prefix: str = "") -> type:
    """The dataclass with every field of a kind replaced by the settings of the kind chosen; values are not checked yet."""
    hints = get_type_hints(cls, include_extras=True)
    changed: dict[str, tuple[Any, Any]] = {}
    for entry in (entry for entry in fields(cls) if entry.init):
        name, metadata, hint = entry.name, entry.metadata, hints[entry.name]
        registry, inner = registry_of(hint), dataclass_of(hint)
        if "flag" in metadata or "multiple" in metadata or "hyphens" in metadata:
            names = (name, metadata["flag"]) if "flag" in metadata else None
            hyphens = metadata.get("hyphens", False)  # words that may be flags of another verb
            parameter = Parameter(
                name=names, consume_multiple=metadata.get("multiple"), allow_leading_hyphen=hyphens
            )  # --metrics bleu chrf
            changed[name] = Annotated[hint, parameter], field(**_default(entry, None), kw_only=entry.kw_only)
        elif registry is not None:
            default = None if entry.default is None else registry.default_kind
            bound = _bind_kind(registry, chosen(f"{prefix}{name}") or default)
            changed[name] = (
                Annotated[bound, Parameter(accepts_keys=True)],  # also where `kind` is the only field
                field(default_factory=bound, kw_only=entry.kw_only) if is_optional(bound) else field(kw_only=True),
            )
        elif inner is not None:
            bound = bind(inner, chosen, f"{prefix}{name}.")
            if bound is not inner or hint is not inner:
                absent = entry.default is None
                value = {"default": None} if absent else _default(entry, bound)
                changed[name] = (bound | None if absent else bound), field(**value, kw_only=entry.kw_only)
        elif hint in (int, int | None):
            parameter = Parameter(converter=_whole_number)
            changed[name] = Annotated[hint, parameter], field(**_default(entry, None), kw_only=entry.kw_only)
    if not changed and prefix:
        return cls
    namespace: dict[str, Any] = {
        "__doc__": cls.__doc__,
        "__post_init__": _unchecked,
        "__annotations__": {name: kind for name, (kind, _) in changed.items()},
    }
    namespace |= {name: value for name, (_, value) in changed.items()}
    result: Any = dataclass(frozen=True)(type(cls.__name__, (cls,), namespace))
    positional_first = sorted(result.__dataclass_fields__.items(), key=lambda entry: bool(entry[1].kw_only))
    result.__dataclass_fields__ = dict(positional_first)  # the parser reads positions in this order
    setattr(result, TARGET, cls)
    return cast(type, result)


def _whole_number(kind: Any, tokens: Sequence[Token]) -> int | None:
    """The number that a flag has, such as 64 or 1e6; 1.5 is refused, not rounded."""
    text = tokens[0].value
    if text.lower() in ("none", "null") and kind is not int:
        return None
    try:
        number = Fraction(text)
    except (ValueError, ZeroDivisionError):
        number = Fraction(1, 2)
    if number.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number.")
    return int(number)


def expand_groups(cls: type, tokens: Sequence[str]) -> list[str]:
    """Write `--data FILE` as `--data.source FILE`, because the parser would take FILE for all settings of the data; and `--file
    -` as `--file=-`, because it would take the hyphen for a flag."""
    names = {
        f"--{name}": f"--{name}.{entry.name}"
        for name, hint in get_type_hints(cls, include_extras=True).items()
        if (inner := dataclass_of(hint)) is not None
        for entry in fields(inner)
        if entry.metadata.get("flag") == f"--{name}"
    }
    expanded: list[str] = []
    for token in tokens:
        flag, equals, value = token.partition("=")
        if token == "-" and expanded and expanded[-1].startswith("--"):  # standard input or output
            expanded[-1] += "=-"
        else:
            expanded.append(names.get(flag, flag) + equals + value)
    return expanded


def settings_from(value: Any) -> Any:
    """What was bound, as the settings classes themselves."""
    if isinstance(value, tuple):
        return tuple(settings_from(item) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    target = getattr(type(value), TARGET, None)
    if target is None:
        return value
    if target == "":
        return None
    cls = load_object(target) if isinstance(target, str) else target
    names = [entry.name for entry in fields(cls) if entry.init]
    return cls(**{name: settings_from(getattr(value, name)) for name in names if hasattr(value, name)})


def _default(entry: Any, bound: type | None) -> dict[str, Any]:
    """The default of a field, for nested settings as the bound class has it."""
    if entry.default_factory is not MISSING:
        return {"default_factory": bound or entry.default_factory}
    return {} if entry.default is MISSING else {"default": entry.default}


def _unchecked(self: Any) -> None:
    """Values are checked when the settings themselves are made."""


def is_optional(cls: type) -> bool:
    """Whether every field of a dataclass has a default."""
    return all(entry.default is not MISSING or entry.default_factory is not MISSING for entry in fields(cls) if entry.init)


def _bind_kind(registry: Registry, kind: str | None) -> Any:
    """The settings of one kind, with the field `kind` before them; of no kind, that field alone."""
    about = Parameter(help=f"Which {registry.what}; --help after it shows its settings.")
    known: Any = Literal[tuple(registry)]
    choices: Any = known | None if kind is None else known
    first = make_dataclass("Kind", [("kind", Annotated[choices, about], field(default=kind, kw_only=True))], frozen=True)
    if kind is None:
        setattr(first, TARGET, "")
        return first
    path = registry[kind].config
    cls = declared(path)
    bound: Any = dataclass(frozen=True)(type(cls.__name__, (cls, first), {"__doc__": cls.__doc__, "__post_init__": _unchecked}))
    setattr(bound, TARGET, path)
    return bound


def declared(path: str) -> type:
    """The settings dataclass at `"module:Class"`: the class itself where its module needs no torch, else a copy of its fields
    read from the source, without fields that no flag can hold (such as a sampler within a sampler)."""
    module, _, name = path.partition(":")
    spec = find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return load_object(path)
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf8"))
    modules = [item.module or "" for item in tree.body if isinstance(item, ast.ImportFrom)]
    modules += [alias.name for item in tree.body if isinstance(item, ast.Import) for alias in item.names]
    if not any(imported.split(".")[0] in ("torch", "jaxtyping") for imported in modules):
        return load_object(path)
    node = next((item for item in tree.body if isinstance(item, ast.ClassDef) and item.name == name), None)
    if node is None or any(isinstance(item, ast.Name) for item in node.bases):
        return load_object(path)
    return make_dataclass(name, list(_fields(node)), frozen=True, kw_only=True, namespace={"__doc__": ast.get_docstring(node)})


def _fields(node: ast.ClassDef) -> Any:
    known = {"int": int, "float": float, "bool": bool, "str": str, "tuple": tuple, "Literal": Literal}
    for place, item in enumerate(node.body):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        try:
            annotation = eval(ast.unparse(item.annotation), {"__builtins__": {}}, known)
            default = {} if item.value is None else {"default": ast.literal_eval(item.value)}
        except (NameError, TypeError, ValueError):
            continue
        after = node.body[place + 1] if place + 1 < len(node.body) else None
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        yield item.target.id, Annotated[annotation, Parameter(help=" ".join(str(text).split()))], field(**default)
