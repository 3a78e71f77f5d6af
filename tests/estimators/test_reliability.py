"""The verdict: right about tails whose index is known, and about weights that deserve no doubt."""

import math
from dataclasses import replace

import pytest
import torch

from esscher.draws import Draws
from esscher.estimators.reliability import pareto_k, reliability
from esscher.randomness import Seeded
from esscher.space import empty_prompts


def weighted(log_weight) -> Draws:
    count = log_weight.numel()
    return Draws(empty_prompts(count), log_weight, torch.zeros_like(log_weight), True, True, count)


def uniform(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_index_of_pareto_weights_is_found(k):
    """Mean over 50 samples of 5000; the standard error is (1 + k) / sqrt(50 * 213), below 0.02."""
    log_weight = -k * uniform(0, 50, 5000).log()
    assert float(pareto_k(log_weight).mean()) == pytest.approx(k, abs=0.07)


def verdicts(log_weight):
    return [row.verdict for row in reliability(weighted(log_weight))]


def test_mild_weights_are_good():
    assert verdicts(0.5 * normal(1, 50, 1000)).count("good") == 50


@pytest.mark.parametrize("draws", [200, 1000, 5000])
def test_heavy_weights_warn(draws):
    """Log-normal with deviation 1.5: no more than 2 of 40 samples fail to warn."""
    assert verdicts(1.5 * normal(2, 40, draws)).count("good") <= 2


def test_weights_without_a_mean_are_unreliable():
    assert verdicts(-1.2 * uniform(3, 50, 1000).log()).count("unreliable") >= 45


def test_one_draw_that_rules_is_unreliable():
    (row,) = reliability(weighted(torch.tensor([[50.0, *[0.0] * 999]])))
    assert row.verdict == "unreliable" and row.effective == pytest.approx(1)
    assert "a handful of draws decides everything" in row.advice


def test_no_tail_no_doubt():
    equal = weighted(torch.zeros(1, 100))
    (row,) = reliability(equal)
    assert (row.verdict, row.pareto_k, row.effective) == ("good", -math.inf, pytest.approx(100))
    (row,) = reliability(weighted(torch.tensor([[0.0, -torch.inf] * 200])))  # half forbidden, half equal
    assert (row.verdict, row.pareto_k) == ("good", -math.inf)
    (row,) = reliability(replace(equal, independent=False))
    assert row.verdict == "doubtful" and "compare several runs" in row.advice


def test_few_draws_are_never_good():
    for draws in (1, 2, 5, 15):
        assert verdicts(0.1 * normal(4, 20, draws)).count("good") == 0


def test_forbidden_everywhere_is_an_error():
    with pytest.raises(ValueError, match="no draw with any weight"):
        reliability(weighted(torch.full((1, 4), -torch.inf)))


def test_a_largest_weight_drawn_often_has_no_tail_beyond_it():
    """Weights of a few features: rare, of few values, the largest drawn hundreds of times; a continuous tail is still seen."""
    rng = Seeded(3)
    rare = rng.categorical(torch.tensor([[0.96, 0.025, 0.01, 0.005]]).log(), 40_000)
    log_weight = torch.tensor([-10.0, -0.27, -0.25, 0.0], dtype=torch.float64)[rare]
    assert float(pareto_k(log_weight)) == -math.inf
    spread = torch.rand(1, 40_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert float(pareto_k(-0.9 * spread.log())) > 0.7
