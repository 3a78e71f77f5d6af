"""Steps by whole passes are the steps of the network: the laws of a base, for every kind."""

import pytest
import torch
from small_networks import CONFIGS

from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts
from esscher.networks.incremental_decoding import UncachedDecoding
from esscher.testing import check_base

KINDS = ["lstm, vectors", "transformer, learned", "transformer-xl, short sight", "xlnet", "encoder-decoder"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_laws_of_a_base(kind):
    base = build_base(CONFIGS[kind], Space(3, 4, eos=0), rng=SeededRng(1)).double()
    steps = UncachedDecoding(base.network)
    for name in ("begin", "advance", "select"):
        setattr(base.network, name, getattr(steps, name))
    check_base(base.eval(), prompts=[[], [1], [2, 1, 1]])


def test_training_mode_is_left_as_it_was():
    base = build_base(CONFIGS["transformer, rotary"], Space(3, 4), rng=SeededRng(1)).train()
    base.network.embedding.eval()
    UncachedDecoding(base.network).begin(empty_prompts(2), 4)
    assert base.network.blocks[0].training and not base.network.embedding.training


def test_a_state_that_forgets_a_token_is_caught():
    base = build_base(CONFIGS["transformer, rotary"], Space(3, 4, eos=0), rng=SeededRng(1)).double().eval()
    steps = UncachedDecoding(base.network)
    base.network.begin, base.network.select = steps.begin, steps.select
    base.network.advance = lambda state, token: (steps.advance(state, token)[0], state)
    with pytest.raises(AssertionError):
        check_base(base, prompts=[[], [1]])
    assert torch.is_grad_enabled()
