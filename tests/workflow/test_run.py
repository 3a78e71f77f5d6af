"""The whole of `esscher train`, small: from text, from a process, from the docstrings; resumed; refused."""

import email
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from marks import slow

from esscher.core.config import from_dict
from esscher.core.storage import digest, module_tensors
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.data.docstrings import read_docstrings
from esscher.data.sources import split_by_hash
from esscher.hub import load_base
from esscher.networks.recurrent_config import LstmConfig
from esscher.networks.transformer_config import TransformerConfig
from esscher.objectives.config import EForcingConfig, LikelihoodConfig, ScheduledSamplingConfig
from esscher.training.config import TrainingConfig
from esscher.training.trainer import TrainingLoop
from esscher.workflow.config.train import TrainRun
from esscher.workflow.train import train_base

BASE = LstmConfig(width=8, layers=1)
TRAINING = TrainingConfig(steps=6, batch_size=10, evaluate_every=3)


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("".join(f"line {number} of a small text\n\n" for number in range(400)))
    return file


def test_from_a_text_file_to_a_model_folder(tmp_path, text, capsys):
    run = TrainRun(
        str(tmp_path / "run"),
        data=DataConfig(str(text)),
        tokenizer=TokenizerConfig("bpe", 280),
        length=LengthConfig(32),
        base=BASE,
        training=TRAINING,
    )
    result = train_base(run)
    assert set(result.measured) == {"perplexity per token", "perplexity per word", "perplexity per byte"}
    for value in result.measured.values():
        assert value.low < value.value < value.high
    base, tokenizer = load_base(run.out)
    assert digest(module_tensors(base)) == digest(module_tensors(result.base))
    assert tokenizer.name == "bpe" and base.space.eos == tokenizer.eos and base.space.max_length == 32
    assert from_dict(TrainRun, yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())) == run
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (
        results["measured"]["perplexity per word"]["value"] == result.measured["perplexity per word"].value
        and results["steps"] == 6
    )
    assert "perplexity per word" in (tmp_path / "run" / "README.md").read_text()
    out, err = capsys.readouterr()
    assert out == "" and "step 6/6  validation" in err
    again = train_base(replace(run, resume=True))
    assert again.measured == result.measured


def test_on_a_process_with_its_entropy(tmp_path):
    data = DataConfig("motif:11", size=50, length=5, mixture=0.9)
    result = train_base(TrainRun(str(tmp_path), data=data, base=BASE, training=TRAINING))
    assert result.measured["entropy of the process"].n == 0
    base, tokenizer = load_base(tmp_path)
    assert tokenizer.decode([[0, 1, 1, 0, 1, 2]]) == ["01101"] and base.space.max_length == 6


def test_on_the_docstrings_in_chunks(tmp_path, monkeypatch):
    """Those of one package of the library, which are read in no time."""
    few = split_by_hash(read_docstrings(Path(email.__file__).parent), held_out=0.1)
    monkeypatch.setattr("esscher.data.splits.docstring_splits", lambda: few)
    length = LengthConfig(400, chunks=True, prompt_tokens=390)
    run = TrainRun(
        str(tmp_path), tokenizer=TokenizerConfig("byte"), length=length, base=BASE, training=replace(TRAINING, steps=1)
    )
    result = train_base(run)
    assert (result.base.space.max_length, result.base.space.eos) == (10, None)


def test_label_smoothing_is_for_training_only(tmp_path, text):
    run = TrainRun(
        str(tmp_path / "run"),
        data=DataConfig(str(text)),
        tokenizer=TokenizerConfig("character"),
        length=LengthConfig(32),
        base=BASE,
        training=TRAINING,
    )
    smooth = replace(run, training=replace(TRAINING, label_smoothing=0.5, learning_rate=1e-9))
    result = train_base(smooth)
    last = [entry for entry in result.record.history if "loss" in entry][-1]
    assert last["loss"] != pytest.approx(last["nll"], abs=1e-3)
    assert result.record.best.value == pytest.approx(last["nll"], rel=0.05)


