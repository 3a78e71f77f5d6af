"""Draws that share states are those that do not: the same dice, the same tokens, the same log-probabilities."""

import pytest
import torch
from random_targets import PROMPTS
from small_networks import CONFIGS, SPACES, lively

from esscher.core.randomness import SeededRng
from esscher.core.space import prompts_of
from esscher.samplers import ancestral
from esscher.samplers.ancestral import draw


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("config", [CONFIGS["lstm, one-hot"], CONFIGS["transformer, rotary"]], ids=["lstm", "transformer"])
@pytest.mark.parametrize("draws", [1, 2, 40])
def test_sharing_changes_nothing(space, config, draws, monkeypatch):
    base, prompts = lively(config, space), prompts_of(PROMPTS)
    steps: list[int] = []
    advance = base.advance
    monkeypatch.setattr(base, "advance", lambda state, token: (steps.append(len(token)), advance(state, token))[1])
    shared, log_shared = draw(base, prompts, draws, rng=SeededRng(0))
    rows_shared = sum(steps)
    steps.clear()
    monkeypatch.setattr(ancestral, "SHARE_BELOW", 0.0)
    alone, log_alone = draw(base, prompts, draws, rng=SeededRng(0))
    assert shared.points() == alone.points() and torch.allclose(log_shared, log_alone, atol=1e-4)
    assert torch.allclose(base.log_probs(shared).double().sum(-1).view(len(prompts), draws), log_shared, atol=1e-4)
    if draws == 40:
        assert rows_shared < 0.5 * sum(steps)  # four prompts, 3 tokens: few different prefixes


@pytest.mark.parametrize("compact", [0.0, 0.75, 1.0])
def test_when_ended_rows_are_dropped_changes_no_point_that_is_kept(compact, monkeypatch):
    """However long ended rows are carried on, points end with their first end symbol, and count up to it."""
    monkeypatch.setattr(ancestral, "COMPACT_BELOW", compact)
    space = SPACES["end symbol"]
    base, prompts = lively(CONFIGS["lstm, one-hot"], space), prompts_of(PROMPTS)
    x, log_base = draw(base, prompts, 30, rng=SeededRng(0))
    assert any(len(point) < space.max_length for point in x.points())
    for point in x.points():
        assert space.eos not in point[:-1] and (point[-1] == space.eos or len(point) == space.max_length)
    assert not bool(x.tokens[torch.arange(x.tokens.shape[1]) >= x.stop[:, None]].any())
    assert torch.allclose(base.log_probs(x).double().sum(-1).view(len(prompts), 30), log_base, atol=1e-5)
