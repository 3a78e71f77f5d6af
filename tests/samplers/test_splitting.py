"""Splitting: unbiased over every outcome, right on automata with exact probabilities, and the levels that a pilot chooses."""

import math

import pytest
import torch
from random_targets import random_automaton

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, prompts_of, sequences
from esscher.papers.laboratory.risk import after_prompts, count, motif
from esscher.samplers import splitting
from esscher.samplers.ancestral import draw, redraw
from esscher.samplers.splitting import Guide, Ladder, Particles, copies, next_level, plan_levels, split, spread_draws
from esscher.testing import every_outcome

SPACES = {"end symbol": Space(3, 2, eos=0), "fixed length": Space(2, 2)}


def ones(x):
    """How many tokens 1 the first 1, 2, ... tokens of each point hold."""
    width = int(x.lengths.max())
    column = (x.start[:, None] + torch.arange(width)).clamp(max=max(0, x.tokens.shape[1] - 1))
    here = (x.tokens.gather(1, column) == 1) & (torch.arange(width) < x.lengths[:, None])
    return here.double().cumsum(1)


def expected_estimate(base, prompts, *, particles=(2, 2)) -> float:
    """The mean of the estimate of the probability of two ones, over every outcome of a run."""
    guide = Guide(ones, 2.0, torch.tensor([0.25, 0.0], dtype=torch.float64))
    ladder = Ladder((1.0, 2.0), (0.5, 0.5), (1.0, 1.0))
    outcomes = every_outcome(lambda rng: split(base, guide, prompts, ladder, particles, rng=rng))
    return sum(float(probability) * float(result.log_probability.exp()[0]) for probability, result in outcomes)


def exact(base, prompts) -> float:
    both = sequences([[1, 1]] * len(prompts), [list(key) for key in prompts.prompt_keys()])
    return float(base.log_probs(both).sum(-1).exp().mean())


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("prompts", [empty_prompts(1), prompts_of([[1], [1, 1]])], ids=["no prompt", "two prompts"])
def test_the_estimate_is_unbiased_over_every_outcome(space, prompts):
    base = random_automaton(SPACES[space])
    assert expected_estimate(base, prompts) == pytest.approx(exact(base, prompts), rel=1e-9)


def test_one_particle_for_two_prompts_is_unbiased():
    base, prompts = random_automaton(SPACES["fixed length"]), prompts_of([[1], [1, 1]])
    assert expected_estimate(base, prompts, particles=(1, 2)) == pytest.approx(exact(base, prompts), rel=1e-9)


@pytest.mark.parametrize("wrong", ["copies of the first", "not drawn again", "drawn again from before the level"])
def test_wrong_versions_are_biased(monkeypatch, wrong):
    base, prompts = random_automaton(SPACES["end symbol"]), prompts_of([[1], [1, 1]])
    if wrong == "drawn again from before the level":
        monkeypatch.setattr(splitting, "redraw", lambda base, x, cut, rng: redraw(base, x, cut - 1, rng=rng))
    else:
        place = slice(0, 1) if wrong == "copies of the first" else slice(-1, None)
        monkeypatch.setattr(splitting, "copies", lambda alive, count, rng: alive.nonzero()[place, 0].repeat(count))
    if wrong == "not drawn again":
        monkeypatch.setattr(splitting, "regrow", lambda base, guide, now, level, rng: (now, 0))
    assert abs(expected_estimate(base, prompts) - exact(base, prompts)) > 1e-4


@pytest.mark.parametrize("process", [motif(8), count(24), after_prompts(20)], ids=lambda process: process.name)
def test_runs_agree_with_the_exact_probability(process):
    """The mean of 24 runs is within 4 standard errors: false alarms below 1 in 1,000 (Student, 23 degrees of freedom)."""
    rng = SeededRng(5)
    first = spread_draws(process.base, process.prompts, 600, rng=rng.stream("first"))
    guide = Guide.fit(process.scores, process.threshold, first)
    ladder, complete, _ = plan_levels(
        process.base, guide, Particles(first, guide(first)), 200, budget=math.inf, rng=rng.stream("pilot")
    )
    assert complete
    assert ladder.levels[-1] == process.threshold
    result = split(process.base, guide, process.prompts, ladder, [150] * len(ladder.levels), runs=24, rng=rng.stream("runs"))
    estimates = result.log_probability.exp() / process.truth
    assert abs(float(estimates.mean()) - 1) < 4 * float(estimates.std()) / math.sqrt(24)
    assert bool((process.scores(result.x)[:, -1] >= process.threshold).all())


def test_a_guide_adds_what_draws_still_gain():
    base, space = random_automaton(SPACES["fixed length"]), SPACES["fixed length"]
    x, _ = draw(base, empty_prompts(1), 500, rng=SeededRng(0))
    guide = Guide.fit(ones, 2.0, x)
    second = float((x.tokens[:, 1] == 1).double().mean())
    assert guide.growth.tolist()[0] == pytest.approx(second)
    expected = guide(sequences([[1, 0], [1, 1]]))
    assert expected[0].tolist() == pytest.approx([1 + second, 1.0])
    assert float(expected[1].max()) == 2.0
    assert bool((guide(x).amax(-1) >= 2.0).eq((x.tokens == 1).all(-1)).all()), space


def test_levels_and_copies():
    reached = torch.arange(100, dtype=torch.float64)
    assert next_level(reached, -math.inf, 200.0) == (75.0, 0.25)
    assert next_level(reached, -math.inf, 85.0) == (85.0, 0.15)
    assert next_level(reached, 95.0, 200.0) is None
    rows = copies(torch.tensor([True, False, True, True]), 7, rng=SeededRng(0))
    assert sorted(torch.bincount(rows, minlength=4).tolist()) == [0, 2, 2, 3]
    assert sum(Ladder((1.0, 2.0), (0.25, 0.25), (10.0, 10.0)).particles(1000.0)) == 100
