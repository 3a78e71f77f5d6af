"""Perplexity by position against the enumerated next-token probabilities of the tilted model."""

import math

import pytest
import torch
from random_targets import random_automaton, random_target, taste

from esscher.bases.wrappers import Continuation
from esscher.core import progress
from esscher.core.draws import Draws
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of, sequences, unique_prompts
from esscher.core.target import Tilted
from esscher.estimators import per_position as per_position_module
from esscher.estimators.per_position import per_position
from esscher.estimators.perplexity import cross_entropy
from esscher.exact.automaton import Automaton, WeightedAutomaton
from esscher.exact.dynamic_programming import normalise
from esscher.exact.enumeration import tabulate
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.particles import Particles
from esscher.testing import assert_covers, check_base

SPACE = Space(3, 4, eos=0)
TARGET = random_target(SPACE)
FULL = Space(3, 3)
OPEN = random_target(FULL)  # points of one length


def exact_steps(target: Tilted, x: Sequences) -> torch.Tensor:
    """-log p(x_t | x_<t) by position in the point, NaN where there is none."""
    prompts, which = unique_prompts(x)
    table = tabulate(target, prompts)
    nats = -table.log_probs(x, which)
    actual = torch.full((len(x), int(x.lengths.max())), torch.nan, dtype=torch.float64)
    for row, (start, stop) in enumerate(zip(x.start.tolist(), x.stop.tolist(), strict=True)):
        actual[row, : stop - start] = nats[row, start:stop]
    return actual


def held(step: per_position_module.PositionEstimates, truth: torch.Tensor) -> bool:
    """Whether the interval covers, but for rounding where it is a point."""
    return step.tilted.low - 1e-9 <= float(truth) <= step.tilted.high + 1e-9


def some_points(target: Tilted, count: int, seed: int = 0, prompts=None) -> Sequences:
    prompts = empty_prompts(1) if prompts is None else prompts
    return draw(target.base, prompts, count, rng=SeededRng(seed, "test"))[0]


@pytest.mark.parametrize("target", [TARGET, OPEN], ids=["ending", "of one length"])
@pytest.mark.parametrize("prompts", [[[]], [[], [1], [2, 1, 1]]], ids=["no prompt", "prompts"])
def test_exhaustive_draws_give_the_exact_steps(target, prompts):
    x = some_points(target, 7, prompts=prompts_of(prompts))
    truth = exact_steps(target, x)

    def twice(tilted, prefixes, draws, *, rng):
        """All points that may follow, weighted by their probability: R without chance, but for its bias correction."""
        once = Exhaustive()(tilted, prefixes, 0, rng=rng)
        share = once.log_weight - once.log_z()[:, None]
        log_z = once.log_z()[:, None].expand(-1, 2)
        assert torch.allclose(share.exp().mean(-1), torch.ones(len(prefixes), dtype=torch.float64))
        rows = torch.arange(len(prefixes)).repeat_interleave(2) * once.log_weight.shape[1]
        return Draws(once.x.rows(rows), log_z, log_z, True, True, 0)

    for enumerate_last in (True, False):
        actual = per_position(target, x, twice, 2, enumerate_last=enumerate_last, test="fixed", rng=SeededRng(0))
        expected = truth.nanmean(0)
        assert [step.tilted.value for step in actual] == pytest.approx(expected.tolist())
        assert [step.bounds.lower.value for step in actual] == pytest.approx(expected.tolist())
        assert [step.sequences for step in actual] == (~truth.isnan()).sum(0).tolist()
        assert [step.position for step in actual] == list(range(1, truth.shape[1] + 1))
    log_base = target.base.log_probs(x)
    first = -log_base.gather(1, x.start[:, None]).mean()
    assert actual[0].base.value == pytest.approx(float(first))
    assert actual[0].reduction.value == pytest.approx(actual[0].base.value - actual[0].tilted.value)


