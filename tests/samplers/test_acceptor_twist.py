"""Draws that a twist leads to an event: unbiased over every outcome, without variance where the twist is exact, and what is
learnt of the base."""

import math
from dataclasses import replace

import pytest
import torch
from random_targets import random_automaton

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, concatenate, empty_prompts, prompts_of
from esscher.exact import acceptors
from esscher.exact.enumeration import enumerate_points
from esscher.papers.laboratory.risk import after_prompts, count, exact_probability, motif
from esscher.samplers import acceptor_twist
from esscher.samplers.acceptor_twist import (
    AcceptorTwist,
    EventStates,
    Shares,
    Transitions,
    completed,
    draw_twisted,
    fit_twist,
)
from esscher.samplers.ancestral import draw
from esscher.testing import every_outcome

SPACES = {"end symbol": Space(3, 2, eos=0), "fixed length": Space(2, 2)}
PROMPTS = {"no prompt": empty_prompts(1), "two prompts": prompts_of([[1], [1, 1]])}


def accepts(space: Space):
    """The points whose last token but the end symbol is 1."""
    return acceptors.ends_with([1], space.vocab_size)


def exact(base, prompts) -> float:
    """The mean over the prompts of the probability of acceptance, by enumeration."""
    x = enumerate_points(base.space, prompts)
    accepted = accepts(base.space).accepts(x)
    return float((base.log_probs(x).sum(-1).exp() * accepted).sum()) / len(prompts)


def random_twist(base, seed=0) -> AcceptorTwist:
    """A twist that knows nothing, with 0 only where the event is impossible."""
    events = EventStates.of(accepts(base.space), base.space)
    log_psi = torch.randn(events.length + 1, events.states + 2, generator=torch.Generator().manual_seed(seed)).double()
    log_psi[:, events.states], log_psi[:, events.states + 1] = 0.0, -torch.inf
    log_psi[-1] = torch.where(events.accepting, 0.0, -torch.inf)
    return AcceptorTwist(events, log_psi)


def expected(base, prompts, *, threshold, count=2, shares=None) -> float:
    """The mean of a run's estimate over every outcome."""
    twist = random_twist(base)
    outcomes = every_outcome(lambda rng: draw_twisted(base, prompts, twist, count, rng=rng, threshold=threshold, shares=shares))
    return sum(float(probability) * float(result.log_mean_weight.exp()[0]) for probability, result in outcomes)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize("threshold", [0.0, 1.1], ids=["independent", "resampled"])
def test_a_run_is_unbiased_over_every_outcome(space, prompts, threshold):
    base, after = random_automaton(SPACES[space]), PROMPTS[prompts]
    assert expected(base, after, threshold=threshold) == pytest.approx(exact(base, after), rel=1e-9)


def test_uneven_shares_of_prompts_are_made_up_for():
    base, after = random_automaton(SPACES["end symbol"]), PROMPTS["two prompts"]
    shares = Shares(torch.tensor([0.9, 0.1], dtype=torch.float64).log())
    assert expected(base, after, threshold=1.1, shares=shares) == pytest.approx(exact(base, after), rel=1e-9)


@pytest.mark.parametrize("wrong", ["one ancestor", "largest weight", "weights forget the norm"])
def test_wrong_versions_are_biased(monkeypatch, wrong):
    base, after = random_automaton(SPACES["end symbol"]), PROMPTS["two prompts"]
    if wrong == "one ancestor":
        resampled = lambda log_weight, count, rng: torch.zeros(len(log_weight), count, dtype=torch.long)  # noqa: E731
        monkeypatch.setattr(acceptor_twist, "residual_resampling", resampled)
    elif wrong == "largest weight":
        resampled = lambda log_weight, count, rng: log_weight.argmax(-1, keepdim=True).expand(-1, count)  # noqa: E731
        monkeypatch.setattr(acceptor_twist, "residual_resampling", resampled)
    else:
        extend = acceptor_twist._Cloud.extend

        def forgetful(self, t, transitions):
            before = self.log_weight.clone()
            rows = extend(self, t, transitions)
            self.log_weight = torch.where(self.log_weight > -torch.inf, before, self.log_weight)
            return rows

        monkeypatch.setattr(acceptor_twist._Cloud, "extend", forgetful)
    assert abs(expected(base, after, threshold=1.1) - exact(base, after)) > 1e-4


def test_an_exact_twist_has_no_variance():
    """A base without memory is a chain on the states of any acceptor: with its transitions every draw has the same weight."""
    space = Space(4, 12, eos=0)
    base = random_automaton(space, states=1)
    acceptor = acceptors.contains([1, 2, 1, 1, 2], 4)
    events = EventStates.of(acceptor, space)
    transitions = Transitions.none(events)
    draw_twisted(base, empty_prompts(1), AcceptorTwist.flat(events), 400, rng=SeededRng(0), transitions=transitions)
    twist = fit_twist(events, replace(transitions, counts=transitions.counts * 1e9, sums=transitions.sums * 1e9))
    drawn = draw_twisted(base, empty_prompts(1), twist, 50, rng=SeededRng(1))
    truth = exact_probability(base, acceptor, empty_prompts(1))
    assert drawn.log_weight.exp().numpy() == pytest.approx(truth, rel=0.02)  # 1e9 leaves a little of what is pooled
    assert truth < 0.1


