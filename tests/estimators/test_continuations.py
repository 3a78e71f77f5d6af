"""How likely points begin so, against sums over all points that do."""

import math

import pytest
import torch
from random_targets import random_target

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, sequences, unique_prompts
from esscher.core.target import Tilted, flat
from esscher.estimators import continuations
from esscher.estimators.continuations import is_complete, prefix_log_probs
from esscher.exact.enumeration import tabulate

SPACE = Space(3, 4, eos=0)
TARGET = random_target(SPACE)
POINTS, PROMPTS = [[1], [2], [1, 2], [2, 2, 1], [1, 0], [2, 1, 2, 1]], [[], [], [1], [], [2, 1], []]
X = sequences(POINTS, PROMPTS)


def exact():
    """log p of each beginning, from the table of all points."""
    prompts, which = unique_prompts(X)
    table = tabulate(TARGET, prompts)
    steps = table.log_probs(X, which)
    return torch.where(X.counted, steps, 0.0).sum(-1)


def covered(draws, repeats, seed=0):
    """How often each interval covers, the total last."""
    truth = exact()
    times = torch.zeros(len(X) + 1)
    for number in range(repeats):
        actual = prefix_log_probs(TARGET, X, draws, rng=SeededRng(seed, "repeat", number))
        wanted = [*truth.tolist(), float(truth.sum())]
        times += torch.tensor([item.covers(true) for item, true in zip([*actual.each, actual.total], wanted, strict=True)])
    return times


@pytest.mark.slow
def test_intervals_cover_at_their_rate():
    times = covered(200, 200)
    assert times.min() >= 178, times  # of 190 wanted


def test_log_z_that_is_forgotten_is_noticed(monkeypatch):
    monkeypatch.setattr(continuations, "log_mean", lambda count, log_weight: log_weight.mean(-1) + 0 * count.sum(-1))
    assert covered(200, 20).min() < 15


def test_many_draws_come_near():
    actual = prefix_log_probs(TARGET, X, 20_000, rng=SeededRng(1))
    assert torch.allclose(torch.tensor([item.value for item in actual.each], dtype=torch.float64), exact(), atol=0.06)
    assert actual.total.value == pytest.approx(sum(item.value for item in actual.each))


def test_continuations_of_one_prompt_share_its_draws():
    """How whole points compare is exact, whatever the error of log Z."""
    target = random_target(Space(3, 1))
    points = sequences([[0], [1], [2]])
    each = prefix_log_probs(target, points, 4, rng=SeededRng(2)).each
    truth = tabulate(target, unique_prompts(points)[0]).log_probs(points, torch.zeros(3, dtype=torch.long))[:, 0]
    assert each[0].value != pytest.approx(float(truth[0]), abs=1e-6)
    assert each[1].value - each[0].value == pytest.approx(float(truth[1] - truth[0]), abs=1e-6)


def test_without_an_energy_all_is_exact():
    actual = prefix_log_probs(Tilted(TARGET.base, flat), X, 2, rng=SeededRng(3))
    assert all(item.low == item.high for item in [*actual.each, actual.total]) and actual.log_z.value == 0


def test_what_is_forbidden_has_no_probability():
    target = Tilted(TARGET.base, lambda x: torch.where((x.tokens == 2).any(-1), math.inf, 0.0).double())
    actual = prefix_log_probs(target, sequences([[1], [2]]), 50, rng=SeededRng(4))
    assert actual.each[1].value == -math.inf and actual.each[0].value > -2 and actual.total.value == -math.inf
    with pytest.raises(ValueError, match="forbids all 50 draws"):
        prefix_log_probs(Tilted(TARGET.base, lambda x: torch.full((len(x),), math.inf)), X, 50, rng=SeededRng(4))


def test_which_points_are_whole():
    assert is_complete(X, SPACE).tolist() == [False, False, False, False, True, True]
