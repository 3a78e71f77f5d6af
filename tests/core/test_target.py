"""What a target accepts of an energy: one real number a row, the same whenever and beside whatever rows it is computed."""

import math

import pytest
import torch
from random_targets import random_automaton, taste
from torch import nn

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts
from esscher.core.target import Tilted
from esscher.exact.enumeration import tabulate
from esscher.samplers.importance import Importance
from esscher.samplers.progress import ProgressCounter, with_progress
from esscher.testing import check_energy

SPACE = Space(3, 5, eos=0)
BASE = random_automaton(SPACE)


def tokens(x):
    return torch.where(x.counted, x.tokens, 0).double()


def sum_over_all_rows(x):
    return -tokens(x).sum()


def whole_numbers(x):
    return x.lengths


def noisy(x):
    return tokens(x).sum(-1) + torch.randn(len(x))


def less_the_mean(x):
    return tokens(x).sum(-1) - tokens(x).sum(-1).mean()


def less_the_largest(x):
    return tokens(x).sum(-1) - tokens(x).sum(-1).max()


def mean_over_padding(x):
    return 5 * tokens(x).mean(-1)


def squeezed(x):
    return tokens(x).sum(-1, keepdim=True).squeeze()


def overwrites(x):
    x.tokens.clamp_(max=1)
    return tokens(x).sum(-1)


class Dropout(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(tokens(x), 0.5, self.training).sum(-1)


WRONG = [
    (
        sum_over_all_rows,
        ValueError,
        r"sum_over_all_rows gives a tensor of shape \[\] for 64 sequences.*one number a row, \[64\]",
    ),
    (whole_numbers, TypeError, r"whole_numbers gives torch.int64.*real numbers"),
    (noisy, ValueError, "noisy is random: it changes between two calls"),
    (Dropout(), ValueError, "Dropout is random.*eval"),
    (less_the_mean, ValueError, "less_the_mean depends on the other rows of the batch"),
    (less_the_largest, ValueError, "less_the_largest depends on the other rows of the batch"),
    (mean_over_padding, ValueError, "mean_over_padding depends on the padding"),
    (squeezed, ValueError, r"squeezed gives a tensor of shape \[\] for 1 sequences"),
    (overwrites, ValueError, "overwrites writes into the tokens"),
]


@pytest.mark.parametrize(("energy", "error", "message"), WRONG)
def test_an_energy_that_gives_no_law_is_refused_by_name(energy, error, message):
    with pytest.raises(error, match=message):
        Importance()(Tilted(BASE, energy), empty_prompts(1), 64, rng=SeededRng(0))
    with pytest.raises(AssertionError):
        check_energy(energy, Importance()(Tilted(BASE), empty_prompts(1), 64, rng=SeededRng(0)).x)


def test_a_module_in_evaluation_passes_and_a_constant_does():
    for energy in (Dropout().eval(), lambda x: torch.full((len(x),), 2.0), lambda x: torch.where(x.lengths > 2, math.inf, 0.0)):
        target = Tilted(BASE, energy)
        drawn = Importance()(target, empty_prompts(1), 64, rng=SeededRng(0))
        assert torch.allclose(drawn.log_weight[0], -energy(drawn.x).double())


def test_rows_are_compared_once_for_each_target():
    calls = []

    def energy(x):
        calls.append(len(x))
        return taste(SPACE)(x)

    target = Tilted(BASE, energy)
    for seed in range(3):
        Importance()(target, empty_prompts(1), 64, rng=SeededRng(seed))
    assert sorted(calls, reverse=True)[:3] == [64, 64, 64] and 2 <= calls.count(1) <= 3 and len(calls) <= 6


def test_a_later_batch_is_compared_where_the_first_showed_nothing():
    """One row depends on no other, and equal energies hide what is subtracted."""
    target = Tilted(BASE, less_the_mean)
    x = tabulate(Tilted(BASE)).x
    with torch.no_grad():
        target.log_weight(x.rows(slice(0, 1)))
        target.log_weight(x.rows(torch.zeros(9, dtype=torch.long)))
        with pytest.raises(ValueError, match="depends on the other rows"):
            target.log_weight(x)


def test_training_is_not_disturbed():
    """With gradients, dropout may be on."""
    target = Tilted(BASE, Dropout())
    assert target.log_weight(tabulate(Tilted(BASE)).x).shape == (63,)
    with torch.no_grad():
        assert target.unchecked().log_weight(tabulate(Tilted(BASE)).x).shape == (63,)


def test_the_name_passes_through_a_counter():
    target = with_progress(Tilted(BASE, noisy), ProgressCounter(lambda words: None))
    with pytest.raises(ValueError, match="noisy is random"):
        Importance()(target, empty_prompts(1), 64, rng=SeededRng(0))
