"""The parts of the package, found by inspection: what implements a protocol must stand under its laws.

A part is a public class whose instances implement the protocol, or a public function that gives one. It is called by its
package and its own name: `samplers.SIR`, `exact.normalise`. A list of laws is a dictionary whose keys begin with the name of
the part they try, and go on, after a comma, with what is particular: `samplers.SIR, shared`.
"""

import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType

from torch import Tensor

import esscher
from esscher.core.space import Sequences
from esscher.energies.features import Feature

Seeks = Callable[[object], bool]


def modules(package: ModuleType = esscher) -> Iterator[ModuleType]:
    for walk_package in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not walk_package.name.endswith("__main__"):
            yield importlib.import_module(walk_package.name)


def parts(seeks: Seeks, of: Iterable[ModuleType] | None = None) -> dict[str, object]:
    """Every public class or function that is sought, by its package and its own name; no two may share them."""
    actual: dict[str, object] = {}
    for module in modules() if of is None else of:
        for name, part in vars(module).items():
            drawn = getattr(part, "__module__", None) == module.__name__ and getattr(part, "__name__", None) == name
            if drawn and not name.startswith("_") and seeks(part):
                title = f"{module.__name__.split('.')[1]}.{name}"
                assert title not in actual, f"{module.__name__}.{name} has the name of another part, {title}: rename it"
                actual[title] = part
    return actual


def check_complete(found: Iterable[str], listed: Iterable[str], apart: Mapping[str, str], file: str) -> None:
    """Every part that was found is listed, or set apart with a reason; nothing else is."""
    known, tried = set(found), {part_of(name) for name in listed}
    forgotten = sorted(known - tried - apart.keys())
    assert not forgotten, f"no law is run over {forgotten}: add each to the list in {file}, or to APART there with the reason"
    unknown = sorted((tried | apart.keys()) - known)
    assert not unknown, f"{file} names {unknown}, which the package does not have as such a part: remove or rename them"
    twice = sorted(tried & apart.keys())
    assert not twice, f"{file} both tries {twice} and sets them apart"


def part_of(name: str) -> str:
    return name.partition(",")[0]


def one_of_each(names: Iterable[str]) -> list[str]:
    """The first case of each part."""
    return list({part_of(name): name for name in reversed(list(names))}.values())


def made_by(part: object) -> list[object]:
    """What a part gives: a class itself, and what a function says it returns, of a list its elements, of a union each."""
    if inspect.isclass(part):
        return [] if getattr(part, "_is_protocol", False) else [part]
    if not inspect.isfunction(part):
        return []
    returned = annotation(part, "return")
    return list(typing.get_args(returned)) if typing.get_origin(returned) in (list, types.UnionType) else [returned]


def annotation(function: Callable[..., object], name: str) -> object:
    """A type in a signature; None where there is none, or one that only a type checker can see."""
    function = inspect.unwrap(function)
    actual = getattr(function, "__annotations__", {}).get(name)
    return function.__globals__.get(actual) if isinstance(actual, str) else actual


def has(*methods: str) -> Seeks:
    """Gives something with all these methods."""
    return lambda part: any(all(callable(getattr(item, name, None)) for name in methods) for item in made_by(part))


def called(part: object) -> Callable[..., object] | None:
    """How instances of a class are called."""
    if not inspect.isclass(part):
        return None
    return vars(part).get("__call__") or vars(part).get("forward")


def calls_give(result: type) -> Seeks:
    """Gives something that, called, gives the result."""

    def seeks(part: object) -> bool:
        return any((call := called(item)) is not None and annotation(call, "return") is result for item in made_by(part))

    return seeks


def rows_to_numbers(part: object) -> bool:
    """Is an energy, or gives one: called with sequences, it gives a number a row; features are such functions with a name."""

    def numbers(call: Callable[..., object] | None) -> bool:
        if call is None:
            return False
        taken = [name for name in inspect.signature(inspect.unwrap(call)).parameters if name != "self"]
        inputs = annotation(call, "return")
        return (
            len(taken) == 1
            and annotation(call, taken[0]) is Sequences
            and (inputs is Tensor or getattr(inputs, "dim_str", "") == "B")
        )

    return any(item is Feature or numbers(called(item)) for item in made_by(part)) or (
        inspect.isfunction(part) and numbers(part)
    )
