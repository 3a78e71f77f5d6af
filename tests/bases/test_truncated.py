"""Truncation stays a base: laws over networks and automata, the kept tokens against sorting, and wrong versions."""

import pytest
import torch
from random_targets import PROMPTS, random_automaton
from small_networks import CONFIGS, SPACES, lively

from esscher.bases.truncated import Truncated
from esscher.bases.wrappers import WithMaxLength
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of, sequences
from esscher.exact.enumeration import enumerate_points
from esscher.samplers.ancestral import draw
from esscher.testing import check_base

SETTINGS = {
    "top-k": {"top_k": 2},
    "greedy": {"top_k": 1},
    "nucleus": {"top_p": 0.7},
    "temperature": {"temperature": 0.5},
    "all three": {"top_k": 2, "top_p": 0.8, "temperature": 1.7},
    "nothing": {"top_k": 3, "top_p": 1.0},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_one_pass_and_steps_give_the_same(setting):
    space = SPACES["end symbol"]
    base = lively(CONFIGS["transformer, rotary"], space).double()
    in_one_pass = Truncated(base, **SETTINGS[setting])
    by_steps = Truncated(WithMaxLength(base, space.max_length), **SETTINGS[setting])  # a base without logits
    x = enumerate_points(space, prompts_of(PROMPTS))
    with torch.no_grad():
        assert torch.allclose(in_one_pass.logits(x), by_steps.logits(x), atol=1e-12)


def expected_distribution(probabilities, top_k, top_p, temperature):
    """The definition on one distribution, with Python's sort."""
    share = {token: p ** (1 / temperature) for token, p in enumerate(probabilities)}
    kept = sorted(share, key=lambda token: (-share[token], token))[:top_k]
    total, sum_before, nucleus = sum(share[token] for token in kept), 0.0, []
    for token in kept:
        if sum_before < top_p * total:
            nucleus.append(token)
        sum_before += share[token]
    total = sum(share[token] for token in nucleus)
    return [share[token] / total if token in nucleus else 0.0 for token in range(len(probabilities))]


@pytest.mark.parametrize(("top_k", "top_p", "temperature"), [(3, 1.0, 1.0), (8, 0.6, 1.0), (5, 0.5, 0.7), (8, 1.0, 2.0)])
def test_definition(top_k, top_p, temperature):
    base = random_automaton(Space(8, 1), states=1, seed=top_k)
    actual = Truncated(base, top_k, top_p, temperature).begin(prompts_of([[]]))[0][0].exp()
    expected = expected_distribution(base.log_emission[0].exp().tolist(), top_k, top_p, temperature)
    assert actual.tolist() == pytest.approx(expected)


def test_equals_go_to_the_smaller_token_whatever_the_last_bits():
    base = random_automaton(Space(6, 1), states=1)
    noise = 1e-7 * torch.tensor([-1.0, 1, -1, 1, 1, -1])
    base.log_emission[0] = torch.tensor([0.1, 0.2, 0.2, 0.2, 0.2, 0.1]).log()
    for bits in (noise, -noise):
        base.log_emission[0] += bits
        for setting in ({"top_k": 2}, {"top_p": 0.35}):
            first = Truncated(base, **setting).begin(prompts_of([[]]))[0][0].exp()
            assert first.tolist() == pytest.approx([0, 0.5, 0.5, 0, 0, 0], abs=1e-6)


def test_draws_never_leave_the_support_and_know_their_scores():
    space = Space(50, 12, eos=0)
    truncated = Truncated(lively(CONFIGS["transformer, rotary"], space), top_k=20, top_p=0.9, temperature=1.3)
    x, log_prob = draw(truncated, prompts_of([[], [3, 4]]), 200, rng=SeededRng(0))
    with torch.no_grad():
        assert torch.allclose(truncated.log_probs(x).double().sum(-1), log_prob.view(-1), atol=1e-4)


def test_outside_the_support_is_minus_infinity_with_a_finite_gradient():
    base = lively(CONFIGS["lstm, tied"], Space(3, 2))
    greedy = Truncated(base, top_k=1)
    x = enumerate_points(base.space)
    score = greedy.log_probs(x).sum(-1)
    assert sorted(score.exp().tolist()) == [0.0] * 8 + [1.0]
    Truncated(base, top_k=2).log_probs(x.rows(score > -1)).sum().backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in base.parameters())


def test_scoring_in_pieces_changes_nothing(monkeypatch):
    base = Truncated(lively(CONFIGS["lstm, one-hot"], SPACES["end symbol"]), top_k=2)
    x = enumerate_points(base.space, prompts_of(PROMPTS))
    whole = base.log_probs(x)
    monkeypatch.setattr("esscher.bases.logits.LOGITS_PER_CHUNK", 50)
    assert torch.allclose(base.log_probs(x), whole)
    assert base.log_probs(sequences([[], []])).shape == (2, 0)


@pytest.mark.parametrize("setting", [{"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}, {"temperature": 0.0}, {"temperature": -1.0}])
def test_wrong_settings_are_refused(setting):
    with pytest.raises(ValueError, match="not"):
        Truncated(random_automaton(Space(3, 2)), **setting)


class Unscored:
    """Wrong: truncates what it draws and scores with the base, which is what most libraries do."""

    def __init__(self, base, top_k):
        self.inner, self.space = Truncated(base, top_k), base.space
        self.begin, self.advance, self.select, self.log_probs = (
            self.inner.begin,
            self.inner.advance,
            self.inner.select,
            base.log_probs,
        )


class OtherTies(Unscored):
    """Wrong: of equal tokens, scoring keeps the larger."""

    def __init__(self, base, top_k):
        super().__init__(base, top_k)
        tilted = random_automaton(base.space, states=1)
        tilted.log_emission[0] = base.log_emission[0] + 1e-3 * torch.arange(base.space.vocab_size)
        self.log_probs = Truncated(tilted, top_k).log_probs


@pytest.mark.parametrize("wrong", [Unscored, OtherTies])
def test_wrong_truncations_are_caught(wrong):
    base = random_automaton(Space(3, 3), states=1)
    base.log_emission[0] = torch.full((3,), 1 / 3).log()
    check_base(Truncated(base, 2), PROMPTS)
    with pytest.raises(AssertionError, match="stepping must equal scoring"):
        check_base(wrong(base, 2), PROMPTS)
