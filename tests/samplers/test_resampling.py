"""Resampling keeps the mean exactly, over every outcome of its chance; a version that ignores weights is caught."""

import pytest
import torch

from esscher.core.draws import Draws
from esscher.core.randomness import SeededRng
from esscher.core.space import sequences
from esscher.samplers.particles import resample
from esscher.testing import every_outcome


def weighted(log_weight: list[list[float]], first: int = 0) -> Draws:
    """Draws whose points are the numbers from `first` on, so that copies can be counted."""
    weight = torch.tensor(log_weight, dtype=torch.float64)
    points = [[first + number] for number in range(weight.numel())]
    return Draws(sequences(points), weight, torch.zeros_like(weight), estimates_z=True, independent=True, cost=weight.numel())


def mean_copies(draws: Draws, count: int, function=resample) -> torch.Tensor:
    total = torch.zeros(draws.log_weight.numel(), dtype=torch.float64)
    for probability, x in every_outcome(lambda rng: function(draws, count, rng=rng)):
        total += probability * torch.bincount(x.tokens[:, 0], minlength=len(total))
    return total.view(draws.log_weight.shape)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_copies_follow_the_weights_for_each_prompt(count):
    draws = weighted([[0.0, 1.0, -0.5], [2.0, -torch.inf, 0.3]])
    expected = count * torch.softmax(draws.log_weight, -1)
    assert torch.allclose(mean_copies(draws, count), expected, atol=1e-12)

    def unweighted(draws, count, *, rng):
        return resample(Draws(draws.x, torch.zeros_like(draws.log_weight), draws.log_base, True, True, 6), count, rng=rng)

    assert not torch.allclose(mean_copies(draws, count, unweighted), expected, atol=1e-3)


def test_equal_weights_keep_every_draw_once():
    x = resample(weighted([[0.7] * 7]), 7, rng=SeededRng(0))
    assert x.tokens[:, 0].tolist() == list(range(7))


def test_prompt_major_and_whole_counts():
    x = resample(weighted([[0.0, 5.0], [1.0, 1.0]]), 4, rng=SeededRng(1))
    assert [row // 2 for row in x.tokens[:, 0].tolist()] == [0] * 4 + [1] * 4


def test_no_weight_at_all_is_an_error():
    with pytest.raises(ValueError, match="no draw of any weight"):
        resample(weighted([[-torch.inf, -torch.inf]]), 3, rng=SeededRng(0))


def test_columns_and_cat_are_inverse():
    draws = weighted([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    again = Draws.cat([draws.columns(slice(0, 1)), draws.columns(slice(1, None))], 1)
    assert torch.equal(again.log_weight, draws.log_weight) and torch.equal(again.x.tokens, draws.x.tokens)
    assert again.cost == draws.cost
