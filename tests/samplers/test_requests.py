"""What samplers are asked for: draws, prompts and spaces that cannot be are refused before anything is drawn."""

import math

import pytest
import torch
from random_targets import random_automaton, random_target

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.estimators.perplexity import measure
from esscher.exact.enumeration import tabulate
from esscher.samplers.accept_reject import Metropolis, Rejection
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.particles import Particles
from esscher.samplers.scoring import log_prob
from esscher.samplers.sir import SIR, AdaptiveSIR
from esscher.samplers.twists import ParticleSIR
from esscher.workflow.config.sample import SampleConfig

SPACE = Space(3, 5, eos=0)
TARGET = random_target(SPACE)
SAMPLERS = [Importance(), SIR(8), AdaptiveSIR(2.0, 4, 16), Metropolis(3), Rejection(9.0), Particles(), ParticleSIR(4)]


@pytest.fixture(autouse=True)
def without_type_checks(monkeypatch):
    """The house's own checks, not those of the tests."""
    import checking

    monkeypatch.setattr(checking, "CHECKED", 0)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_draws_are_a_whole_number_that_fits(sampler):
    for draws, error, message in (
        (0, ValueError, "at least 1 draw"), (-2, ValueError, "at least 1 draw"), (1.5, TypeError, "whole number, not 1.5"),
        ("3", TypeError, "whole number, not '3'"), (True, TypeError, "not True"), (None, TypeError, "not None"),
        (10**11, ValueError, r"100,000,000,000 sequences of up to 5 tokens take 7,200 GB.* this machine has .*Nothing was"),
        (10**400, ValueError, r"about 10\^400 sequences"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            sampler(TARGET, empty_prompts(1), draws, rng=SeededRng(0))


@pytest.mark.parametrize("sampler", [*SAMPLERS, Exhaustive()], ids=lambda sampler: type(sampler).__name__)
def test_prompts_are_of_the_vocabulary(sampler):
    two = prompts_of([[1], [2, 1]])
    for prompts, error, message in (
        (prompts_of([[1], [3, 2]]), ValueError, "1 of 2 prompts .* the first 3 in row 1: the base knows 0 to 2"),
        (prompts_of([[-1]]), ValueError, "the first -1 in row 0"),
        (empty_prompts(0), ValueError, "no prompt to draw after"),
        (sequences([[1, 0]]), ValueError, "1 of 1 prompts have points already"),
        ([[1]], TypeError, "Prompts are Sequences, not a list"),
        (Sequences(two.tokens, two.start + 4, two.stop + 4), ValueError, "outside their 2 columns"),
        (Sequences(two.tokens.double(), two.start, two.stop), TypeError, "torch.float64"),
    ):
        with pytest.raises(error, match=message):
            sampler(TARGET, prompts, 4, rng=SeededRng(0))
    with pytest.raises(TypeError, match="not from a Automaton"):
        sampler(TARGET.base, two, 4, rng=SeededRng(0))


def test_a_generator_is_needed():
    with pytest.raises(TypeError, match="pass rng=SeededRng"):
        Importance()(TARGET, empty_prompts(1), 4, rng=3)


def test_candidates_that_do_not_fit_are_refused_with_their_cost():
    for sampler in (SIR(10**11), Metropolis(10**11), Particles(pruning_rounds=60), ParticleSIR(10**11)):
        with pytest.raises(ValueError, match=r"take .* GB of memory"):
            sampler(TARGET, empty_prompts(1), 4, rng=SeededRng(0))


@pytest.mark.parametrize("make", [lambda v: SIR(v), lambda v: Metropolis(v), lambda v: SampleConfig(draws=v)])
def test_settings_are_whole_numbers(make):
    for value in (1.5, "8", True, math.nan):
        with pytest.raises(TypeError, match=r"is a whole number, not .*Nothing was drawn"):
            make(value)


def test_enumeration_is_refused_with_its_cost():
    for space, message in (
        (Space(50_000, 1024, eos=0), "about 10.4812 sequences of up to 1,024 tokens"),
        (Space(256, 64), "about 10.15[34] sequences"),
        (Space(3, 21, eos=0), "4,194,303 sequences of up to 21 tokens, 0.705 GB; enumeration stops at 1,048,576"),
        (Space(1000, 10**9), "about 10.3000000000 sequences"),
    ):
        wide = _Sized(space)
        with pytest.raises(ValueError, match=message):
            tabulate(Tilted(wide))
        with pytest.raises(ValueError, match=message):
            Exhaustive()(Tilted(wide), empty_prompts(1), 1, rng=SeededRng(0))


class _Sized:
    """A base of which only the space is asked."""

    def __init__(self, space):
        self.space = space


def test_spaces_fit():
    with pytest.raises(ValueError, match=r"The proposal draws from Space\(vocab_size=3, max_length=6"):
        Importance(random_automaton(Space(3, 6, eos=0)))(TARGET, empty_prompts(1), 8, rng=SeededRng(0))
    for points, message in (
        ([[1, 1, 1, 1, 1, 1, 0]], "no points of the base's space"), ([[1, 2]], "no points"),
        ([[1, 7, 0]], "the first 7 in row 0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            measure(TARGET, sequences(points), Importance(), 64, rng=SeededRng(0))
    with pytest.raises(ValueError, match="outside the vocabulary"):
        log_prob(TARGET.base, sequences([[5, 0]]))
    with pytest.raises(TypeError, match=r"Tokens are whole numbers, not 1.5"):
        sequences([[1.5, 0]])
    with pytest.raises(TypeError, match="whole numbers"):
        Space(2.5, 3)


class _Unnormalised:
    """Log-probabilities that are logits."""

    def __init__(self, base):
        self.base, self.space = base, base.space

    def begin(self, prompts):
        log_prob, state = self.base.begin(prompts)
        return log_prob + 1, state

    def __getattr__(self, name):
        return getattr(self.base, name)


def test_a_base_that_is_not_normalised_is_refused():
    with pytest.raises(ValueError, match="_Unnormalised gives probabilities that do not sum to 1 after 1 of 1 prompts"):
        Importance()(Tilted(_Unnormalised(TARGET.base), TARGET.energy), empty_prompts(1), 8, rng=SeededRng(0))
    assert torch.isfinite(Importance()(TARGET, empty_prompts(1), 8, rng=SeededRng(0)).log_weight).all()
