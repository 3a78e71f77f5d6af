"""Learning twists on spaces that can be enumerated, where the true conditional expectations are known."""

import math
import shutil
from dataclasses import replace

import pytest
import torch
from random_targets import random_automaton, taste
from small_networks import CONFIGS, lively

from esscher.core.progress import progress_as
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of
from esscher.core.storage import digest, module_tensors
from esscher.core.target import Tilted
from esscher.energies.config import TwistConfig
from esscher.energies.twist import TwistedBase, build_twist
from esscher.samplers.importance import Exhaustive
from esscher.samplers.particles import Particles
from esscher.training.config import TwistLearningConfig, TwistTraining
from esscher.training.twist_learning import TwistResult, learn_twist

FIXED, ENDING = Space(3, 5), Space(3, 5, eos=0)
TRAINING = TwistTraining(steps=120, batch_size=128, learning_rate=0.01, schedule="linear", patience=None)
SMALL = TwistLearningConfig(1536, rounds=3, evaluation_draws=500, network=TwistConfig(24, 16), training=TRAINING)
FEW = TwistLearningConfig(
    256, rounds=2, evaluation_draws=50, network=TwistConfig(8, 4), training=TwistTraining(steps=20, evaluate_every=10)
)


def strong(space: Space, base=None) -> Tilted:
    return Tilted(random_automaton(space) if base is None else base, taste(space, scale=2.0))


def learnt(target: Tilted, prompts: Sequences | None = None, config: TwistLearningConfig = SMALL, **settings) -> TwistResult:
    with progress_as("quiet"):
        return learn_twist(target, empty_prompts(1) if prompts is None else prompts, config, rng=SeededRng(0), **settings)


@torch.no_grad()
def errors(target: Tilted, result: TwistResult, prompts: Sequences) -> torch.Tensor:
    """log psi - the true log E[exp(-E)] of every prefix and next token after which points go on, for points weighted by p."""
    every = Exhaustive()(target, prompts, 0, rng=SeededRng(0))
    _, log_twist = TwistedBase(target.base, result.twist).steps_over(every.x)
    value = (every.log_weight - math.log(every.log_weight.shape[1])).view(-1)  # log a - E
    points, keys, gaps = every.x.points(), every.x.prompt_keys(), []
    mass: dict[tuple, list[tuple[float, float]]] = {}
    for row, point in enumerate(points):
        for t in range(1, len(point)):
            mass.setdefault((keys[row], *point[:t]), []).append((float(value[row]), float(every.log_base.view(-1)[row])))
    truth = {key: _log_sum(both, 0) - _log_sum(both, 1) for key, both in mass.items()}
    chosen = torch.multinomial(torch.softmax(value, 0), 300, replacement=True, generator=torch.Generator().manual_seed(0))
    for row in chosen.tolist():
        for t in range(1, len(points[row])):
            guess = float(log_twist[row, t - 1, points[row][t - 1]]) + result.twist.offset
            gaps.append(guess - truth[(keys[row], *points[row][:t])])
    return torch.tensor(gaps)


def _log_sum(pairs: list[tuple[float, float]], which: int) -> float:
    return float(torch.logsumexp(torch.tensor([pair[which] for pair in pairs], dtype=torch.float64), 0))


def blank(result: TwistResult, target: Tilted) -> TwistResult:
    """The same with a twist that learnt nothing."""
    twist = build_twist(result.twist.config, target.base, rng=SeededRng(0))
    twist.offset = result.twist.offset
    return replace(result, twist=twist)


@pytest.mark.parametrize(
    "case", [pytest.param("automaton, fixed length", marks=pytest.mark.slow), "automaton, end symbol", "lstm"]
)
def test_a_learnt_twist_approaches_the_true_one_and_its_draws_are_all_effective(case):
    """The wrong version, a twist that learnt nothing, has errors above 1 nat and the base's effective share."""
    space = FIXED if "fixed" in case else ENDING
    base = lively(CONFIGS["lstm, vectors"], space) if case == "lstm" else None
    target, config = strong(space, base), SMALL
    if case == "lstm":
        config = TwistLearningConfig(1536, rounds=3, evaluation_draws=500, network=TwistConfig(24), training=TRAINING)
    result = learnt(target, config=config)
    assert (result.twist.config.memory == 0) == (case == "lstm")
    gap = errors(target, result, empty_prompts(1)).square().mean().sqrt()
    assert gap < 0.4 and 2 * gap < errors(target, blank(result, target), empty_prompts(1)).square().mean().sqrt()
    drawn = Particles(result.twist)(target, empty_prompts(50), 32, rng=SeededRng(1))
    assert float(drawn.ess().mean()) > 0.75 * 32
    assert result.ess > 0.6 and result.ess > 1.3 * result.base_ess
    exact = Exhaustive()(target, empty_prompts(1), 0, rng=SeededRng(0)).log_z()
    assert result.log_z.low - 0.05 < float(exact) < result.log_z.high + 0.05
    assert "it pays from" in result.notes[0]


@pytest.mark.slow
def test_prompts_have_their_own_expectations():
    prompts = prompts_of([[1, 1], [2]])
    target = strong(FIXED)
    result = learnt(target, prompts)
    gap, before = (errors(target, each, prompts).square().mean().sqrt() for each in (result, blank(result, target)))
    assert gap < 0.85 and 2 * gap < before


def test_a_constant_of_the_energy_changes_nothing_but_the_offset():
    target = strong(ENDING)
    higher = Tilted(target.base, lambda x: target.energy(x) + 40.0)
    first, second = learnt(target, config=FEW), learnt(higher, config=FEW)
    assert second.twist.offset == pytest.approx(first.twist.offset - 40)
    draws = [
        Particles(result.twist, threshold=0.9)(which, empty_prompts(4), 8, rng=SeededRng(2))
        for result, which in ((first, target), (second, higher))
    ]
    assert draws[0].x.points() == draws[1].x.points()
    torch.testing.assert_close(draws[0].log_weight, draws[1].log_weight + 40, atol=1e-4, rtol=0)


def test_forbidden_sequences_are_learnt_and_nothing_allowed_is_an_error():
    target = strong(ENDING)
    some = Tilted(target.base, lambda x: torch.where((x.counted & (x.tokens == 2)).any(-1), torch.inf, target.energy(x)))
    assert math.isfinite(learnt(some, config=FEW).twist.offset)
    none = Tilted(target.base, lambda x: torch.full((len(x),), torch.inf))
    with pytest.raises(ValueError, match="forbids all 128 sequences"):
        learnt(none, config=FEW)


def test_an_interrupted_run_resumes_to_the_same_twist(tmp_path):
    target = strong(ENDING)
    whole = learnt(target, config=FEW, folder=tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "round-1" / "checkpoints")  # killed before the second round was trained
    again = learnt(target, config=FEW, folder=tmp_path / "run", resume=True)
    assert digest(module_tensors(again.twist)) == digest(module_tensors(whole.twist))
    assert digest(module_tensors(learnt(target, config=FEW).twist)) == digest(module_tensors(whole.twist))


def test_a_twist_that_saves_nothing_says_so():
    """An energy that is a hash of the sequence: no prefix tells anything."""
    target = Tilted(random_automaton(FIXED), lambda x: torch.zeros(len(x)))
    assert "saves nothing" in learnt(target, config=FEW).notes[0]


def test_too_few_draws_are_refused():
    with pytest.raises(ValueError, match="4 rounds need 256, and draws is 100"):
        TwistLearningConfig(100)
