"""Ladders: proper weights on every outcome, rungs by overlap, guides to what temperatures do not find, and dead runs."""

import math
from dataclasses import replace

import pytest
import torch
from marks import slow
from random_targets import random_automaton, random_target, taste

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.energies.declared_features import feature_from_spec
from esscher.energies.feature_spec import FeatureSpec
from esscher.energies.features import LogLinear, contains
from esscher.estimators.reliability import reliability
from esscher.exact import features as exact_features
from esscher.exact.automaton import Automaton
from esscher.exact.exponential_family import exact_moment_weights, tilt
from esscher.samplers import ladder, regeneration
from esscher.samplers.importance import Exhaustive
from esscher.samplers.ladder import Ladder, LadderRuns
from esscher.samplers.registry import SAMPLERS
from esscher.testing import every_outcome

ONE, SHORT = random_target(Space(2, 1)), random_target(Space(2, 2, eos=0))
BASE, MIDDLE, LAST = [0.0] * 5, [0.4, 0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]
TWO_STEPS, ONE_STEP = torch.tensor([BASE, MIDDLE, LAST]), torch.tensor([BASE, LAST])
GUIDED = torch.tensor([BASE, [0.0, 1.0, 1.5, 0.0, 0.0], [0.0, 1.0, 1.5, 0.7, 1.0], LAST])


def ends_with_one(x: Sequences) -> torch.Tensor:
    return (x.tokens.gather(1, (x.stop - 1)[:, None])[:, 0] == 1).double()


def weighted_sums(runs: LadderRuns, rng) -> tuple[float, float]:
    drawn = ladder._one_of_each_run(runs, rng)
    weight = drawn.log_weight.exp().view(-1)
    return float(weight.mean()), float((weight * ends_with_one(drawn.x)).mean())


def expectations(target: Tilted, rungs: torch.Tensor, particles: int = 2) -> tuple[float, float]:
    """E[w] and E[w f] over every outcome of one run."""
    moves = 0 if len(rungs) > 3 else 1  # moves are checked by the others, and each has many outcomes
    sampler = Ladder(particles, moves=moves, guide=ends_with_one if len(rungs) > 3 else None)

    def run(rng):
        return weighted_sums(sampler.run(target, empty_prompts(1), 1, rng=rng, rungs=rungs), rng)

    outcomes = list(every_outcome(run))
    assert len(outcomes) > 20 and sum(p for p, _ in outcomes) == pytest.approx(1)
    weight, share = (sum(p * value[part] for p, value in outcomes) for part in (0, 1))
    return weight, share


def exact(target: Tilted) -> tuple[float, float]:
    draws = Exhaustive()(target, empty_prompts(1), 0, rng=SeededRng(0))
    z = float(draws.log_z().exp())
    return z, z * float(draws.expect(ends_with_one(draws.x)[None]))


@pytest.mark.parametrize(
    ("target", "rungs"),
    [(ONE, ONE_STEP), slow(ONE, TWO_STEPS), slow(SHORT, ONE_STEP), (ONE, GUIDED)],
    ids=["one step", "two steps", "end symbol", "guided"],
)
def test_weights_are_exactly_proper(target, rungs):
    assert expectations(target, rungs) == pytest.approx(exact(target))


@pytest.mark.parametrize("wrong", ["accepts all moves", "the first particle", "the largest weight for the mean"])
def test_wrong_ladders_are_caught(monkeypatch, wrong):
    if wrong == "accepts all moves":
        monkeypatch.setattr(regeneration, "_log_acceptance", lambda old, new, cut, weight: torch.zeros(len(cut)))
    elif wrong == "the first particle":
        monkeypatch.setattr(
            ladder, "residual_resampling", lambda log_weight, count, rng: log_weight.argmax(-1, keepdim=True).expand(-1, count)
        )
    else:
        climb = ladder._Run.climb

        def largest(self, coefficients, moves, rng):
            top = self.log_ratio(coefficients).amax(-1)
            climb(self, coefficients, moves, rng)
            self.log_ratios[-1] = top

        monkeypatch.setattr(ladder._Run, "climb", largest)
    assert expectations(ONE, ONE_STEP) != pytest.approx(exact(ONE), rel=1e-3)


