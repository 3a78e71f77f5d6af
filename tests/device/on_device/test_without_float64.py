"""A device without float64, as MPS is: whatever is computed there is float32, and float64 is for the CPU."""

from typing import Any

import pytest
import torch
from laws import test_every_base as bases
from laws.parts import one_of_each
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from esscher.bases import hidden_markov
from esscher.bases.network import build_base
from esscher.core import device as core_device
from esscher.core.device import place
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of
from esscher.core.target import Tilted
from esscher.decoding.beam_search import BeamSearch
from esscher.energies.features import LogLinear, Sum, contains, length, token_feature
from esscher.exact.enumeration import enumerate_points
from esscher.networks.recurrent_config import GruConfig
from esscher.samplers.accept_reject import Metropolis
from esscher.samplers.ancestral import draw
from esscher.samplers.particles import Particles
from esscher.samplers.scoring import log_prob, log_weight
from esscher.samplers.sir import SIR

DEVICE = torch.device("cuda", 0)
PROMPTS = prompts_of([[1], [2, 3]])


class RefuseFloat64(TorchDispatchMode):
    """Operators that make a float64 tensor on the device raise, as on MPS."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, torch.Tensor) and made.dtype == torch.float64 and made.device.type != "cpu":
                raise TypeError(f"{func} made float64 on a device that has none")
        return result


@pytest.fixture(autouse=True)
def no_float64(monkeypatch):
    for module in (core_device, hidden_markov):
        monkeypatch.setattr(module, "has_float64", lambda device: device.type == "cpu")
    with RefuseFloat64():
        yield


def test_the_device_refuses_float64():
    with pytest.raises(TypeError, match="float64"):
        torch.ones(2, device=DEVICE).double()


@pytest.mark.filterwarnings("ignore:The fixed point of")
@pytest.mark.parametrize("name", one_of_each(bases.BASES))
def test_bases_score(name):
    case = bases.BASES[name]
    base = place(case.build(), DEVICE)
    x = enumerate_points(base.space, prompts_of(case.prompts)).rows(slice(0, None, 7))
    scores = log_prob(base, x)
    assert scores.dtype == torch.float64 and scores.device.type == "cpu"
    torch.testing.assert_close(scores, log_prob(case.build(), x), atol=1e-3, rtol=0)
    assert base.begin(x.prompts().to(DEVICE))[0].isfinite().any()


def test_features_and_sums_of_energies():
    features = [contains([1, 2]), length(), token_feature("sum", sum)]
    linear = LogLinear(features, torch.tensor([0.5, -0.25, 1.0]))
    energy = Sum({"linear": linear, "flat": lambda x: torch.zeros(len(x), device=x.tokens.device)}, {})
    base = bases.random_automaton(bases.SPACE)
    x = enumerate_points(base.space)
    expected = log_weight(Tilted(base, energy), x)
    moved = Tilted(place(base, DEVICE), place(energy, DEVICE))
    torch.testing.assert_close(log_weight(moved, x), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["draw", "sir", "particles", "metropolis", "beam"])
def test_samplers_and_beams(kind):
    base, energy = (
        build_base(GruConfig(8, 1), Space(5, 6, eos=0), rng=SeededRng(0)).eval(),
        LogLinear([contains([1, 2])], torch.tensor([1.0])),
    )
    run = {
        "draw": lambda target, x: draw(target.base, x, 8, rng=SeededRng(1))[0],
        "sir": lambda target, x: SIR(16)(target, x, 4, rng=SeededRng(1)).x,
        "particles": lambda target, x: Particles()(target, x, 4, rng=SeededRng(1)).x,
        "metropolis": lambda target, x: Metropolis(5)(target, x, 4, rng=SeededRng(1)).x,
        "beam": lambda target, x: BeamSearch(3)(target, x, rng=SeededRng(1)).x,
    }[kind]
    expected = run(Tilted(base, energy), PROMPTS).points()
    moved = run(Tilted(place(base, DEVICE), place(energy, DEVICE)), PROMPTS)
    assert moved.points() == expected and moved.tokens.device.type == "cpu"