@pytest.mark.parametrize("process", [motif(16), count(30), after_prompts(30)], ids=lambda process: process.name)
def test_draws_agree_with_the_exact_probability(process):
    """20 runs of 200 particles, after 3 rounds of fitting, are within 4 standard errors: false alarms below 1 in 1,000
    (Student, 19 degrees of freedom); so are 4,000 independent draws."""
    rng, base = SeededRng(3), process.base
    first, _ = draw(base, process.prompts, 200, rng=rng)
    events = EventStates.of(process.acceptor, base.space)
    transitions = Transitions.counted(events, first)
    for number in range(3):
        transitions = transitions.faded(0.5)
        twist = fit_twist(events, transitions)
        draw_twisted(
            base, process.prompts, twist, 300, rng=rng.stream(number), threshold=0.5, transitions=transitions
        )  # fmt: skip
    twist = fit_twist(events, transitions)
    runs = draw_twisted(base, process.prompts, twist, 200, rng=rng.stream("runs"), runs=20, threshold=0.5)
    alone = draw_twisted(base, process.prompts, twist, 4000, rng=rng.stream("alone"))
    for estimates in (runs.log_mean_weight.exp(), alone.log_weight[0].exp()):
        estimates = estimates / process.truth
        assert abs(float(estimates.mean()) - 1) < 4 * float(estimates.std()) / math.sqrt(len(estimates))
    assert bool((process.acceptor.accepts(runs.points) == (runs.log_weight.view(-1) > -torch.inf)).all())
    assert 1e-7 < process.truth < 1e-5


def test_draws_end_where_acceptance_is_settled_and_can_be_completed():
    space = Space(3, 8, eos=0)
    base, acceptor = random_automaton(space), acceptors.starts_with([1, 2], 3)
    events = EventStates.of(acceptor, space)
    assert events.next_state[1].tolist() == [events.states + 1, events.states + 1, events.states]
    flat = draw_twisted(base, empty_prompts(1), AcceptorTwist.flat(events), 200, rng=SeededRng(0))
    accepted = flat.log_weight[0] > -torch.inf
    assert set(flat.points.lengths.tolist()) == {1, 2}
    assert bool((acceptor.accepts(flat.points) == accepted).all())
    assert flat.cost == int(flat.points.lengths.sum())
    whole = completed(base, flat.points.rows(accepted), rng=SeededRng(1))
    assert [point[:2] for point in whole.points()] == [[1, 2]] * int(accepted.sum())
    assert int(whole.lengths.max()) > 2
    assert torch.equal(completed(base, whole, rng=SeededRng(2)).tokens, whole.tokens)


def test_points_that_end_by_their_length_are_accepted_by_their_state():
    base, acceptor = random_automaton(Space(3, 6)), acceptors.contains([1, 2], 3)
    twist = AcceptorTwist.flat(EventStates.of(acceptor, base.space))
    flat = draw_twisted(base, empty_prompts(1), twist, 300, rng=SeededRng(0))
    accepted = flat.log_weight[0] > -torch.inf
    assert 0 < int(accepted.sum()) < 300
    assert bool((acceptor.accepts(flat.points) == accepted).all())


def test_an_event_that_the_model_cannot_write_has_weight_0():
    space = Space(3, 4, eos=0)
    base = random_automaton(space)
    never = torch.full_like(base.log_emission, -torch.inf)
    never[:, :2] = base.log_emission[:, :2].log_softmax(-1)
    base = replace(base, log_emission=never)
    events = EventStates.of(acceptors.contains([2], 3), space)
    twist = fit_twist(events, Transitions.none(events))
    drawn = draw_twisted(base, empty_prompts(1), twist, 20, rng=SeededRng(0), threshold=0.5)
    assert drawn.log_mean_weight.tolist() == [-math.inf]


def test_transitions_of_tokens_are_those_of_probabilities():
    space = Space(3, 6, eos=0)
    base, acceptor = random_automaton(space), acceptors.contains([1, 2], 3)
    events = EventStates.of(acceptor, space)
    x, _ = draw(base, empty_prompts(1), 4000, rng=SeededRng(0))
    counted, given = Transitions.counted(events, x), Transitions.none(events)
    draw_twisted(base, empty_prompts(1), AcceptorTwist.flat(events), 4000, rng=SeededRng(1), transitions=given)
    gap = (counted.probabilities(events) - given.probabilities(events)).abs()
    assert float(gap[(given.counts > 300)].max()) < 0.1
    assert float(given.probabilities(events).sum(-1).sub(1).abs().max()) < 1e-9


def test_prompts_with_heavy_draws_get_more():
    prompt = torch.tensor([0, 1]).repeat_interleave(20)
    shares = Shares.by_spread(prompt, torch.where(prompt == 0, 0.0, -3.0).double(), 2)
    assert float(shares.log_probability[0].exp()) > 0.7
    assert float(shares.log_probability.exp().sum()) == pytest.approx(1)
    few = Shares.by_spread(prompt[:4], torch.zeros(4, dtype=torch.float64), 2)
    assert few.log_probability.exp().tolist() == pytest.approx([0.5, 0.5])
    assert len(concatenate([empty_prompts(1)])) == 1