def strong_target(scale: float = 3.0) -> Tilted:
    space = Space(3, 10, eos=0)
    return Tilted(random_automaton(space), taste(space, seed=8, scale=scale))


def test_rungs_overlap_as_wanted():
    target = strong_target()
    few, many = (
        Ladder(256, overlap=share, pilot=512).run(target, empty_prompts(1), 8, rng=SeededRng(0)) for share in (0.3, 0.8)
    )
    assert len(few.rungs) < len(many.rungs) <= 100
    for runs, share in ((few, 0.3), (many, 0.8)):
        assert runs.rungs[0].tolist() == BASE and runs.rungs[-1].tolist() == LAST
        assert bool((runs.rungs[:, 0].diff() > 0).all())
        assert float(runs.overlap[1:-1].mean(1).min()) > share - 0.15


def test_log_z_of_runs_is_that_of_the_space():
    """200 runs: their mean weight within 5 standard errors, also at so few rungs that the runs differ much."""
    target = strong_target(2.0)
    truth = float(Exhaustive()(target, empty_prompts(1), 0, rng=SeededRng(0)).log_z())
    runs = Ladder(16, moves=2).run(target, empty_prompts(1), 200, rng=SeededRng(1))
    ratio = (runs.log_z() - truth).exp()
    assert abs(float(ratio.mean()) - 1) < 5 * float(ratio.std()) / math.sqrt(200)


def test_particles_of_a_rung_have_the_scores_they_keep():
    target = strong_target()
    runs = Ladder(8, guide=ends_with_one).run(target, prompts_of([[1, 2]]), 3, rng=SeededRng(2))
    assert runs.score.shape == (len(runs.rungs), 3, 8, 3)
    for x, score in zip(runs.x, runs.score, strict=True):
        assert x.prompt_keys() == [(1, 2)] * 24
        assert torch.allclose(score.view(-1, 3)[:, :2], torch.stack([target.log_weight(x), ends_with_one(x)], -1))
    density = runs.log_density()
    assert density.shape == (len(runs.rungs), len(runs.rungs), 3, 8) and float(density[0].abs().max()) == 0


def digits(length: int, share: float = 0.5) -> tuple[Tilted, float]:
    """Uniform strings of 8 digits, tilted so that a motif of `length` digits is in this share of them, and its log Z."""
    space, motif = Space(10, 8), list(range(1, length + 1))
    base = Automaton(torch.full((1, 10), 0.1, dtype=torch.float64).log(), torch.zeros(1, 10, dtype=torch.long), space)
    feature = exact_features.contains(motif, space)
    (weight,) = exact_moment_weights(base, [feature], torch.tensor([share], dtype=torch.float64)).tolist()
    log_z = float(tilt(base, [feature], torch.tensor([weight], dtype=torch.float64)).log_z(None)[0])
    return Tilted(base, LogLinear([contains(motif)], torch.tensor([weight]))), log_z


def test_a_guide_leads_to_what_temperatures_do_not_find():
    """A motif that 5 strings in 10,000 have: without a guide most runs of 64 particles do not see it, and their log Z is
    that of the rest, log 2 below; the guide that the feature brings leads there."""
    target, truth = digits(4)
    guided = Ladder(64, moves=8, pilot=256)(target, empty_prompts(1), 16, rng=SeededRng(0))
    shown = contains([1, 2, 3, 4]).of(guided.x)
    assert 0 < float(shown.mean()) < 1 and abs(float(guided.log_z()) - truth) < 0.5
    plain = Tilted(target.base, lambda x: target.energy(x))  # a function brings no guide
    unguided = Ladder(64, moves=8, pilot=256)(plain, empty_prompts(1), 8, rng=SeededRng(0))
    assert float(unguided.log_weight.median()) < truth - 0.6


