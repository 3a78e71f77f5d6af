"""`esscher train` in any order: streams in windows with memory, both ways, resumed to the bit; controls on the same network."""

import shutil
from dataclasses import replace

import pytest
import torch

from esscher.hub import load_base
from esscher.storage import digest, module_tensors
from esscher.training import streams
from esscher.training.config import (
    BaseChoice,
    DataConfig,
    LengthConfig,
    ObjectiveConfig,
    TokenizerConfig,
    TrainingConfig,
    TrainRun,
    from_dict,
    to_dict,
)  # fmt: skip
from esscher.training.run import train
from esscher.training.streams import Stream, planned_length

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


def test_a_run_that_was_stopped_ends_as_one_that_was_not(book, tmp_path):
    run = run_of(book, tmp_path / "whole", training=replace(TRAINING, accumulate=2))
    whole = train(run, quiet=True)
    assert whole.record.best is not None and from_dict(to_dict(run)) == run
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    last = max((tmp_path / "stopped" / "checkpoints").iterdir(), key=lambda path: path.name)
    _remove(last)
    train(replace(run, out=str(tmp_path / "stopped")), resume=True, quiet=True)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def _remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


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
