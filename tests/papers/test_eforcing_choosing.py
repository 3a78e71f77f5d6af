"""Settings that are chosen by validation losses, once."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from esscher.objectives.config import EForcingConfig
from esscher.papers.eforcing import choosing
from esscher.papers.eforcing.choosing import SELECTION, choose, since_begin, with_learning_rate, with_strength
from esscher.papers.study import StudyContext
from esscher.training.config import TrainingConfig
from esscher.workflow.config.train import TrainRun

RUN = TrainRun("", training=TrainingConfig(steps=10, evaluate_every=2))
HISTORY = [(2, 1.0), (4, 3.0), (6, 2.0)]


def test_losses_before_e_forcing_began_do_not_count():
    assert since_begin(RUN, HISTORY) == HISTORY
    assert since_begin(replace(RUN, objective=EForcingConfig(after_steps=2)), HISTORY) == HISTORY[1:]
    assert since_begin(replace(RUN, objective=EForcingConfig(after_steps=3)), HISTORY) == HISTORY[1:]
    epochs = replace(RUN, objective=EForcingConfig(after_epochs=2), training=TrainingConfig(epochs=3))
    assert since_begin(epochs, HISTORY) == HISTORY[2:]


def test_a_strength_is_the_sum_of_weights_or_the_smoothing():
    forced = with_strength(replace(RUN, objective=EForcingConfig(decay=0.97)), 3.0)
    assert forced.objective.weight == pytest.approx(0.09)
    smooth = with_strength(RUN, 0.03)
    assert smooth.training.label_smoothing == 0.03 and smooth.objective == RUN.objective
    assert with_learning_rate(RUN, 0.5).training.learning_rate == 0.5


def test_the_value_with_the_lowest_loss_is_chosen_once(tmp_path, monkeypatch):
    """Strength 1 has the lowest loss before E-Forcing began, strength 3 after."""
    losses, trained = {1.0: (0.1, 0.9), 3.0: (0.2, 0.5), 10.0: (0.2, 0.7)}, []

    def train(run):
        trained.append(run)
        strength = round(run.objective.weight / (1 - run.objective.decay), 6)
        lines = [{"step": 2 * (k + 1), "validation": loss} for k, loss in enumerate(losses[strength])]
        Path(run.out).mkdir(parents=True)
        (Path(run.out) / "history.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    monkeypatch.setattr(choosing, "train_base", train)
    context = StudyContext(scale="small", out=tmp_path)
    run = replace(RUN, objective=EForcingConfig(after_steps=2))
    candidates = {strength: with_strength(run, strength) for strength in losses}
    assert choose(context, "study", "strength", candidates) == 3.0
    assert choose(context, "study", "strength", candidates) == 3.0
    assert len(trained) == 3 and {each.training.seed for each in trained} == {SELECTION}
