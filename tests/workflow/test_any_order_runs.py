"""`esscher train` in any order: streams in windows with memory, both ways, resumed to the bit; controls on the same network."""

from dataclasses import replace

import pytest
import torch
from interrupted import Killed

from esscher.cli import main
from esscher.core.config import from_dict, to_dict
from esscher.core.storage import digest, module_tensors
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.energies.serialization import load_energy
from esscher.hub import load_base
from esscher.networks.recurrent_config import GruConfig
from esscher.networks.transformer_config import XLNetConfig
from esscher.objectives.config import LikelihoodConfig, MaskedLMConfig, PermutationLMConfig
from esscher.objectives.permutation_lm import PermutationLM
from esscher.training import stream_batches
from esscher.training.config import TrainingConfig
from esscher.training.stream_batches import TokenStream, segmented_length
from esscher.workflow.config.train import TrainRun
from esscher.workflow.train import train_base

BASE = XLNetConfig(width=8, layers=2, heads=2, feedforward=16, memory=12, dropout=0.1)
TRAINING = TrainingConfig(steps=4, batch_size=4, evaluate_every=2, save_every=2)


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    file = tmp_path_factory.mktemp("any_order") / "book.txt"
    file.write_text("".join(f"{n}: a rainy day\n" for n in range(120)))
    return file


def run_of(book, out, **changes) -> TrainRun:
    length = LengthConfig(8, stream=True, window=20, bidirectional=True)
    inputs = TrainRun(
        str(out), data=DataConfig(str(book), split="raw"), tokenizer=TokenizerConfig("byte"), length=length, base=BASE,
        training=TRAINING, objective=PermutationLMConfig(),
    )  # fmt: skip
    return replace(inputs, **changes)


def weights(folder) -> str:
    return digest(module_tensors(load_base(folder)[0]))


def stopped_and_resumed(run: TrainRun) -> str:
    """The weights of a run that does not come through its last update, and then goes on."""
    right = PermutationLM.__call__

    def killed(self, target, data, *, rng, step=0):
        if step == 3:
            raise Killed
        return right(self, target, data, rng=rng, step=step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PermutationLM, "__call__", killed)
        with pytest.raises(Killed):
            train_base(run)
    train_base(replace(run, resume=True))
    return weights(run.out)


def test_a_run_that_was_stopped_ends_as_one_that_was_not(book, tmp_path, monkeypatch):
    """Its memories are in the checkpoint: without them it ends elsewhere."""
    training = replace(TRAINING, gradient_accumulation_steps=2, keep_best=False)
    whole = run_of(book, tmp_path / "whole", training=training)
    assert train_base(whole).record.best is not None and from_dict(TrainRun, to_dict(whole)) == whole
    assert stopped_and_resumed(replace(whole, out=str(tmp_path / "stopped"))) == weights(whole.out)
    monkeypatch.setattr(stream_batches.StreamBatches, "load_state_dict", lambda self, saved: None)
    assert stopped_and_resumed(replace(whole, out=str(tmp_path / "forgetful"))) != weights(whole.out)


def test_half_of_the_columns_run_the_other_way(book, tmp_path, monkeypatch):
    seen = []
    right = stream_batches.StreamBatches._rows

    def watched(self, *given):
        seen.append((self, given, right(self, *given)))
        return seen[-1][2]

    monkeypatch.setattr(stream_batches.StreamBatches, "_rows", watched)
    train_base(run_of(book, tmp_path / "run", training=replace(TRAINING, steps=2)))
    for own, (_, _, rows, first, last), actual in seen:
        columns = own.columns[rows]
        assert torch.equal(actual[:2, :8], columns[:2, first:last]) and torch.equal(
            actual[2:, :8], columns[2:].flip(1)[:, first:last]
        )


@pytest.mark.parametrize(
    "objective",
    [
        MaskedLMConfig(),
        PermutationLMConfig(spans="pieces", one_in=3.0),
        PermutationLMConfig(spans="none"),
    ],
    ids=["denoising", "pieces", "single"],
)
def test_controls_and_options_run_on_the_same_network(book, tmp_path, objective):
    length = LengthConfig(8, stream=True, window=20, bidirectional=isinstance(objective, PermutationLMConfig))
    result = train_base(run_of(book, tmp_path, objective=objective, length=length, training=replace(TRAINING, steps=2)))
    assert result.record.steps == 2


def test_points_without_a_stream_and_the_causal_control(book, tmp_path):
    data = DataConfig(str(book))
    for name, objective, length in (
        ("permuted", PermutationLMConfig(), LengthConfig(24)),
        ("causal", LikelihoodConfig(), LengthConfig(16, stream=True)),
    ):
        run = run_of(book, tmp_path / name, data=data, objective=objective, length=length, training=replace(TRAINING, steps=2))
        assert train_base(run).measured["perplexity per token"].value > 1


def test_an_energy_starts_from_the_folder_of_an_xlnet(book, tmp_path):
    """From the command line: it has the weights of the folder, and reads from both sides without being told to."""
    made = {}
    for name, base, objective in (
        ("gru", GruConfig(width=8), LikelihoodConfig()),
        ("xlnet", BASE, PermutationLMConfig()),
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
        made[name] = train_base(run).base
    arguments = (
        ["tilt", str(tmp_path / "gru"), "--out", str(tmp_path / "energy"), "--start", str(tmp_path / "xlnet"), "--quiet",
         "--contrast.draws", "64", "--contrast.held-out", "4", "--training.steps", "1", "--training.learning-rate", "1e-7"]
    )  # fmt: skip
    main(arguments)
    saved = load_energy(tmp_path / "energy")
    assert saved.config.kind == "bidirectional" and saved.config.network == made["xlnet"].config
    learnt = saved.energy(None, made["gru"]).encoder.network.state_dict()
    for name, weight in made["xlnet"].network.state_dict().items():
        torch.testing.assert_close(learnt[name], weight, atol=1e-6, rtol=0)


def test_what_does_not_fit_is_refused(book, tmp_path):
    with pytest.raises(ValueError, match="any order, xlnet, not gru"):
        run_of(book, tmp_path, base=GruConfig())
    with pytest.raises(ValueError, match="not for likelihood"):
        run_of(book, tmp_path, objective=LikelihoodConfig())
    with pytest.raises(ValueError, match="settings of a stream"):
        LengthConfig(8, window=20)
    with pytest.raises(ValueError, match="at least 5 more"):
        LengthConfig(8, stream=True, window=12)
    with pytest.raises(ValueError, match="have no half"):
        train_base(run_of(book, tmp_path, training=replace(TRAINING, gradient_accumulation_steps=4)))
    stream = TokenStream(torch.zeros(40, dtype=torch.long), 8, windows=stream_batches.SegmentPairWindows(20, 8, 5, 6))
    with pytest.raises(ValueError, match="too short for a window"):
        segmented_length(stream, 4)
    assert segmented_length(stream, 1) == 24
