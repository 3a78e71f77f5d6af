"""Automata as bases: the laws of a base, weights against a plain walk, prompts without continuation."""

import pytest
import torch
from exact.examples import SPACES, random_weighted
from random_targets import PROMPTS, random_automaton

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.exact.automaton import Automaton, NormalisedAutomaton, WeightedAutomaton
from esscher.exact.dynamic_programming import normalise, normalise_unbounded
from esscher.exact.enumeration import enumerate_points
from esscher.samplers.ancestral import Ancestral
from esscher.testing import assert_draws_follow, check_base


def walk(weights: WeightedAutomaton, prompt: list[int], point: list[int]) -> float:
    """The log-weight of one point, token by token in plain Python."""
    state, total = 0, 0.0
    for token in prompt:
        state = int((weights.next_state if weights.prompt_next_state is None else weights.prompt_next_state)[state, token])
    for token in point:
        total += float(weights.log_emission[state, token])
        state = int(weights.next_state[state, token])
    ended = weights.space.eos is not None and point[-1:] == [weights.space.eos]
    return total if ended or len(point) < weights.space.max_length else total + float(weights.log_final[state])


@pytest.mark.parametrize("name", SPACES)
def test_automata_are_bases(name):
    space = SPACES[name]
    check_base(random_automaton(space), PROMPTS, tolerance=1e-12)
    for seed in range(5):
        weights = random_weighted(space, seed=seed, prompt_next_state=seed % 2 == 1)
        prompts = [p for p in [*PROMPTS, [0, 2]] if float(normalise(weights).log_z(prompts_of([p]))) > -torch.inf]
        check_base(normalise(weights), prompts, tolerance=1e-12)
    if space.eos is not None:
        lighter = WeightedAutomaton(random_automaton(space).log_emission - 0.3, random_automaton(space).next_state, space)
        check_base(normalise_unbounded(lighter), PROMPTS, tolerance=1e-12)


def test_the_laws_catch_a_model_that_forgets_how_many_tokens_are_left():
    weights = random_weighted(SPACES["end symbol"], seed=3)
    right = normalise(weights)
    frozen_in_time = NormalisedAutomaton(weights, right.log_backward[-1:].expand_as(right.log_backward))
    with pytest.raises(AssertionError):
        check_base(frozen_in_time, PROMPTS)


@pytest.mark.parametrize("name", SPACES)
def test_log_weight_is_that_of_a_walk(name):
    weights = random_weighted(SPACES[name], prompt_next_state=True)
    x = enumerate_points(weights.space, prompts_of([[], [1], [2, 1]]))
    prompts = [row[:start] for row, start in zip(x.tokens.tolist(), x.start.tolist(), strict=True)]
    expected = [walk(weights, prompt, point) for prompt, point in zip(prompts, x.points(), strict=True)]
    assert torch.allclose(weights.log_weight(x), torch.tensor(expected, dtype=torch.float64))


def test_draws_of_a_normalised_automaton_follow_it():
    """False-alarm rate 1e-6."""
    base = normalise(random_weighted(SPACES["end symbol"], seed=3))
    prompts = prompts_of([PROMPTS[row % 4] for row in range(800)])
    draws = Ancestral()(Tilted(base), prompts, 8, rng=SeededRng(5))
    assert_draws_follow(Tilted(base), prompts, draws)
    wrong = Ancestral()(Tilted(normalise(random_weighted(SPACES["end symbol"], seed=4))), prompts, 8, rng=SeededRng(5))
    with pytest.raises(AssertionError, match="standard errors"):
        assert_draws_follow(Tilted(base), prompts, wrong)


def test_advancing_after_the_end_gives_no_nan():
    base = normalise(random_weighted(Space(3, 3, eos=0)))
    log_prob, state = base.begin(prompts_of([[], []]))
    for _ in range(6):
        log_prob, state = base.advance(state, torch.tensor([0, 1]))
        assert not bool(log_prob.isnan().any())
        assert torch.allclose(log_prob.exp().sum(-1), torch.ones(2, dtype=torch.float64))


def test_empty_batches_and_width_zero():
    for base in (random_automaton(Space(3, 4, eos=0)), normalise(random_weighted(Space(3, 4, eos=0)))):
        assert base.log_probs(sequences([[], []])).shape == (2, 0)
        none = Sequences(
            torch.zeros(0, 2, dtype=torch.long), torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
        )
        assert base.log_probs(none).shape == (0, 2)


def test_errors_say_what_is_wrong():
    half = torch.full((1, 2), 0.25, dtype=torch.float64).log()
    stay = torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(ValueError, match=r"out of state 0 sum to 0\.5"):
        Automaton(half, stay, Space(2, 3))
    with pytest.raises(ValueError, match="has 2 tokens and its space 3"):
        WeightedAutomaton(half, stay, Space(3, 3))
    dead = torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]], dtype=torch.float64)
    base = normalise(WeightedAutomaton(dead, torch.tensor([[0, 1], [1, 1]]), Space(2, 3)))
    with pytest.raises(ValueError, match=r"No point can follow 1 of 2 prompts: after \[0, 1\]"):
        base.begin(prompts_of([[0], [0, 1]]))
