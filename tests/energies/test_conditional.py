"""Energies whose weights depend on the prompt."""

import pytest
import torch
from random_targets import PROMPTS, random_automaton
from torch import nn

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of, sequences, unique_prompts
from esscher.core.target import Tilted
from esscher.energies.features import ConditionalLogLinear, Feature, LogLinear, contains, length, prompt_network
from esscher.exact.enumeration import enumerate_points
from esscher.testing import check_energy, every_outcome

SPACE = Space(3, 3, eos=0)
FEATURES = [contains([1, 2]), length(), Feature("as long as the prompt", lambda x: (x.lengths == x.start).double())]


def awake(*, seed: int = 0) -> ConditionalLogLinear:
    """An energy whose network does not begin at 0."""
    network = prompt_network(3, 3, width=8, rng=SeededRng(seed))
    nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(seed))
    return ConditionalLogLinear(FEATURES, network)


def test_a_network_that_reads_padding_is_caught():
    class Careless(nn.Module):
        def forward(self, prompts: Sequences) -> torch.Tensor:
            return prompts.tokens.double().sum(-1, keepdim=True).repeat(1, 3) + prompts.tokens.shape[1]

    with pytest.raises(AssertionError, match=r"padding must not|other rows of the batch"):
        check_energy(ConditionalLogLinear(FEATURES, Careless()), enumerate_points(SPACE, prompts_of(PROMPTS)))


def test_after_one_prompt_it_is_log_linear():
    energy = awake()
    for prompt in PROMPTS:
        x = enumerate_points(SPACE, prompts_of([prompt]))
        weights = energy.weights(prompts_of([prompt]))[0].detach()
        assert torch.allclose(energy(x), LogLinear(FEATURES, weights)(x))
    every = energy.weights(prompts_of([*PROMPTS, [2, 1]])).detach()
    assert len({tuple(row) for row in every.tolist()}) == 5  # the order of tokens matters, and the empty prompt is one


def test_it_begins_at_the_base_and_learns():
    energy = ConditionalLogLinear(FEATURES, prompt_network(3, 3, rng=SeededRng(1)))
    x = enumerate_points(SPACE, prompts_of(PROMPTS))
    assert not bool(energy(x).any())
    energy(x).sum().backward()
    assert float(energy.network.head.weight.grad.abs().max()) > 0


def test_distinct_prompts():
    x = sequences([[1, 0], [0], [2, 0], [1, 1, 0], [0]], [[1], [1, 0], [1], [], [1, 0]])
    prompts, which = unique_prompts(x)
    assert [row[:start] for row, start in zip(prompts.tokens.tolist(), prompts.start.tolist(), strict=True)] == [
        [],
        [1],
        [1, 0],
    ]
    assert which.tolist() == [1, 2, 1, 0, 2] and prompts.lengths.tolist() == [0, 0, 0]
    prompts, which = unique_prompts(sequences([[1], [2]]))
    assert len(prompts) == 1 and which.tolist() == [0, 0]


def test_errors():
    class Narrow(nn.Module):
        def forward(self, prompts: Sequences) -> torch.Tensor:
            return torch.zeros(len(prompts), 2)

    with pytest.raises(ValueError, match=r"weights of shape \(1, 2\) for 1 prompts and 3 features"):
        ConditionalLogLinear(FEATURES, Narrow())(sequences([[1, 0]]))
    with pytest.raises(ValueError, match="name of its own"):
        ConditionalLogLinear([length(), length()], Narrow())
    with pytest.raises(ValueError, match="energy reads 7 tokens and the base speaks 3"):
        Tilted(random_automaton(SPACE), ConditionalLogLinear(FEATURES, prompt_network(7, 3, rng=SeededRng(0))))
    with pytest.raises(ValueError, match="drawn from a seed"):
        list(every_outcome(lambda rng: prompt_network(3, 1, rng=rng)))
