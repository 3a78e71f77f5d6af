"""What is forgotten is named: parts of a made-up module that no list has, names that stand for nothing, parts set apart."""

from types import ModuleType

import pytest
from laws.parts import calls_give, check_complete, has, parts

from esscher.core.draws import Draws
from esscher.core.objective import Loss
from esscher.core.target import Base
from esscher.samplers.importance import Importance

WRITTEN = """
class Lucky:
    def __call__(self, target, prompts, draws, *, rng) -> Draws: ...

class Coin:
    def log_probs(self, x): ...
    def begin(self, prompts): ...
    def advance(self, state, token): ...
    def select(self, state, index): ...

class Hinge:
    def __call__(self, target, data, *, rng, step=0) -> Loss: ...

class _Hidden(Coin): ...

class Half:
    def log_probs(self, x): ...

def biased(share: float) -> Coin: ...
def several() -> list[Coin]: ...
def unrelated() -> float: ...
"""


@pytest.fixture
def module() -> ModuleType:
    made = ModuleType("esscher.made_up.parts")
    vars(made).update(Draws=Draws, Loss=Loss, Base=Base, Importance=Importance)
    exec(WRITTEN, vars(made))
    return made


@pytest.mark.parametrize(
    ("seeks", "names"),
    [
        (calls_give(Draws), ["made_up.Lucky"]),
        (calls_give(Loss), ["made_up.Hinge"]),
        (has("log_probs", "begin", "advance", "select"), ["made_up.Coin", "made_up.biased", "made_up.several"]),
    ],
    ids=["samplers", "objectives", "bases"],
)
def test_new_parts_are_found_and_must_be_listed(module, seeks, names):
    """Not what is private, what only comes by import, a protocol, or what has some of the methods."""
    actual = parts(seeks, [module])
    assert list(actual) == names
    with pytest.raises(AssertionError, match=rf"no law is run over .*{names[0]}.*: add each to the list in laws/test_x.py"):
        check_complete(actual, names[1:], {}, "laws/test_x.py")
    check_complete(actual, [f"{name}, warm" for name in names], {}, "laws/test_x.py")
    check_complete(actual, names[1:], {names[0]: "a reason"}, "laws/test_x.py")


def test_a_list_names_what_there_is_and_once():
    with pytest.raises(AssertionError, match=r"names \['samplers.Gone'\], which the package does not have"):
        check_complete(["samplers.SIR"], ["samplers.SIR", "samplers.Gone, shared"], {}, "laws/test_x.py")
    with pytest.raises(AssertionError, match=r"names \['samplers.Gone'\], which the package does not have"):
        check_complete(["samplers.SIR"], ["samplers.SIR"], {"samplers.Gone": "a reason"}, "laws/test_x.py")
    with pytest.raises(AssertionError, match=r"both tries \['samplers.SIR'\] and sets them apart"):
        check_complete(["samplers.SIR"], ["samplers.SIR"], {"samplers.SIR": "a reason"}, "laws/test_x.py")


def test_two_parts_of_one_name_are_told(module):
    twin = ModuleType("esscher.made_up.others")
    vars(twin).update(Draws=Draws)
    exec(WRITTEN.partition("class Coin")[0], vars(twin))
    with pytest.raises(AssertionError, match=r"has the name of another part, made_up\.Lucky"):
        parts(calls_give(Draws), [module, twin])
