"""Settings as frozen dataclasses, without torch: registries of kinds, and the one serialiser of all settings.

A field whose class depends on a kind is annotated with its registry, `base: Annotated[Any, NETWORKS] = NETWORKS.default()`, and
is written as a mapping with a `kind`: `{"kind": "lstm", "width": 200}`. `to_dict` and `from_dict` are inverse to each other;
`from_dict` refuses a kind or a key that it does not know and names the dotted key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

C = TypeVar("C")
if TYPE_CHECKING:
    Texts = Sequence[str]  # what callers give: a list or a tuple, which `takes` makes a tuple
else:
    Texts = tuple[str, ...]


def load_object(path: str) -> Any:
    """The object at `"module:name"`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True)
class Kind:
    """One kind of a part: where its settings are declared, and what takes them (the settings themselves if nothing else)."""

    config: str  # "module:Class"
    part: str | None = None  # "module:Class"

    @property
    def config_class(self) -> Any:
        """The dataclass of the settings; importing it imports its module."""
        return load_object(self.config)

    @property
    def part_class(self) -> Any:
        return load_object(self.part or self.config)


class Registry(dict[str, Kind]):
    """The only list of the kinds of one part. Listing the kinds imports nothing."""

    def __init__(self, what: str, default: str, kinds: Mapping[str, Kind]):
        super().__init__(kinds)
        self.what, self.default_kind = what, default

    def __missing__(self, name: Any) -> Kind:  # a file may hold any value, such as `kind: null`
        raise ValueError(f"Unknown kind of {self.what} {name!r}; the known kinds are {', '.join(self)}.")

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def register(self, name: str, kind: Kind) -> None:
        """Add a kind at run time, such as one of your own package."""
        if name in self and self[name] != kind:
            raise ValueError(f"There is a kind of {self.what} {name!r} already; choose another name.")
        self[name] = kind

    def default(self) -> Any:
        """The settings of the default kind, with their defaults."""
        return self[self.default_kind].config_class()

    def kind_of(self, config: Any) -> str:
        """The name of the kind that settings belong to."""
        path = f"{type(config).__module__}:{type(config).__qualname__}"
        for name, kind in self.items():
            if kind.config == path:
                return name
        raise ValueError(f"A {type(config).__name__} is no settings of a {self.what}; the known kinds are {', '.join(self)}.")

    def build(self, config: Any, *arguments: Any, **keywords: Any) -> Any:
        """What the settings describe: the class of their kind, called with them."""
        return self[self.kind_of(config)].part_class(config, *arguments, **keywords)

    def to_dict(self, config: Any) -> dict[str, Any]:
        return {"kind": self.kind_of(config), **to_dict(config)}

    def from_dict(self, values: Mapping[str, Any], prefix: str = "") -> Any:
        """The settings of a mapping with a `kind`; without one, of the default kind."""
        kind = values.get("kind", self.default_kind)
        rest = {key: value for key, value in values.items() if key != "kind"}
        return from_dict(self[kind].config_class, rest, prefix)


def registry_of(annotation: Any) -> Registry | None:
    """The registry in the annotation of a field, if its class depends on a kind."""
    if get_origin(annotation) is Annotated:
        return next((extra for extra in get_args(annotation)[1:] if isinstance(extra, Registry)), None)
    return next((registry for part in get_args(annotation) if (registry := registry_of(part)) is not None), None)


