"""What a loss says beside its value: how many units it is a mean of, and metrics that enumeration gives as well."""

import math

import pytest
import torch
from random_targets import random_automaton, random_target
from small_networks import CONFIGS, lively

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.energies.features import LogLinear, length
from esscher.exact.enumeration import enumerate_points
from esscher.objectives.config import EForcingConfig, ScheduledSamplingConfig
from esscher.objectives.distil import Distil, PolicyGradient, ReweightedDistil
from esscher.objectives.exposure_bias import EForcing, ScheduledSampling
from esscher.objectives.likelihood import Likelihood, TiltedLikelihood
from esscher.objectives.noise_contrastive import NoiseContrast, shorter_prompts
from esscher.objectives.supervised import LabelledExamples, LabelLikelihood, SquaredError
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Exhaustive

SPACE = Space(3, 3, eos=0)
TEACHER = random_target(SPACE)
PROMPTS = prompts_of([[], [1]])
DATA = sequences([[1, 2, 0], [0], [2, 2, 1]], [[], [1], []])
X = enumerate_points(SPACE, PROMPTS)
LOG_P = TEACHER.log_score(X).view(2, -1)
LOG_Z = LOG_P.logsumexp(-1)


def student():
    return lively(CONFIGS["gru, one-hot"], SPACE).double()


def log_student(base) -> torch.Tensor:
    return base.log_probs(X).sum(-1).view(2, -1).detach()


def test_distillation_counts_prompts_and_tells_effective_draws():
    base = student()
    actual = Distil(TEACHER, Exhaustive())(Tilted(base), PROMPTS, rng=SeededRng(0))
    p = LOG_P.softmax(-1)
    assert actual.count == 2 and set(actual.metrics) == {"nll", "ess"}
    tokens = (p * X.lengths.view(2, -1)).sum()
    assert actual.metrics["nll"] == pytest.approx(float(-(p * log_student(base)).sum() / tokens))
    assert actual.metrics["ess"] == pytest.approx(float(Exhaustive()(TEACHER, PROMPTS, 0, rng=SeededRng(0)).ess().mean()))


@pytest.mark.parametrize("log_z", [None, 0.7])
def test_a_policy_gradient_tells_both_divergences(log_z):
    base = student()
    actual = PolicyGradient(TEACHER, sampler=Exhaustive(), log_z=log_z)(Tilted(base), PROMPTS, rng=SeededRng(0))
    log_q, normaliser = log_student(base), LOG_Z[:, None]
    log_p, q = LOG_P - normaliser, log_q.exp()
    off = 0.0 if log_z is None else float(LOG_Z.mean()) - log_z  # the reverse divergence is as wrong as log Z
    assert actual.count == 2
    assert actual.metrics == pytest.approx(
        {
            "effective_share": float((1 / (log_p.exp().square() / q).sum(-1)).mean()),
            "kl": float((log_p.exp() * (log_p - log_q)).sum(-1).mean()),
            "reverse_kl": float((q * (log_q - log_p)).sum(-1).mean()) - off,
        },
        abs=1e-9,
    )


def test_reweighted_draws_tell_their_surplus():
    base, log_z = student(), 0.3
    teacher = Tilted(base, TEACHER.energy)
    actual = ReweightedDistil(teacher, log_z)(Tilted(student()), DATA, rng=SeededRng(0))
    surplus = (-TEACHER.energy(DATA) - log_z).exp() - 1
    assert actual.count == 3 and actual.metrics == {"surplus": pytest.approx(float(surplus.abs().mean()))}


@pytest.mark.parametrize("train_base", [False, True])
def test_tilted_likelihood_tells_its_parts(train_base):
    energy = LogLinear([length()], torch.tensor([0.4]))
    target = Tilted(TEACHER.base, energy)
    actual = TiltedLikelihood(Exhaustive(), train_base=train_base)(target, DATA, rng=SeededRng(0))
    every = Exhaustive()(target, PROMPTS, 0, rng=SeededRng(0))
    log_z = every.log_z()[torch.tensor([0, 1, 0])]
    score = (target.log_score(DATA) if train_base else target.log_weight(DATA)).detach().double()
    assert actual.count == 3 and float(actual.value.detach()) == pytest.approx(float((log_z - score).mean()))
    assert actual.metrics == pytest.approx(
        {
            "log_score": float(score.mean()),
            "log_z": float(log_z.mean()),
            "ess": float(every.ess().mean()),
        }
    )


