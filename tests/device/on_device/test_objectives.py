"""Objectives on the device: loss, metrics and gradients are those of the CPU, where they obey the law of objectives."""

import pytest
import torch
from laws import test_every_objective as objectives
from objectives.test_distil import Judged
from small_networks import lively

from esscher.core.device import place
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, sequences
from esscher.core.target import Tilted
from esscher.exact.enumeration import enumerate_points
from esscher.networks.transformer_config import XLNetConfig
from esscher.objectives.config import MaskedLMConfig
from esscher.objectives.distil import ReweightedDistil
from esscher.objectives.permutation_lm import MaskedLM

DEVICE = torch.device("cuda", 0)


def reweighted() -> objectives.Tried:
    """With the teacher in the objective, where `place` finds it."""
    tried = objectives.reweighted()
    return tried._replace(objective=ReweightedDistil(Judged.teacher, 0.5), data=enumerate_points(Judged.teacher.space))


def masked() -> objectives.Tried:
    base = lively(XLNetConfig(8, 1, 2, 16), Space(7, 6))
    x = sequences([[1, 2, 3, 4, 5, 6], [6, 5, 4]])
    return objectives.Tried(MaskedLM(MaskedLMConfig(0.34)), Tilted(base), x, None, list(base.parameters()))


OBJECTIVES = {**objectives.OBJECTIVES, "objectives.ReweightedDistil": reweighted, "objectives.MaskedLM": masked}


def loss_and_gradients(tried):
    """The loss of each player, the metrics and the count; and the gradients, where the parameters are."""
    loss = tried.objective(tried.target, tried.data, rng=SeededRng(5), step=0)
    values = loss.value if isinstance(loss.value, dict) else {"": loss.value}
    parameters = tried.parameters if isinstance(tried.parameters, dict) else {"": tried.parameters}
    gradients = [
        gradient
        for name, value in values.items()
        for gradient in torch.autograd.grad(
            value, parameters[name], retain_graph=True, allow_unused=True, materialize_grads=True
        )
    ]
    return [*(float(value.detach()) for value in values.values()), *loss.metrics.values(), loss.count], gradients


@pytest.mark.parametrize("case", OBJECTIVES)
def test_objectives(case):
    expected, expected_gradients = loss_and_gradients(OBJECTIVES[case]())
    tried = OBJECTIVES[case]()
    placed = {name: place(getattr(tried, name), DEVICE) for name in ("objective", "target", "data")}
    actual, gradients = loss_and_gradients(tried._replace(**placed))
    assert actual == pytest.approx(expected, abs=1e-6)
    assert any(bool(gradient.any()) for gradient in gradients)
    for gradient, right in zip(gradients, expected_gradients, strict=True):
        assert torch.allclose(gradient.cpu(), right, atol=1e-6)
