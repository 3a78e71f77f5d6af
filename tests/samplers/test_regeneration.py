"""Regeneration moves: detailed balance by enumerating every outcome, and the settings at their edges."""

import math

import pytest
import torch
from random_targets import random_automaton, random_target, taste

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.exact.automaton import Automaton
from esscher.exact.enumeration import enumerate_points
from esscher.samplers import regeneration
from esscher.samplers.ancestral import draw, redraw
from esscher.samplers.regeneration import Regeneration, at_least, token_log_probs
from esscher.samplers.scoring import log_prob
from esscher.testing import every_outcome
from esscher.testing.statistics import point_number

VARIABLE, FIXED = Space(3, 3, eos=0), Space(2, 3)


def score_of(space: Space):
    energy = taste(space, seed=8)
    return lambda x: -energy(x)


DENSITIES = {
    "tilt": lambda score: score,
    "half a tilt": lambda score: 0.5 * score,
    "level": at_least(0.1),
    "base": torch.zeros_like,
}


def transition_matrix(kernel: Regeneration, log_weight, prompt: list[int]) -> torch.Tensor:
    """The probability of each point after each point, by running one move on every outcome."""
    space = kernel.base.space
    points = enumerate_points(space, prompts_of([prompt]))
    matrix = torch.zeros(len(points), len(points), dtype=torch.float64)
    for row in range(len(points)):
        chains = kernel.start(points.rows(slice(row, row + 1)))
        for probability, (after, _) in every_outcome(lambda rng, chains=chains: kernel(chains, log_weight, rng=rng)):
            matrix[row, point_number(space, after.x)] += probability
    return matrix


def imbalance(kernel: Regeneration, log_weight, prompt: list[int]) -> float:
    """The largest |pi(x) K(x, y) - pi(y) K(y, x)|, with pi the normalised stationary density."""
    matrix = transition_matrix(kernel, log_weight, prompt)
    assert torch.allclose(matrix.sum(-1), torch.ones(len(matrix), dtype=torch.float64))
    points = enumerate_points(kernel.base.space, prompts_of([prompt]))
    flow = torch.softmax(log_prob(kernel.base, points) + log_weight(kernel.start(points).score), 0)[:, None] * matrix
    return float((flow - flow.T).abs().max())


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("prompt", [[], [1, 1]], ids=str)
@pytest.mark.parametrize("other", [False, True], ids=["from the base", "from a proposal"])
@pytest.mark.parametrize("space", [VARIABLE, FIXED], ids=["end symbol", "fixed length"])
def test_detailed_balance_is_exact(space, other, prompt, density):
    proposal = random_automaton(space, seed=3) if other else None
    kernel = Regeneration(random_automaton(space), score_of(space), proposal)
    assert imbalance(kernel, DENSITIES[density], prompt) < 1e-12


@pytest.mark.parametrize("wrong", ["without the lengths", "without the proposal's ratio", "accepts all", "the ratio inverted"])
def test_wrong_acceptances_are_caught(monkeypatch, wrong):
    def acceptance(old, new, cut, log_weight):
        gain = log_weight(new.score) - log_weight(old.score)
        lengths = old.x.lengths.double().log() - new.x.lengths.double().log()
        whole = (new.log_ratio - old.log_ratio).sum(-1)
        if wrong == "accepts all":
            return torch.zeros_like(gain)
        if wrong == "without the lengths":
            return gain + whole
        return gain + lengths + (0 if wrong == "without the proposal's ratio" else -whole)

    monkeypatch.setattr(regeneration, "_log_acceptance", acceptance)
    kernel = Regeneration(random_automaton(VARIABLE), score_of(VARIABLE), random_automaton(VARIABLE, seed=3))
    assert imbalance(kernel, DENSITIES["tilt"], []) > 1e-3


def test_the_base_reads_the_prefix_as_part_of_the_point():
    """A base that reads prompts in another way than points: a prefix that was given as a prompt would be continued wrongly."""
    plain = random_automaton(VARIABLE)
    base = Automaton(plain.log_emission, plain.next_state, VARIABLE, torch.zeros_like(plain.next_state))
    kernel = Regeneration(base, score_of(VARIABLE))
    assert imbalance(kernel, DENSITIES["tilt"], [1]) < 1e-12