@pytest.mark.parametrize("form", ["binary", "ranking"])
def test_noise_contrast_against_its_definition(form):
    """Weights of exhaustive draws count: a sum over negatives is an expectation."""
    noise = random_automaton(SPACE, seed=3)
    actual = NoiseContrast(Exhaustive(), 4, form, noise=noise)(TEACHER, DATA, rng=SeededRng(0))
    x = enumerate_points(SPACE, DATA.prompts())
    q = noise.log_probs(x).sum(-1).exp().view(3, -1)

    def ratio(rows: Sequences) -> torch.Tensor:
        return TEACHER.log_score(rows) - noise.log_probs(rows).sum(-1)

    u, v = ratio(DATA), ratio(x).view(3, -1)
    if form == "binary":
        losses = -(u - math.log(4)).sigmoid().log() - 4 * (q * (math.log(4) - v).sigmoid().log()).sum(-1)
        right = ((u > 0).double() + (q * (v <= 0)).sum(-1)) / 2
    else:
        losses = (u.exp() + 4 * (q * v.exp()).sum(-1)).log() - u
        right = (q * ((u[:, None] > v).double() + (u[:, None] == v).double() / 2)).sum(-1)
    assert actual.count == 3 and float(actual.value) == pytest.approx(float(losses.mean()))
    assert actual.metrics == pytest.approx(
        {
            "accuracy": float(right.mean()),
            "energy_data": float(TEACHER.energy(DATA).mean()),
            "energy_noise": float((q * TEACHER.energy(x).view(3, -1)).sum(-1).mean()),
            "log_z": float((q * v.exp()).sum(-1).mean().log()),
        }
    )


def test_prompts_are_cut_to_what_a_row_has():
    """A point begins after one of these many tokens of the prompt, and ends with its first end symbol, or where space ends."""
    x = sequences([[1, 2, 1], [2, 0], [1]], [[1, 2, 1], [2], []])
    space = Space(3, 4, eos=0)
    seen = set()
    for seed in range(40):
        cut = shorter_prompts(x, (2, 0, 5, 2), space, rng=SeededRng(seed))
        seen.add(tuple(cut.start.tolist()))
        assert torch.equal(cut.tokens, x.tokens)
        assert cut.lengths.tolist() == [4, 3, 1]
    assert seen == {(0, 0, 0), (2, 0, 0)}
    early = shorter_prompts(sequences([[1, 1]], [[2, 0, 1]]), (0,), space, rng=SeededRng(0))
    assert early.points() == [[2, 0]]  # the prompt held an end symbol
    alone = shorter_prompts(sequences([[1]], [[2]]), (3,), space, rng=SeededRng(0))
    assert alone.start.tolist() == [1] and alone.points() == [[1]]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_likelihood_and_its_kin_tell_nats_per_token(smoothing):
    base = student()
    nll = float(-base.log_probs(DATA).detach().sum() / 7)
    plain = Likelihood(smoothing)(Tilted(base), DATA, rng=SeededRng(0))
    assert plain.count == 7 and plain.metrics["nll"] == pytest.approx(nll)
    forced = EForcing(EForcingConfig(0.5, decay=0.5), label_smoothing=smoothing)(Tilted(base), DATA, rng=SeededRng(0))
    assert forced.count == 7 and forced.metrics["nll"] == pytest.approx(nll) and forced.metrics["weight"] == 0.5
    assert float(forced.value.detach()) == pytest.approx(float(plain.value.detach()) + 0.5 * forced.metrics["contrast"])
    mixed = ScheduledSampling(ScheduledSamplingConfig(1e-9), label_smoothing=smoothing)(Tilted(base), DATA, rng=SeededRng(0))
    assert mixed.metrics == {"nll": pytest.approx(nll), "own": 1e-9} and mixed.count == 7
    assert float(mixed.value.detach()) == pytest.approx(float(plain.value.detach()))


def test_labels_tell_how_many_are_right():
    rows = LabelledExamples(sequences([[1], [2], [3]]), torch.tensor([0, 1, 1]), torch.arange(3))
    scores = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 1.0]]).double()
    actual = LabelLikelihood()(lambda x: scores, rows, rng=SeededRng(0))
    assert actual.metrics == {"accuracy": pytest.approx(2 / 3)} and actual.count == 3
    numbers = LabelledExamples(rows.x, torch.tensor([1.0, 1.0, 1.0]), rows.example)
    assert SquaredError()(lambda x: scores[:, :1], numbers, rng=SeededRng(0)).count == 3


def test_the_baseline_of_a_draw_is_the_mean_slope_of_the_others():
    """Three draws of one prompt: the value is the mean of slope less baseline, times log pi."""
    base = student()
    drawn = Ancestral()(Tilted(base), prompts_of([[]]), 3, rng=SeededRng(4))
    actual = PolicyGradient(TEACHER, "reverse-kl", 3, 0.4, sampler=lambda *_, **__: drawn)(
        Tilted(base), prompts_of([[]]), rng=SeededRng(0)
    )
    slope = [0.4 - item + 1 for item in (TEACHER.log_score(drawn.x) - drawn.log_base[0]).tolist()]
    others = [(sum(slope) - own) / 2 for own in slope]
    score = base.log_probs(drawn.x).sum(-1).tolist()
    by_hand = sum((own - rest) * log_q for own, rest, log_q in zip(slope, others, score, strict=True)) / 3
    assert float(actual.value.detach()) == pytest.approx(by_hand)