def test_off_by_one_is_seen(monkeypatch):
    """Wrong version: what precedes a step taken after it."""
    x = some_points(TARGET, 100)
    truth = exact_steps(TARGET, x).nanmean(0)
    right = per_position(TARGET, x, Importance(), 100, test="fixed", confidence=0.9999, rng=SeededRng(1))
    assert all(held(step, nats) for step, nats in zip(right, truth, strict=True))
    plain = per_position_module._Prefixes.rest
    monkeypatch.setattr(per_position_module._Prefixes, "rest", lambda self, length: plain(self, max(length - 1, 0)))
    wrong = per_position(TARGET, x, Importance(), 100, test="fixed", confidence=0.9999, rng=SeededRng(1))
    assert not all(held(step, nats) for step, nats in zip(wrong, truth, strict=True))


def test_the_last_position_is_exact_and_drawing_there_is_not():
    x = some_points(OPEN, 12)
    truth = exact_steps(OPEN, x)[:, -1].mean()
    summed = per_position(OPEN, x, Importance(), 4, test="fixed", rng=SeededRng(2))[-1].tilted
    assert summed.value == pytest.approx(float(truth)) and summed.n == 0 and "summed up" in summed.method
    drawn = per_position(OPEN, x, Importance(), 4, enumerate_last=False, test="fixed", rng=SeededRng(2))[-1].tilted
    assert drawn.n > 0 and abs(drawn.value - float(truth)) > 1e-6
    item = Tilted(random_automaton(Space(3, 1)), taste(Space(3, 1)))
    x = sequences([[1], [2]])
    assert per_position(item, x, Importance(), 4, test="fixed", rng=SeededRng(0))[0].tilted.value == pytest.approx(
        float(exact_steps(item, x).mean())
    )


EVERY = tabulate(OPEN)
NATS = exact_steps(OPEN, EVERY.x)


def covered(seed: int, test: str, sequences: int) -> list[bool]:
    """Which positions an estimate got right, from so many sequences of the model itself and 24 draws after each prefix."""
    log_p = EVERY.log_prob[0]
    pick = SeededRng(seed, "pick").categorical(log_p[None], sequences)[0]
    truth = NATS[pick].mean(0) if test == "fixed" else (log_p.exp()[:, None] * NATS).sum(0)
    actual = per_position(OPEN, EVERY.x.rows(pick), Importance(), 24, test=test, rng=SeededRng(seed))
    return [held(step, right) for step, right in zip(actual, truth, strict=True)]


@pytest.mark.parametrize(("test", "sequences"), [("fixed", 300), pytest.param("sample", 60, marks=pytest.mark.slow)])
def test_intervals_cover_every_position(test, sequences):
    """40 replications; a right estimator fails once in a thousand at each position."""
    hits = torch.tensor([covered(seed, test, sequences) for seed in range(40)]).sum(0).tolist()
    for reached in hits[:2] if test == "fixed" else hits:
        assert_covers(reached, 40, 0.95, at_least=test == "fixed")  # what was not drawn may be large
    assert test == "sample" or hits[2] == 40  # exact


@pytest.mark.slow
def test_without_the_correction_they_do_not(monkeypatch):
    """The bias cancels between two neighbours that are both drawn; it is seen where one of them is exact."""
    monkeypatch.setattr(
        per_position_module, "bias_of_log_mean", lambda log_weight: torch.zeros(len(log_weight), dtype=torch.float64)
    )
    monkeypatch.setattr(
        per_position_module, "raised_by_unseen", lambda log_weight, _: torch.zeros(len(log_weight), dtype=torch.float64)
    )
    wrong = sum(covered(seed, "fixed", 300)[1] for seed in range(30))
    with pytest.raises(AssertionError, match="stated rate"):
        assert_covers(wrong, 30, 0.95)