def dataclass_of(annotation: Any) -> Any:
    """The dataclass in an annotation such as `X`, `X | None` or `Annotated[X, …]`; None if there is none."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return next((cls for part in get_args(annotation) if (cls := dataclass_of(part)) is not None), None)
    return None


def to_dict(config: Any) -> dict[str, Any]:
    """Settings as plain nested values, for YAML and JSON."""
    hints = get_type_hints(type(config), include_extras=True)
    names = [field.name for field in fields(config) if field.init]
    return {name: _plain(getattr(config, name), registry_of(hints[name])) for name in names}


def _plain(value: Any, registry: Registry | None = None) -> Any:
    if registry is not None and is_dataclass(value):
        return registry.to_dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def from_dict(cls: type[C], values: Mapping[str, Any], prefix: str = "") -> C:
    """The settings of nested plain values; keys left out take their defaults, an unknown or missing key is an error."""
    hints = get_type_hints(cls, include_extras=True)
    settings = {field.name: field for field in fields(cls) if field.init}  # type: ignore[arg-type]
    for key in values:
        if key not in settings:
            known = ", ".join(prefix + name for name in settings)
            raise ValueError(f"Unknown key {prefix + key!r}; the known keys are {known}.")
    for name, field in settings.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"The key {prefix + name!r} has no default and is missing; name it.")
    return cls(**{key: _typed(value, hints[key], f"{prefix}{key}.") for key, value in values.items()})


def _typed(value: Any, annotation: Any, prefix: str) -> Any:
    if not _fits(value, annotation):
        wanted = getattr(annotation, "__name__", None) if isinstance(annotation, type) else str(annotation)
        raise ValueError(f"The key {prefix.removesuffix('.')!r} is {value!r}, of type {type(value).__name__}, not {wanted}.")
    if isinstance(value, Mapping):
        registry, cls = registry_of(annotation), dataclass_of(annotation)
        if registry is not None:
            return registry.from_dict(value, prefix)
        return value if cls is None else from_dict(cls, value, prefix)
    return tuple(value) if isinstance(value, list) else value


PLAIN: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float), str: (str,), NoneType: (NoneType,), Path: (str, Path)}


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a plain value can be that of a field with this annotation; words of a `Literal` are left to the settings."""
    if registry_of(annotation) is not None and not (isinstance(value, Mapping) or is_dataclass(value)):
        return value is None and NoneType in get_args(annotation)
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _fits(value, parts[0])
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is tuple:
        items = parts[:1] if Ellipsis in parts else parts
        return isinstance(value, list | tuple) and all(any(_fits(item, part) for part in items) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if annotation is bool or isinstance(value, bool):
        return isinstance(value, bool) and annotation not in PLAIN
    if annotation in PLAIN:
        return isinstance(value, PLAIN[annotation])
    return dataclass_of(annotation) is None or isinstance(value, Mapping | annotation)


def check_choices(config: Any) -> None:
    """Refuse a word that is none of those that the type of its setting lists, None among them where the type allows it."""
    for field in fields(config):
        kinds = [field.type] if get_origin(field.type) is Literal else get_args(field.type)
        known = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        known += [None] * bool(known and NoneType in kinds)
        value = getattr(config, field.name)
        if known and value not in known:
            raise ValueError(f"Unknown {field.name} {value!r}; the known ones are {', '.join(map(str, known))}.")


DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
CompileSteps = Literal["auto", "on", "off"]
RESUMABLE_CHANGES = ("tracker", "fsdp", "gradient_checkpointing", "device")  # settings that may differ when a run is resumed


def changed_key(old: Any, new: Any, prefix: str = "") -> tuple[str, Any, Any] | None:
    """The first setting that differs between two nested settings and may not: its dotted key, the old and the new value."""
    old, new = (to_dict(value) if is_dataclass(value) and not isinstance(value, type) else value for value in (old, new))
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return None if old == new else (prefix.removesuffix("."), old, new)
    for key in [*old, *(key for key in new if key not in old)]:
        if key in RESUMABLE_CHANGES:
            continue
        changed = changed_key(old.get(key), new.get(key), f"{prefix}{key}.")
        if changed is not None:
            return changed
    return None


def refuse_change(what: str, old: Any, new: Any) -> None:
    """Raise an error that names the first setting that differs and may not."""
    changed = changed_key(old, new)
    if changed is not None:
        key, before, now = changed
        raise ValueError(
            f"{what} was started with {key} = {before!r}, and is resumed with {key} = {now!r}: it would not be the same run. "
            f"Nothing was trained or changed; give the old value back, or start a new run in another folder."
        )


def check_at_least(config: Any, least: float, *names: str, note: str = "") -> None:
    """Refuse what is no number, or no whole number where the field is an int, or one below `least`; None passes."""
    hints = get_type_hints(type(config))
    for name in names:
        value, whole = getattr(config, name), float not in (hints[name], *get_args(hints[name]))
        if value is not None and (isinstance(value, bool) or not isinstance(value, int if whole else int | float)):
            raise TypeError(f"{name} is a {'whole ' if whole else ''}number, not {value!r}.{note}")
        if value is not None and not value >= least:
            raise ValueError(f"{name} is at least {least:g}, not {value}.{note}")


P = ParamSpec("P")
M = TypeVar("M")
R = TypeVar("R")
SELF = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)


def takes(config: Callable[P, C]) -> Callable[[Callable[[M, C], R]], Callable[Concatenate[M, P], R]]:
    """Decorator of a method of settings: its callers give the fields of the settings dataclass, lists for tuples."""
    return lambda method: _from_fields(config, method, [SELF])


def takes_settings(config: Callable[P, C]) -> Callable[[Callable[[C], R]], Callable[P, R]]:
    """The same for a function."""
    return lambda function: _from_fields(config, function, [])


def _from_fields(config: Callable[..., Any], function: Callable[..., Any], first: list[Parameter]) -> Any:
    """A function that makes settings of its arguments and calls another with them, after the parameters `first`."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = [tuple(value) if isinstance(value, list) else value for value in args[len(first) :]]
        named = {key: tuple(value) if isinstance(value, list) else value for key, value in kwargs.items()}
        return function(*args[: len(first)], config(*values, **named))

    call.__signature__ = Signature([*first, *signature(config).parameters.values()])  # type: ignore[attr-defined]
    return call
