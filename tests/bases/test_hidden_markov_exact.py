"""Exact sums over hidden Markov models: against enumeration, and against an automaton where nothing is hidden."""

import math
from dataclasses import replace

import pytest
import torch
from bases.hidden import SPACES, path_sums, random_model, rows_of
from random_targets import PROMPTS

from esscher.bases.hidden_markov import (
    HiddenMarkov,
    drop_hidden_states,
    hidden_markov_family,
    lift_to_paths,
    path_automaton,
)
from esscher.core.draws import Draws
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of
from esscher.core.target import Tilted
from esscher.exact import features
from esscher.exact.automaton import Automaton
from esscher.exact.dynamic_programming import entropy, expectation
from esscher.exact.enumeration import tabulate
from esscher.exact.exponential_family import exact_moment_weights, exponential_family, tilt
from esscher.samplers.ancestral import draw
from esscher.testing import assert_draws_follow

WEIGHTS = torch.tensor([0.8, -1.1, 0.3], dtype=torch.float64)


def three(space: Space) -> list[features.AutomatonFeature]:
    return [features.contains([1, 2], space), features.count([1], space), features.length(space)]


def tilted_table(model, tallies, weights, prompts=None):
    def energy(x: Sequences) -> torch.Tensor:
        return -sum(weight * tally(x) for weight, tally in zip(weights, tallies, strict=True))

    return tabulate(Tilted(model, energy), prompts)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("zeros", [False, True])
def test_tilts_equal_enumeration(name, zeros):
    space, prompts = SPACES[name], prompts_of(PROMPTS)
    model, tallies = random_model(space, zeros=zeros), three(space)
    for item in (prompts, None):
        table, exact = tilted_table(model, tallies, WEIGHTS, item), hidden_markov_family(model, tallies)
        assert torch.allclose(exact.log_z(WEIGHTS, item), table.log_z, rtol=1e-12)
        means = torch.stack([table.expect(tally) for tally in tallies], -1)
        assert torch.allclose(exact.moments(WEIGHTS, item), means, rtol=1e-12)
    mean_length = exact.moments(torch.zeros(3, dtype=torch.float64), prompts)[:, 2]
    assert torch.allclose(mean_length, tabulate(Tilted(model), prompts).expect(lambda x: x.lengths))
    weights = WEIGHTS.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(exact.log_z(weights, prompts).sum(), weights)
    assert torch.allclose(gradient, exact.moments(WEIGHTS, prompts).sum(0))


def test_the_comparison_catches_tallies_that_read_hidden_states_and_beliefs_that_skip_the_prompt():
    space, prompts = SPACES["end symbol"], prompts_of(PROMPTS)
    model, tallies = random_model(space), three(space)
    exact = tilted_table(model, tallies, WEIGHTS, prompts).log_z
    lifted = [lift_to_paths(tally, model) for tally in tallies]
    broken = replace(
        lifted[0], next_state=torch.where(torch.arange(6) < 3, lifted[0].next_state, 0)
    )  # a hidden state interrupts the motif
    longer = replace(lifted[2], value=torch.ones_like(lifted[2].value))  # hidden states count as tokens
    for wrong in ([broken, *lifted[1:]], [*lifted[:2], longer]):
        assert not torch.allclose(exponential_family(path_automaton(model), wrong).log_z(WEIGHTS), exact[:1], atol=1e-3)
    assert not torch.allclose(hidden_markov_family(model, tallies).log_z(WEIGHTS).expand(4), exact, atol=1e-3)


def test_the_entropy_of_paths_bounds_that_of_points():
    """The entropy of the points has no closed form; by enumeration it is below, and the posterior makes up the rest."""
    model = random_model(SPACES["end symbol"])
    table = tabulate(Tilted(model))
    points, both = float(table.entropy), float(entropy(path_automaton(model)))
    hidden = 0.0
    for row, p in zip(rows_of(table.x), table.log_prob[0].exp().tolist(), strict=True):
        joint = path_sums(model, row)
        total = sum(joint.values())
        hidden -= p * sum(q / total * math.log(q / total) for q in joint.values())
    assert points < both
    assert points + hidden == pytest.approx(both, abs=1e-12)


def visible(space: Space) -> tuple[HiddenMarkov, Automaton]:
    """Tokens 0, 1 | 2 | 3 belong to hidden states 0, 1, 2, so that the last token tells the state; and the automaton."""
    owner = torch.tensor([0, 0, 1, 2])
    raw = random_model(Space(4, 4), states=3, seed=9)
    emission = torch.where(owner == torch.arange(3)[:, None], raw.emission, -torch.inf)
    model = HiddenMarkov(raw.initial, raw.transition, torch.log_softmax(emission, -1), space)
    before = torch.cat([model.initial[None], model.transition])  # automaton state 0 is the beginning, 1 + z after z
    log_emission = torch.stack([row[owner] + model.emission[owner, torch.arange(4)] for row in before])
    return model, Automaton(log_emission, (1 + owner).expand(4, 4).contiguous(), space)


def test_visible_states_are_an_automaton():
    space = Space(4, 12, eos=3)
    model, automaton = visible(space)
    x, log_prob = draw(automaton, prompts_of([[], [2], [0, 1, 1, 2]]), 50, rng=SeededRng(0))
    assert torch.allclose(model.log_probs(x).sum(-1), log_prob.flatten())
    tallies, prompts = [features.contains([0, 2, 0], space), features.count([1], space)], prompts_of([[], [2], [0, 1, 1]])
    actual, exact = hidden_markov_family(model, tallies), exponential_family(automaton, tallies)
    weights = torch.tensor([2.0, -0.4], dtype=torch.float64)
    assert torch.allclose(actual.log_z(weights, prompts), exact.log_z(weights, prompts))
    for row in range(3):
        alone = prompts.rows(torch.tensor([row]))
        assert torch.allclose(actual.moments(weights, alone)[0], exact.moments(weights, alone)[0])
    wanted = torch.tensor([0.6, 3.0])
    lifted = [lift_to_paths(tally, model) for tally in tallies]
    assert torch.allclose(
        exact_moment_weights(path_automaton(model), lifted, wanted), exact_moment_weights(automaton, tallies, wanted)
    )
    assert float(entropy(path_automaton(model))) == pytest.approx(float(entropy(automaton)))  # nothing is hidden
    once = lift_to_paths(features.length(space), model)
    endless = expectation(automaton, features.length(space), unbounded=True)
    assert torch.allclose(expectation(path_automaton(model), once, unbounded=True), endless)


def test_exact_draws_from_the_tilted_model():
    """Draws of tilted paths without their hidden states; the comparison's false-alarm rate is 1e-6."""
    space, prompts = SPACES["end symbol"], empty_prompts(400)
    model, tallies = random_model(space), three(space)
    lifted = [lift_to_paths(tally, model) for tally in tallies]

    def drawn(weights) -> Draws:
        x, log_base = draw(tilt(path_automaton(model), lifted, weights), prompts, 10, rng=SeededRng(1))
        flat = torch.zeros_like(log_base)
        return Draws(drop_hidden_states(x, model), flat, flat, estimates_z=False, independent=True, cost=len(x))

    target = Tilted(model, lambda x: -sum(weight * tally(x) for weight, tally in zip(WEIGHTS, tallies, strict=True)))
    assert_draws_follow(target, prompts, drawn(WEIGHTS))
    with pytest.raises(AssertionError, match="standard errors"):
        assert_draws_follow(target, prompts, drawn(0.5 * WEIGHTS))
