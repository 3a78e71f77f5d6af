"""Learning from pairs: a translator learns to turn words round, by every objective; its folder translates and is measured."""

import json
from itertools import product

import pytest

from esscher.cli import main
from esscher.core.randomness import SeededRng
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.decoding.beam_search import BeamSearch, Greedy
from esscher.networks.recurrent_config import GruConfig
from esscher.networks.registry import NetworkConfig
from esscher.networks.seq2seq_config import AttentiveLstmConfig, EncoderDecoderConfig
from esscher.objectives.config import EForcingConfig, ScheduledSamplingConfig
from esscher.training.config import TrainingConfig
from esscher.workflow.config.tilt import ContrastConfig, TiltRun
from esscher.workflow.config.train import TrainRun
from esscher.workflow.model import load
from esscher.workflow.processors import DataSplits, prepare_data
from esscher.workflow.tilt import tilt_model
from esscher.workflow.train import train_base
from esscher.workflow.translate import require_translator, translate

WORDS = ["".join(letters) for length in (2, 3, 4) for letters in product("abcd", repeat=length)]
SMALL = {
    "encoder-decoder": EncoderDecoderConfig(width=32, layers=1, heads=2, feedforward=64, dropout=0.0),
    "attentive-lstm": AttentiveLstmConfig(width=48, layers=1, dropout=0.0),
}
CAUSAL = GruConfig(width=8, layers=1)


@pytest.fixture
def pairs(tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{word}\t{word[::-1]}\n" for word in WORDS))
    return file


def run_of(out, pairs, base: NetworkConfig, steps: int, **settings) -> TrainRun:
    training = TrainingConfig(steps=steps, batch_tokens=400, learning_rate=5e-3, evaluate_every=steps)
    data = DataConfig(str(pairs), target="2", held_out=0.1)
    return TrainRun(
        str(out),
        data=data,
        tokenizer=TokenizerConfig("character"),
        length=LengthConfig(8),
        base=base,
        training=training,
        **settings,
    )


@pytest.mark.parametrize("kind", ["encoder-decoder", pytest.param("attentive-lstm", marks=pytest.mark.slow)])
def test_words_are_turned_round(kind, pairs, tmp_path):
    result = train_base(run_of(tmp_path / "run", pairs, SMALL[kind], 250))
    assert "336 pairs" not in result.splits.description and "of more than 8 tokens left out" in result.splits.description
    model = require_translator(load(tmp_path / "run"))
    test = [model.tokenizer.decode([row[:start]])[0] for row, start in zip(*_prompts(result.splits), strict=True)]
    said = [item.text for item in translate(model, test, Greedy(), rng=SeededRng(0))]
    right = sum(ours == word[::-1] for ours, word in zip(said, test, strict=True)) / len(test)
    assert right > 0.5, f"{right:.0%} of words that were held out are right"


def _prompts(data_splits: DataSplits) -> tuple[list[list[int]], list[int]]:
    return data_splits.test.tokens.tolist(), data_splits.test.start.tolist()


@pytest.mark.parametrize(
    "objective",
    [
        EForcingConfig(after_steps=3),
        ScheduledSamplingConfig(after_steps=3),
        ScheduledSamplingConfig(after_steps=3, form="steps"),
    ],
    ids=["eforcing", "two passes", "step by step"],
)
@pytest.mark.parametrize("kind", SMALL)
def test_every_objective_learns_from_pairs(kind, objective, pairs, tmp_path):
    result = train_base(run_of(tmp_path / "run", pairs, SMALL[kind], 6, objective=objective))
    assert result.record.steps == 6
    with pytest.raises(ValueError, match="not cut into chunks"):
        prepare_data(TrainRun("x", data=DataConfig(str(pairs), target="2"), length=LengthConfig(8, chunks=True)))


def test_sources_are_not_cut_into_prefixes(pairs, tmp_path):
    train_base(run_of(tmp_path / "run", pairs, SMALL["encoder-decoder"], 2))
    run = TiltRun(out=str(tmp_path / "energy"), contrast=ContrastConfig(prefixes=(1, 2)))
    with pytest.raises(ValueError, match="would cut sources"):
        tilt_model(load(tmp_path / "run"), run)


def test_a_causal_base_goes_on_from_its_sources(pairs, tmp_path):
    train_base(run_of(tmp_path / "run", pairs, CAUSAL, 4))
    model = require_translator(load(tmp_path / "run"))
    assert model.data.encode_prompts(["ab"]) == [[*model.tokenizer.encode(["ab"])[0], model.tokenizer.eos]]
    assert len(list(translate(model, ["ab", "cd"], BeamSearch(), rng=SeededRng(0)))) == 2
    with pytest.raises(ValueError, match="its data are pairs of texts"):
        model.data.encode(["ab"])


@pytest.mark.slow
def test_a_translator_is_measured_on_pairs(pairs, tmp_path, capsys):
    train_base(run_of(tmp_path / "run", pairs, SMALL["encoder-decoder"], 6))
    data = ("--data", str(pairs), "--data.target", "2")
    actual = measured(capsys, str(tmp_path / "run"), *data)
    assert actual["data"].endswith("336 pairs, 0 of them too long and left out")
    tilted = measured(capsys, str(tmp_path / "run"), *data, "--energy", "self", "--draws", "4")
    assert "saved_by_tilting" in tilted


def measured(capsys, *arguments: str) -> dict:
    capsys.readouterr()
    main(["measure", *arguments, "--json", "--quiet"])
    return json.loads(capsys.readouterr().out.splitlines()[-1])
