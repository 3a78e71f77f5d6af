"""Sums of objectives: weights at each step, metrics by name, players apart."""

import pytest
import torch
from random_targets import random_automaton

from esscher.core.objective import Loss
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, sequences
from esscher.core.target import Tilted
from esscher.objectives.combine import LinearRamp, WeightedObjective, WeightedSum

SPACE = Space(3, 2)
TARGET, DATA = Tilted(random_automaton(SPACE)), sequences([[1, 2], [0, 1], [2, 2]])


def fixed(value, count=1):
    def objective(target, data, *, rng, step=0):
        return Loss(value, {"seen": float(step)}, count)

    return objective


def test_schedules():
    assert [LinearRamp(0.0, 1.0, begin=2, end=6)(step) for step in (0, 2, 3, 4, 6, 9)] == [0.0, 0.0, 0.25, 0.5, 1.0, 1.0]
    assert [LinearRamp(0.0, 1.0, begin=2, end=2)(step) for step in (1, 2)] == [0.0, 1.0]
    with pytest.raises(ValueError, match="ends at step 1, before it begins"):
        LinearRamp(0.0, 1.0, begin=2, end=1)


def test_sum_of_gradients_and_metrics_by_name():
    a, b = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    both = WeightedSum(
        (
            WeightedObjective("first", fixed(a**2, 6), 0.5),
            WeightedObjective("second", fixed(a * b, 6), LinearRamp(0.0, 2.0, begin=0, end=4)),
        )
    )
    loss = both(TARGET, DATA, rng=SeededRng(0), step=2)
    assert float(loss.value.detach()) == 0.5 * 4 + 1.0 * 6
    assert [float(g) for g in torch.autograd.grad(loss.value, [a, b])] == [0.5 * 4 + 3, 2]
    assert loss.metrics == {"first/seen": 2.0, "second/seen": 2.0, "first/weight": 0.5, "second/weight": 1.0}
    assert loss.count == 6


def test_a_part_of_weight_zero_is_not_computed():
    def never(target, data, *, rng, step=0):
        raise AssertionError("computed")

    both = WeightedSum(
        (
            WeightedObjective("now", fixed(torch.tensor(1.0))),
            WeightedObjective("later", never, LinearRamp(0.0, 1.0, begin=5, end=9)),
        )
    )
    assert float(both(TARGET, DATA, rng=SeededRng(0), step=4).value) == 1.0
    with pytest.raises(AssertionError, match="computed"):
        both(TARGET, DATA, rng=SeededRng(0), step=6)


def test_parts_that_count_otherwise_are_weighed_by_rows():
    both = WeightedSum(
        (WeightedObjective("a", fixed(torch.tensor(1.0), 6)), WeightedObjective("b", fixed(torch.tensor(1.0), 3)))
    )
    assert both(TARGET, DATA, rng=SeededRng(0)).count == 3


def test_players_are_summed_apart():
    game = fixed({"critic": torch.tensor(1.0), "actor": torch.tensor(2.0)})
    both = WeightedSum((WeightedObjective("game", game, 3.0), WeightedObjective("more", fixed({"actor": torch.tensor(5.0)}))))
    value = both(TARGET, DATA, rng=SeededRng(0)).value
    assert {name: float(own) for name, own in value.items()} == {"critic": 3.0, "actor": 11.0}
    with pytest.raises(ValueError, match="The parts plain have one loss"):
        WeightedSum((WeightedObjective("game", game), WeightedObjective("plain", fixed(torch.tensor(1.0)))))(
            TARGET, DATA, rng=SeededRng(0)
        )


def test_names_differ_and_something_is_left():
    with pytest.raises(ValueError, match="different names"):
        WeightedSum((WeightedObjective("a", fixed(torch.tensor(1.0))), WeightedObjective("a", fixed(torch.tensor(1.0)))))
    with pytest.raises(ValueError, match="All parts have weight 0 at step 0: a"):
        WeightedSum((WeightedObjective("a", fixed(torch.tensor(1.0)), 0.0),))(TARGET, DATA, rng=SeededRng(0))