@pytest.mark.slow
def test_contexts_are_the_replicates_when_there_are_several():
    """Sequences that share a prompt are alike: 20 contexts with 20 sequences each, 60 replications."""
    space, generator = Space(3, 2), torch.Generator().manual_seed(3)
    log_emission = torch.log_softmax(4 * torch.randn(40, 3, generator=generator, dtype=torch.float64), -1)
    target = Tilted(Automaton(log_emission, torch.randint(40, (40, 3), generator=generator), space), taste(space, seed=5))
    prompts = [[1 + (row >> bit) % 2 for bit in range(8)] for row in range(256)]
    table = tabulate(target, prompts_of(prompts))
    every = exact_steps(target, table.x)[:, 0].view(256, -1)
    truth = float((table.log_prob.exp() * every).sum(-1).mean())
    hits, wrong = 0, 0
    for seed in range(60):
        chosen = SeededRng(seed, "contexts").permutation(256)[:20]
        pick = SeededRng(seed, "pick").categorical(table.log_prob[chosen], 20)
        x = table.x.rows((chosen[:, None] * table.log_prob.shape[1] + pick).view(-1))
        hits += per_position(target, x, Importance(), 24, rng=SeededRng(seed))[0].tilted.covers(truth)
        values = every[chosen].gather(1, pick).view(-1)
        wrong += abs(float(values.mean()) - truth) < 1.96 * float(values.std()) / math.sqrt(len(x))
    assert_covers(hits, 60, 0.95)
    with pytest.raises(AssertionError, match="stated rate"):
        assert_covers(wrong, 60, 0.95)


def test_steps_of_full_points_add_up_to_the_cross_entropy():
    """The draws between cancel: what is left is -log a + E + R of the prompt."""
    x = some_points(OPEN, 40, prompts=prompts_of([[], [1]]))
    actual = per_position(OPEN, x, Importance(), 300, test="fixed", rng=SeededRng(3))
    mean = sum(step.tilted.value for step in actual) / 3
    exact = Exhaustive()(OPEN, x.prompts(), 0, rng=SeededRng(0))
    assert mean == pytest.approx(cross_entropy(OPEN, x, draws=exact)["token"].value, abs=0.02)


def test_bounds_bracket_the_steps_on_average():
    x = some_points(OPEN, 30)
    truth = exact_steps(OPEN, x).mean(0)
    actual = per_position(OPEN, x.repeat(10), Importance(), 8, test="fixed", rng=SeededRng(4))
    for step, nats in zip(actual, truth.tolist(), strict=True):
        assert step.bounds.lower.value <= nats + 1e-9 and nats - 1e-9 <= step.bounds.upper.value


def test_one_sequence_at_a_late_position_has_no_interval():
    x = sequences([[0], [1, 0], [1, 1, 2, 0]])
    actual = per_position(TARGET, x, Importance(), 8, rng=SeededRng(0))
    assert [step.sequences for step in actual] == [3, 2, 1, 1]
    assert actual[3].tilted.high == math.inf and "no interval" in actual[3].tilted.method
    assert math.isfinite(actual[0].tilted.high)


def test_a_base_that_counts_the_tokens_left_is_led_into_the_point():
    """A normalised automaton with a prefix as its prompt would believe that all tokens are still to come."""
    generator = torch.Generator().manual_seed(4)
    weights = torch.rand(3, 3, generator=generator, dtype=torch.float64).log()
    base = normalise(WeightedAutomaton(weights, torch.randint(3, (3, 3), generator=generator), SPACE))
    target = Tilted(base, taste(SPACE))
    x = some_points(target, 100)
    truth = exact_steps(target, x).nanmean(0)
    actual = per_position(target, x, Importance(), 60, test="fixed", confidence=0.9999, rng=SeededRng(5))
    assert all(held(step, nats) for step, nats in zip(actual, truth, strict=True))


