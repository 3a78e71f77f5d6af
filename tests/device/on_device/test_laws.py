"""Bases and samplers on the device obey their laws, and their numbers are those of the CPU."""

import pytest
import torch
from laws import test_every_base as bases
from laws import test_every_sampler as samplers
from laws.parts import one_of_each, part_of
from marks import slow_except

from esscher.core.device import device_of, place
from esscher.core.randomness import SeededRng
from esscher.core.space import prompts_of
from esscher.core.target import Tilted
from esscher.networks.registry import NETWORKS
from esscher.samplers.ancestral import draw
from esscher.samplers.scoring import log_prob
from esscher.testing import check_base

DEVICE = torch.device("cuda", 0)


FAST = [name for name in one_of_each(bases.BASES) if name.startswith(("bases.CausalLM", "bases.Seq2SeqLM", "bases.WithMemory"))]
FAST += [name for name in one_of_each(bases.BASES) if part_of(name) in set(NETWORKS) - {"deq", "pixelcnn++"}]


@pytest.mark.parametrize("name", slow_except(FAST, bases.BASES))
def test_bases(name):
    case = bases.BASES[name]
    prompts = prompts_of(case.prompts)
    on_cpu = draw(case.build(), prompts, 3, rng=SeededRng(1))
    base = place(case.build(), DEVICE)
    assert device_of(base) in (None, DEVICE)
    check_base(base, case.prompts, tolerance=case.tolerance)
    x, log_base = draw(base, prompts, 3, rng=SeededRng(1))
    assert x.tokens.device.type == "cpu" and x.points() == on_cpu[0].points()
    assert torch.allclose(log_base, on_cpu[1], atol=case.tolerance)
    assert torch.allclose(log_prob(base, x).view_as(log_base), log_base.double(), atol=10 * case.tolerance)


@pytest.mark.parametrize("space", slow_except(["end symbol, some forbidden"], samplers.TARGETS))
@pytest.mark.parametrize("name", slow_except(one_of_each(samplers.SAMPLERS), samplers.SAMPLERS))
def test_samplers(name, space):
    prompts = samplers.MANY.rows(slice(0, 8))
    sampler, target = samplers.SAMPLERS[name](samplers.TARGETS[space])
    expected = sampler(target, prompts, 5, rng=SeededRng(3))
    moved = Tilted(place(target.base, DEVICE), place(target.energy, DEVICE))
    actual = place(sampler, DEVICE)(moved, prompts, 5, rng=SeededRng(3))
    assert actual.x.tokens.device.type == actual.log_weight.device.type == "cpu"
    assert actual.x.points() == expected.x.points() and torch.equal(actual.log_weight, expected.log_weight)
