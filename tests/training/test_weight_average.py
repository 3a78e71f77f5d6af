"""Averaging that begins where evaluations stall: the rule, the weights, and that a resumed run keeps both."""

import contextlib
from dataclasses import replace

import pytest
import torch
from stream_run import SETTINGS, new_base, text
from tiny_run import fingerprint

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.target import Tilted
from esscher.objectives.likelihood import Likelihood
from esscher.training import trainer
from esscher.training.config import TrainingConfig
from esscher.training.optimizers import has_stalled
from esscher.training.stream_batches import TokenStream
from esscher.training.trainer import Trainer

FALLING = [5.0, 4.0, 3.0, 3.5, 3.4, 3.2, 3.1, 3.3]  # with a patience of 2 they stall at the sixth: 3.2 > min(5, 4, 3)
CONFIG = replace(SETTINGS, steps=24, evaluate_every=3, swa_start=None, swa_patience=2, save_every=None)


def published(evaluations, patience):
    """As in the released training loop, told evaluation by evaluation: the place of the first switch."""
    before = []
    for place, value in enumerate(evaluations):
        if len(before) > patience and value > min(before[:-patience]):
            return place
        before.append(value)
    return None


def test_it_is_the_rule_of_the_released_code():
    rng = SeededRng(3)
    assert published(FALLING, 2) == 5
    for trial in range(200):
        values = (0.3 * rng.stream(trial).permutation(12) - 0.1 * torch.arange(12)).tolist()
        for patience in (1, 2, 5):
            first = next((n for n in range(12) if has_stalled(values[: n + 1], patience)), None)
            assert first == published(values, patience)


def trained(folder=None, *, config=CONFIG, stop=None, resume=False):
    """A base after training whose evaluations are `FALLING`, and the weights after each update."""
    base, passed = new_base(), {}

    def noted(target, data, *, rng, step=0):
        if step == stop:
            raise KeyboardInterrupt
        passed[step] = base.network.head.weight.detach().clone()
        return Likelihood()(target, data, rng=rng, step=step)

    def told():
        value = FALLING[told.place]
        told.place += 1
        return Estimate.exact(value)

    told.place = seen(folder) if resume else 0
    shared = {"modules": base, "validation": told, "folder": folder, "resume": resume}
    with contextlib.suppress(KeyboardInterrupt):
        Trainer(config)(noted, Tilted(base), TokenStream(text(3000), 9), **shared)
    return base, passed


def seen(folder):
    """How many evaluations the last checkpoint has seen."""
    last = trainer.CheckpointManager(folder / "checkpoints").last()
    return int(last.name.removeprefix("step-")) // CONFIG.evaluate_every


def test_weights_are_averaged_from_the_evaluation_that_stalled():
    config = replace(CONFIG, keep_best=False)
    base, passed = trained(config=config)
    plain, _ = trained(config=replace(config, swa_patience=None))
    after = [passed[step] for step in range(19, 24)] + [plain.network.head.weight.detach()]
    assert torch.allclose(base.network.head.weight, torch.stack(after).mean(0), atol=1e-6)
    assert not torch.allclose(base.network.head.weight, plain.network.head.weight, atol=1e-6)


@pytest.mark.parametrize("stop", [10, 22])
def test_a_resumed_run_averages_from_the_same_step(tmp_path, stop):
    config = replace(CONFIG, keep_best=False)
    whole, _ = trained(config=config)
    trained(tmp_path, config=config, stop=stop)
    again, _ = trained(tmp_path, config=config, resume=True)
    assert fingerprint(again) == fingerprint(whole)


@pytest.mark.parametrize(("forgotten", "stop"), [({"evaluations": []}, 10), ({"averaged_from": None}, 22)])
def test_a_run_that_forgets_is_caught(tmp_path, monkeypatch, forgotten, stop):
    config = replace(CONFIG, keep_best=False)
    whole, _ = trained(config=config)
    trained(tmp_path, config=config, stop=stop)
    remembered = trainer.TrainerState.from_dict.__func__
    monkeypatch.setattr(
        trainer.TrainerState, "from_dict", classmethod(lambda cls, saved: remembered(cls, {**saved, **forgotten}))
    )
    again, _ = trained(tmp_path, config=config, resume=True)
    assert fingerprint(again) != fingerprint(whole)


def test_one_beginning_at_most():
    with pytest.raises(ValueError, match=r"swa_start = 0.5, or when evaluations stop .* swa_patience = 5; give one"):
        TrainingConfig(swa_start=0.5, swa_patience=5)
    with pytest.raises(ValueError, match="swa_patience is more than 0, not 0"):
        TrainingConfig(swa_patience=0)