def test_a_level_is_never_left():
    kernel = Regeneration(random_automaton(VARIABLE), score_of(VARIABLE))
    x, _ = draw(kernel.base, empty_prompts(1), 64, rng=SeededRng(0))
    start = kernel.start(x)
    chains = start.rows((start.score >= 0.1).nonzero()[:, 0])
    chains, moves = kernel(chains, at_least(0.1), moves=5, rng=SeededRng(1))
    assert float(chains.score.min()) >= 0.1 and 0 < float(moves.acceptance.mean()) < 1
    assert torch.allclose(chains.score, kernel.start(chains.x).score)


@pytest.mark.parametrize("other", [False, True])
def test_what_chains_keep_is_that_of_their_points(other):
    space, target = VARIABLE, random_target(VARIABLE)
    proposal = random_automaton(space, seed=3) if other else None
    kernel = Regeneration(target.base, target.log_weight, proposal)
    x, _ = draw(target.base, prompts_of([[], [1, 2], [2, 1, 1]]), 32, rng=SeededRng(0))
    chains, moves = kernel(kernel.start(x), lambda score: score, moves=3, rng=SeededRng(2))
    again = kernel.start(chains.x)
    assert chains.x.prompt_keys() == x.prompt_keys() and chains.x.points() != x.points()
    assert torch.allclose(chains.log_base, again.log_base) and torch.allclose(chains.score, again.score)
    assert not other or torch.allclose(chains.log_ratio, again.log_ratio)
    assert moves.proposed == 3 * len(x) and moves.tokens == moves.tokens_drawn + moves.tokens_read > 0


def test_chains_reach_the_target_from_anywhere():
    """1,000 chains from the heaviest point, 30 moves: the share of every point within 5 standard errors."""
    target = random_target(VARIABLE)
    points = enumerate_points(VARIABLE)
    share = torch.softmax(target.log_score(points), 0)
    kernel = Regeneration(target.base, target.log_weight)
    start = kernel.start(points.rows(share.argmax()[None].expand(1000)))
    chains, _ = kernel(start, lambda score: score, moves=30, rng=SeededRng(3))
    seen = torch.bincount(point_number(VARIABLE, chains.x), minlength=len(points)) / 1000
    assert float(((seen - share).abs() / (share * (1 - share) / 1000).sqrt()).max()) < 5


def test_redrawn_tokens_have_the_log_probabilities_of_the_base():
    base = random_automaton(VARIABLE)
    x, _ = draw(base, prompts_of([[], [1, 2]]), 16, rng=SeededRng(0))
    cut = (x.lengths - 1).clamp(max=1)
    new, log_probs = redraw(base, x, cut, rng=SeededRng(1))
    assert torch.allclose(log_probs, token_log_probs(base, new))
    assert all(a[:c] == b[:c] for a, b, c in zip(x.points(), new.points(), cut.tolist(), strict=True))


def test_refusals():
    base = random_automaton(VARIABLE)
    with pytest.raises(ValueError, match="Nothing was drawn; propose"):
        Regeneration(base, score_of(VARIABLE), random_automaton(FIXED))
    with pytest.raises(ValueError, match="cut before its last token"):
        redraw(base, sequences([[1, 0]]), torch.tensor([2]), rng=SeededRng(0))
    with pytest.raises(ValueError, match="is not a number"):
        Regeneration(base, lambda x: torch.full((len(x),), math.nan)).start(sequences([[1, 0]]))
    with pytest.raises(ValueError, match="no points of the base's space"):
        Regeneration(base, score_of(VARIABLE)).start(sequences([[1, 1]]))


def test_the_target_of_a_tilt_may_forbid():
    """Chains that start at forbidden points move freely, and never return once they have left."""
    target = random_target(VARIABLE)
    forbidding = Tilted(target.base, lambda x: torch.where((x.counted & (x.tokens == 2)).any(-1), torch.inf, target.energy(x)))
    kernel = Regeneration(forbidding.base, forbidding.log_weight)
    start = kernel.start(sequences([[2, 2, 2]] * 50))
    chains, _ = kernel(start, lambda score: score, moves=60, rng=SeededRng(0))
    assert bool(chains.score.isfinite().all())
