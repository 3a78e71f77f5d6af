"""`esscher train` in any order: streams in windows with memory, both ways, resumed to the bit; controls on the same network."""

from dataclasses import replace

import pytest
import torch
from interrupted import Killed

from esscher.cli import main
from esscher.energies.saved import load_energy
from esscher.hub import load_base
from esscher.objectives.permuted_likelihood import PermutedLikelihood
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig, LengthConfig, TokenizerConfig
from esscher.settings.objective import ObjectiveConfig
from esscher.settings.train import TrainRun, from_dict, to_dict
from esscher.settings.training import TrainingConfig
from esscher.storage import digest, module_tensors
from esscher.training import streams
from esscher.training.streams import Stream, planned_length
from esscher.verbs.train import train

BASE = BaseChoice("xlnet", width=8, layers=2, heads=2, feedforward=16, memory=12, dropout=0.1)
TRAINING = TrainingConfig(steps=4, batch_size=4, evaluate_every=2, save_every=2)


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    file = tmp_path_factory.mktemp("any_order") / "book.txt"
    file.write_text("".join(f"{n}: a rainy day\n" for n in range(120)))
    return file


def run_of(book, out, **changes) -> TrainRun:
    length = LengthConfig(8, stream=True, window=20, both_ways=True)
    given = TrainRun(
        str(out), DataConfig(str(book), split="raw"), TokenizerConfig("byte"), length, BASE, TRAINING,
        ObjectiveConfig("permuted"),
    )  # fmt: skip
    return replace(given, **changes)


def weights(folder) -> str:
    return digest(module_tensors(load_base(folder)[0]))


def stopped_and_resumed(run: TrainRun) -> str:
    """The weights of a run that does not come through its last update, and then goes on."""
    right = PermutedLikelihood.__call__

    def killed(self, target, data, *, rng, step=0):
        if step == 3:
            raise Killed
        return right(self, target, data, rng=rng, step=step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PermutedLikelihood, "__call__", killed)
        with pytest.raises(Killed):
            train(run, quiet=True)
    train(run, resume=True, quiet=True)
    return weights(run.out)


def test_a_run_that_was_stopped_ends_as_one_that_was_not(book, tmp_path, monkeypatch):
    """Its memories are in the checkpoint: without them it ends elsewhere."""
    training = replace(TRAINING, accumulate=2, keep_best=False)
    whole = run_of(book, tmp_path / "whole", training=training)
    assert train(whole, quiet=True).record.best is not None and from_dict(to_dict(whole)) == whole
    assert stopped_and_resumed(replace(whole, out=str(tmp_path / "stopped"))) == weights(whole.out)
    monkeypatch.setattr(streams.Columns, "restore", lambda self, saved: None)
    assert stopped_and_resumed(replace(whole, out=str(tmp_path / "forgetful"))) != weights(whole.out)


def test_half_of_the_columns_run_the_other_way(book, tmp_path, monkeypatch):
    seen = []
    right = streams.Columns._rows

    def watched(self, *given):
        seen.append((self, given, right(self, *given)))
        return seen[-1][2]

    monkeypatch.setattr(streams.Columns, "_rows", watched)
    train(run_of(book, tmp_path / "run", training=replace(TRAINING, steps=2)), quiet=True)
    for own, (_, _, rows, first, last), found in seen:
        columns = own.columns[rows]
        assert torch.equal(found[:2, :8], columns[:2, first:last]) and torch.equal(
            found[2:, :8], columns[2:].flip(1)[:, first:last]
        )


@pytest.mark.parametrize(
    "objective",
    [
        ObjectiveConfig("denoising"),
        ObjectiveConfig("permuted", spans="pieces", one_in=3.0),
        ObjectiveConfig("permuted", spans="none"),
    ],
    ids=["denoising", "pieces", "single"],
)
def test_controls_and_options_run_on_the_same_network(book, tmp_path, objective):
    length = LengthConfig(8, stream=True, window=20, both_ways=objective.kind == "permuted")
    result = train(run_of(book, tmp_path, objective=objective, length=length, training=replace(TRAINING, steps=2)), quiet=True)
    assert result.record.steps == 2


def test_points_without_a_stream_and_the_causal_control(book, tmp_path):
    data = DataConfig(str(book))
    for name, objective, length in (
        ("permuted", ObjectiveConfig("permuted"), LengthConfig(24)),
        ("causal", ObjectiveConfig(), LengthConfig(16, stream=True)),
    ):
        run = run_of(book, tmp_path / name, data=data, objective=objective, length=length, training=replace(TRAINING, steps=2))
        assert train(run, quiet=True).measured["perplexity per token"].value > 1


def test_an_energy_starts_from_the_folder_of_an_xlnet(book, tmp_path):
    """From the command line: it has the weights of the folder, and reads from both sides without being told to."""
    made = {}
    for name, base, objective in (
        ("gru", BaseChoice("gru", width=8), ObjectiveConfig()),
        ("xlnet", BASE, ObjectiveConfig("permuted")),
    ):
        training = replace(TRAINING, steps=1, evaluate_every=1)
        run = run_of(
            book,
            tmp_path / name,
            data=DataConfig(str(book)),
            base=base,
            objective=objective,
            length=LengthConfig(24),
            training=training,
        )
        made[name] = train(run, quiet=True).base
    arguments = (
        ["tilt", str(tmp_path / "gru"), "--out", str(tmp_path / "energy"), "--energy.start", str(tmp_path / "xlnet"), "--quiet",
         "--contrast.draws", "64", "--contrast.held-out", "4", "--training.steps", "1", "--training.learning-rate", "1e-7"]
    )  # fmt: skip
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    saved = load_energy(tmp_path / "energy")
    assert not stop.value.code and saved.config.reader == "bidirectional" and saved.config.network == made["xlnet"].config
    learnt = saved.energy(None, made["gru"]).reader.network.state_dict()
    for name, weight in made["xlnet"].network.state_dict().items():
        torch.testing.assert_close(learnt[name], weight, atol=1e-6, rtol=0)


def test_what_does_not_fit_is_refused(book, tmp_path):
    with pytest.raises(ValueError, match="any order, xlnet, not gru"):
        run_of(book, tmp_path, base=BaseChoice("gru"))
    with pytest.raises(ValueError, match="not for likelihood"):
        run_of(book, tmp_path, objective=ObjectiveConfig())
    with pytest.raises(ValueError, match="settings of a stream"):
        LengthConfig(8, window=20)
    with pytest.raises(ValueError, match="at least 5 more"):
        LengthConfig(8, stream=True, window=12)
    with pytest.raises(ValueError, match="have no half"):
        train(run_of(book, tmp_path, training=replace(TRAINING, accumulate=4)), quiet=True)
    with pytest.raises(ValueError, match="has no hidden"):
        ObjectiveConfig("permuted", hidden=0.5)
    stream = Stream(torch.zeros(40, dtype=torch.long), 8, windows=streams.Windows(20, 8, 5, 6))
    with pytest.raises(ValueError, match="too short for a window"):
        planned_length(stream, 4)
    assert planned_length(stream, 1) == 24
