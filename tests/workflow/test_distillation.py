"""Distillation against the exact teacher: every way lowers the exact divergence, and says truly how far it is."""

from dataclasses import replace

import pytest
import torch
from marks import slow
from random_targets import random_automaton, taste

from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, prompts_of
from esscher.core.storage import digest, module_tensors
from esscher.core.target import Tilted
from esscher.exact.enumeration import enumerate_points
from esscher.networks.recurrent_config import LstmConfig
from esscher.samplers.importance import Importance
from esscher.training.config import DistilConfig, TrainingConfig
from esscher.training.distillation import distil
from esscher.training.trainer import Trainer

SPACE = Space(3, 4, eos=0)
TEACHER = Tilted(random_automaton(SPACE), taste(SPACE, scale=1.5))
NOTHING = empty_prompts(1)
BOUND = float(TEACHER.log_weight(enumerate_points(SPACE)).max())
LEARN = TrainingConfig(epochs=4, batch_size=100, learning_rate=0.06, schedule="linear", seed=4)
DRAWN = DistilConfig(draws=2000, candidates=4000, stages=2, evaluation_draws=2000, draws_per_step=100)


def student(width: int = 16):
    return build_base(LstmConfig(width=width, layers=1), SPACE, rng=SeededRng(3))


@torch.no_grad()
def exact_kl(base, prompts=NOTHING) -> float:
    """KL(teacher || student) over all points, averaged over prompts."""
    x, shape = enumerate_points(SPACE, prompts), (len(prompts), -1)
    log_p = torch.log_softmax(TEACHER.log_score(x).view(shape), -1)
    return float((log_p.exp() * (log_p - base.log_probs(x).double().sum(-1).view(shape))).sum(-1).mean())


@pytest.mark.parametrize("method", ["plain", "importance", "cyclical", "policy-gradient"])
def test_every_way_comes_near_and_its_distance_is_the_exact_one(method):
    base = student()
    before = exact_kl(base)
    learn = replace(LEARN, learning_rate=0.05) if method == "policy-gradient" else LEARN
    result = distil(TEACHER, base, NOTHING, replace(DRAWN, method=method, log_bound=BOUND), learn)
    after = exact_kl(base)
    assert before > 0.3 and after < (0.05 if method == "policy-gradient" else 0.03)
    kl = result.divergences["kl"]
    assert abs(kl.value - after) < 2.5 * (kl.high - kl.low)  # ten standard errors
    log_z = float(torch.logsumexp(TEACHER.log_score(enumerate_points(SPACE)), 0))
    assert abs(result.log_z.value - log_z) < 2.5 * (result.log_z.high - result.log_z.low)


def test_without_weights_the_student_becomes_the_base_and_is_caught():
    wrong = Importance()(TEACHER, NOTHING, 4000, rng=SeededRng(0))
    wrong = replace(wrong, log_weight=torch.zeros_like(wrong.log_weight))
    base = student()
    result = distil(TEACHER, base, NOTHING, DRAWN, LEARN, candidates=wrong)
    assert exact_kl(base) > 0.3 and result.divergences["kl"].low > 0.3


def test_an_unproven_bound_is_told_with_its_error():
    result = distil(TEACHER, student(), NOTHING, replace(DRAWN, method="plain"), replace(LEARN, epochs=1))
    (stage,) = result.stages
    assert stage.gap is not None and stage.gap.high < 0.05 and 0 < stage.acceptance < 1


def test_reweighted_comes_near_too():
    """Its teacher must tell whole distributions: a network, here the student's own start."""
    base = student()
    teacher = Tilted(student(), TEACHER.energy)
    x = enumerate_points(SPACE)
    log_p = torch.log_softmax(teacher.log_score(x), 0).detach()

    def kl() -> float:
        return float((log_p.exp() * (log_p - base.log_probs(x).detach().double().sum(-1))).sum())

    before = kl()
    result = distil(teacher, base, NOTHING, replace(DRAWN, method="reweighted"), LEARN)
    assert before > 0.3 and kl() < 0.03 and result.divergences["kl"].value < 0.05
    with pytest.raises(ValueError, match="knows one log Z, and there are 2 prompts"):
        distil(teacher, base, prompts_of([[], [1]]), replace(DRAWN, method="reweighted"), LEARN)


def test_prompts_are_kept():
    prompts = prompts_of([[], [1], [2, 1]])
    base = student()
    before = exact_kl(base, prompts)
    distil(TEACHER, base, prompts, replace(DRAWN, draws=4000, candidates=8000), LEARN)
    assert exact_kl(base, prompts) < 0.05 < before


@pytest.mark.parametrize("method", ["cyclical", slow("policy-gradient")])
def test_a_broken_distillation_ends_with_the_same_weights(method, tmp_path, monkeypatch):
    config = replace(DRAWN, method=method, draws=300, candidates=900, evaluation_draws=100)
    learn = replace(LEARN, epochs=3)
    whole, broken = student(8), student(8)
    distil(TEACHER, whole, NOTHING, config, learn, folder=tmp_path / "whole")
    calls, original = [], Trainer.__call__

    def stops(self, *arguments, **named):
        calls.append(1)
        if len(calls) == (2 if method == "cyclical" else 1):
            raise KeyboardInterrupt
        return original(self, *arguments, **named)

    monkeypatch.setattr(Trainer, "__call__", stops)
    with pytest.raises(KeyboardInterrupt):
        distil(TEACHER, broken, NOTHING, config, learn, folder=tmp_path / "broken")
    monkeypatch.undo()
    again = student(8)
    distil(TEACHER, again, NOTHING, config, learn, folder=tmp_path / "broken", resume=True)
    assert digest(module_tensors(again)) == digest(module_tensors(whole))


def test_errors():
    with pytest.raises(TypeError, match="A student is a base that can be trained, and Linear is none"):
        distil(TEACHER, torch.nn.Linear(2, 2), NOTHING, DRAWN, LEARN)
    with pytest.raises(ValueError, match="no prompt to distil for"):
        distil(TEACHER, student(), empty_prompts(0), DRAWN, LEARN)
    with pytest.raises(ValueError, match="leaves none to choose by"):
        distil(TEACHER, student(), NOTHING, DistilConfig(candidates=1), LEARN)
    with pytest.raises(ValueError, match="candidates is at least 1, not 0"):
        DistilConfig(candidates=0)