def test_changed_settings_are_named(tmp_path, text):
    run = TrainRun(
        str(tmp_path / "run"),
        data=DataConfig(str(text)),
        tokenizer=TokenizerConfig("character"),
        length=LengthConfig(32),
        base=BASE,
        training=TRAINING,
    )
    train_base(run)
    with pytest.raises(ValueError, match=r"started with base.width = 8, and is resumed with base.width = 9"):
        train_base(replace(replace(run, base=replace(BASE, width=9)), resume=True))
    with pytest.raises(FileExistsError, match="Nothing was trained or changed; resume it"):
        train_base(run)
    with text.open("a") as file:
        file.write("one more line of text\n" * 3)
    with pytest.raises(ValueError, match="started with data ="):
        train_base(replace(run, resume=True))


def test_sequences_longer_than_the_base_allows(tmp_path, text):
    small = TransformerConfig(width=8, heads=2, layers=1, feedforward=8, max_positions=16)
    run = TrainRun(
        str(tmp_path / "run"),
        data=DataConfig(str(text)),
        tokenizer=TokenizerConfig("byte"),
        length=LengthConfig(64),
        base=small,
        training=TRAINING,
    )
    with pytest.raises(ValueError, match=r"Sequences of \d+ tokens are longer than the base allows: it has max_positions = 16"):
        train_base(run)
    assert not (tmp_path / "run").exists()


def test_bad_sources(tmp_path, text):
    with pytest.raises(FileNotFoundError, match=r"There is no file, folder or pattern 'nowhere.txt'"):
        train_base(TrainRun(str(tmp_path), data=DataConfig("nowhere.txt")))
    with pytest.raises(ValueError, match="Unknown tokenizer 'words'; the known ones are character, byte, word, bpe"):
        train_base(TrainRun(str(tmp_path), data=DataConfig(str(text)), tokenizer=TokenizerConfig("words")))


E_FORCING = EForcingConfig(after_epochs=1, weight=0.5, negatives=12, max_weight=5.0)
SCHEDULED = ScheduledSamplingConfig(after_steps=1, share=0.5)


@pytest.mark.parametrize(
    ("objective", "stream"),
    [(E_FORCING, True), slow(E_FORCING, False), slow(SCHEDULED, True), (SCHEDULED, False)],
    ids=["eforcing-stream", "eforcing-points", "scheduled sampling-stream", "scheduled sampling-points"],
)
def test_other_objectives_begin_as_likelihood_and_resume_to_the_bit(tmp_path, text, objective, stream):
    text.write_text("".join(text.read_text().splitlines(keepends=True)[:240]))
    length = LengthConfig(16, stream=True) if stream else LengthConfig(32)
    batch = {} if stream else {"batch_tokens": 120}
    training = TrainingConfig(epochs=2, batch_size=10, evaluate_every=4, log_every=1, **batch)
    run = TrainRun(
        "",
        data=DataConfig(str(text)),
        tokenizer=TokenizerConfig("bpe", 280),
        length=length,
        base=BASE,
        training=training,
        objective=objective,
    )
    whole = train_base(replace(run, out=str(tmp_path / "whole")))
    added = "contrast" if isinstance(objective, EForcingConfig) else "own"
    first = next(entry["step"] for entry in whole.record.history if added in entry)
    assert first == (2 if objective.after_steps else whole.record.steps // 2) + 1

    stopped = replace(run, out=str(tmp_path / "stopped"))
    calls = []

    def stop(self, better, save=TrainingLoop._save):
        save(self, better)
        calls.append(self.step)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingLoop, "_save", stop)
        with pytest.raises(KeyboardInterrupt):
            train_base(stopped)
    again = train_base(replace(stopped, resume=True))
    assert digest(module_tensors(again.base)) == digest(module_tensors(whole.base)) and again.measured == whole.measured
    with pytest.raises(ValueError, match="objective"):
        train_base(replace(replace(stopped, objective=LikelihoodConfig()), resume=True))