def test_where_all_particles_are_forbidden_a_run_has_weight_0():
    base = random_automaton(Space(3, 6))
    target = Tilted(base, lambda x: torch.where((x.counted & (x.tokens == 2)).sum(-1) == 6, 0.0, torch.inf).double())
    drawn = Ladder(4, moves=1, pilot=8)(target, empty_prompts(1), 12, rng=SeededRng(0))
    assert bool((drawn.log_weight == -torch.inf).any()) and float(drawn.info["overlap"][0]) < 0.5


def test_settings_at_their_edges():
    for wrong in ({"num_particles": 1}, {"moves": -1}, {"overlap": 1.0}, {"guided_share": 0.0}, {"max_rungs": 0}):
        with pytest.raises(ValueError, match="Nothing was drawn"):
            Ladder(**wrong)
    with pytest.raises(ValueError, match="A guide is from 0 to 1"):
        Ladder(4, pilot=8, guide=lambda x: x.lengths.double())(SHORT, empty_prompts(1), 1, rng=SeededRng(0))
    one = Ladder(8, pilot=8, max_rungs=1).run(strong_target(), empty_prompts(1), 1, rng=SeededRng(0))
    assert one.rungs.tolist() == [BASE, LAST]
    assert SAMPLERS.from_dict({"kind": "ladder", "moves": 2}) == Ladder(moves=2)


@pytest.mark.parametrize(
    ("changed", "verdict", "reason"),
    [
        ({}, "good", "nothing speaks against"),
        ({"disagreement": 1.5}, "unreliable", "the runs disagree by 1.5 nats on a rung"),
        ({"disagreement": 0.7}, "doubtful", "the runs differ by 0.7 nats"),
        ({"overlap": 0.05}, "unreliable", "two rungs overlap by 5%"),
        ({"acceptance": 0.001}, "doubtful", "0% of the moves were accepted"),
    ],
)
def test_the_verdict_is_by_what_the_runs_show(changed, verdict, reason):
    drawn = Ladder(4, moves=1, pilot=8)(SHORT, empty_prompts(1), 6, rng=SeededRng(0))
    info = {"rungs": 2.0, "overlap": 0.5, "acceptance": 0.4, "disagreement": 0.1} | changed
    changed_draws = replace(drawn, info={name: torch.tensor([value], dtype=torch.float64) for name, value in info.items()})
    (entry,) = reliability(changed_draws)
    assert entry.verdict == verdict and reason in entry.advice
    few = Ladder(4, moves=1, pilot=8)(SHORT, empty_prompts(1), 2, rng=SeededRng(0))
    assert reliability(replace(few, info=changed_draws.info))[0].verdict != "good"


def test_runs_that_differ_on_a_rung_disagree_whatever_they_say_in_the_end():
    runs = Ladder(4, moves=1).run(SHORT, empty_prompts(1), 2, rng=SeededRng(0), rungs=TWO_STEPS)
    ratios = torch.tensor([[0.0, 0.0], [3.0, 1.0], [-3.0, -1.0]], dtype=torch.float64)
    assert replace(runs, log_ratio=ratios).disagreement() == pytest.approx(math.sqrt(2))
    dead = torch.tensor([[0.0, 0.0], [0.0, -math.inf], [0.0, 0.0]], dtype=torch.float64)
    assert replace(runs, log_ratio=dead).disagreement() == math.inf


def test_features_that_a_point_has_or_has_not_bring_their_progress():
    x = sequences([[5, 1, 2, 9], [1, 2, 3, 4], [9, 9, 9, 9]])

    def decode(points):
        return ["".join(map(str, point)) for point in points]

    for kind, expected in (("contains", [0.5, 1.0, 0.0]), ("starts-with", [0.0, 1.0, 0.0])):
        for spec in (FeatureSpec(kind, "1234"), FeatureSpec(kind, "1 2 3 4", on="tokens")):
            feature = feature_from_spec(spec, decode)
            assert feature.progress(x).tolist() == expected
            assert (feature.progress(x) == 1).tolist() == feature.of(x).bool().tolist()
    assert feature_from_spec(FeatureSpec("lacks", "1234"), decode).progress is None
    assert feature_from_spec(FeatureSpec("contains", "1234", negated=True), decode).progress is None