@pytest.mark.parametrize("after", [0, 1, 3])
def test_what_continues_is_a_base(after):
    check_base(Continuation(TARGET.base, after), [[1, 2, 1], [2, 2, 2, 1], [1, 1, 1, 1, 2]])
    rest = Continuation(TARGET.base, after)
    assert rest.space == Space(3, 4 - after, eos=0)
    with pytest.raises(ValueError, match=r"0 to 3"):
        Continuation(TARGET.base, 4)
    if after:
        with pytest.raises(ValueError, match="prefix of the point"):
            rest.begin(prompts_of([[]]))


def test_refusals():
    x = some_points(TARGET, 4)
    with pytest.raises(ValueError, match="at least 2 independent draws"):
        per_position(TARGET, x, Particles(), 8, rng=SeededRng(0))
    with pytest.raises(ValueError, match="1 of 1 test sequences are no points"):
        per_position(TARGET, sequences([[1, 1]]), Importance(), 8, rng=SeededRng(0))
    with pytest.raises(ValueError, match="1 of 2 test sequences are no points"):
        per_position(TARGET, sequences([[1, 0], [0, 1, 0]]), Importance(), 8, rng=SeededRng(0))
    with pytest.raises(ValueError, match="test set is empty"):
        per_position(TARGET, x.rows(slice(0, 0)), Importance(), 8, rng=SeededRng(0))


@pytest.mark.parametrize("test", ["sample", "fixed"])
def test_where_the_energy_forbids_a_sequence_nothing_but_the_base_is_finite(test):
    """The point [2, 0] is forbidden, and what begins with 2 is not: the surprise comes at its end."""
    forbids = Tilted(TARGET.base, lambda x: torch.where((x.lengths == 2) & (x.tokens[:, 0] == 2), torch.inf, 0.0).double())
    x = sequences([[1, 2, 0], [2, 0], [1, 0]])
    first, second, _ = per_position(forbids, x, Importance(), 20, test=test, confidence=0.8, rng=SeededRng(0))
    assert math.isfinite(first.tilted.value) and math.isfinite(second.base.value)
    assert (second.tilted.value, second.tilted.low, second.tilted.high) == (math.inf, 0.0, math.inf)
    for item in (second.reduction, second.bounds.lower, second.bounds.upper):
        assert (item.value, item.low, item.high) == (math.inf, -math.inf, math.inf)
        assert (item.confidence, item.n, item.unit) == (0.8, 3, "nats per token") and item.method.startswith("no bound: ")


@pytest.mark.parametrize("test", ["sample", "fixed"])
def test_what_is_saved_is_the_base_less_the_tilted_model_and_every_prefix_has_draws_of_its_own(test):
    dice = []

    def sampler(target, prompts, draws, *, rng):
        dice.append(float(rng.uniform(1)))
        return Importance()(target, prompts, draws, rng=rng)

    x = sequences([[1, 2, 0], [2, 0], [1, 1, 2, 1]])
    actual = per_position(TARGET, x, sampler, 20, test=test, enumerate_last=False, rng=SeededRng(0))
    assert [step.position for step in actual] == [1, 2, 3, 4] and [step.sequences for step in actual] == [3, 3, 2, 1]
    for step in actual:
        assert step.reduction.value == pytest.approx(step.base.value - step.tilted.value)
        assert step.bounds.lower.value <= step.tilted.value <= step.bounds.upper.value
    assert len(set(dice)) == 4


def test_it_says_how_far_it_has_come(monkeypatch):
    """Every position takes 11 seconds; what is left is by tokens: 3 rows of 4, 3 of 3, 2 of 2, 1 of 1."""
    said, clock = [], iter(range(0, 1000, 11))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    per_position(TARGET, sequences([[1, 2, 0], [2, 0], [1, 1, 2, 1]]), Importance(), 2, rng=SeededRng(0), say=said.append)
    assert said == [
        "position 1 of 4  3 s left",  # 21 of 26 are done after 11 seconds, the draws after the first token among them
        "position 2 of 4  1 s left",
        "position 3 of 4  0 s left",
        "position 4 of 4  0 s left",
    ]
