"""Learning from pairs: a translator learns to turn words round, by every objective; its folder translates and is measured."""

import json
from itertools import product

import pytest

from esscher.cli import main
from esscher.randomness import Seeded
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig, LengthConfig, TokenizerConfig
from esscher.settings.objective import ObjectiveConfig
from esscher.settings.tilt import ContrastConfig, TiltRun
from esscher.settings.train import TrainRun
from esscher.settings.training import TrainingConfig
from esscher.settings.translate import DecodingConfig
from esscher.verbs.tilt import tilt
from esscher.verbs.train import train
from esscher.verbs.training_data import Material, prepare
from esscher.verbs.translate import build_decoder, load_translator, translate

WORDS = ["".join(letters) for length in (2, 3, 4) for letters in product("abcd", repeat=length)]
SMALL = {
    "encoder-decoder": BaseChoice("encoder-decoder", width=32, layers=1, heads=2, feedforward=64, dropout=0.0),
    "attentive-lstm": BaseChoice("attentive-lstm", width=48, layers=1, dropout=0.0),
}
CAUSAL = BaseChoice("gru", width=8, layers=1)


@pytest.fixture
def pairs(tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{word}\t{word[::-1]}\n" for word in WORDS))
    return file


def run_of(out, pairs, base: BaseChoice, steps: int, **settings) -> TrainRun:
    training = TrainingConfig(steps=steps, batch_tokens=400, learning_rate=5e-3, evaluate_every=steps)
    data = DataConfig(str(pairs), target="2", held_out=0.1)
    return TrainRun(str(out), data, TokenizerConfig("character"), LengthConfig(8), base, training, **settings)


@pytest.mark.parametrize("kind", ["encoder-decoder", pytest.param("attentive-lstm", marks=pytest.mark.slow)])
def test_words_are_turned_round(kind, pairs, tmp_path):
    result = train(run_of(tmp_path / "run", pairs, SMALL[kind], 250), quiet=True)
    assert "336 pairs" not in result.points.description and "of more than 8 tokens left out" in result.points.description
    model = load_translator(tmp_path / "run")
    test = [model.tokenizer.decode([row[:start]])[0] for row, start in zip(*_prompts(result.points), strict=True)]
    decoder = build_decoder(DecodingConfig("greedy"), model)
    said = [one.text for one in translate(model, test, decoder, rng=Seeded(0))]
    right = sum(ours == word[::-1] for ours, word in zip(said, test, strict=True)) / len(test)
    assert right > 0.5, f"{right:.0%} of words that were held out are right"


def _prompts(material: Material) -> tuple[list[list[int]], list[int]]:
    return material.test.tokens.tolist(), material.test.start.tolist()


@pytest.mark.parametrize(
    "objective",
    [
        ObjectiveConfig("eforcing", after_steps=3),
        ObjectiveConfig("scheduled-sampling", after_steps=3),
        ObjectiveConfig("scheduled-sampling", after_steps=3, form="steps"),
    ],
    ids=["eforcing", "two passes", "step by step"],
)
@pytest.mark.parametrize("kind", SMALL)
def test_every_objective_learns_from_pairs(kind, objective, pairs, tmp_path):
    result = train(run_of(tmp_path / "run", pairs, SMALL[kind], 6, objective=objective), quiet=True)
    assert result.record.steps == 6
    with pytest.raises(ValueError, match="not cut into chunks"):
        prepare(TrainRun("x", DataConfig(str(pairs), target="2"), length=LengthConfig(8, chunks=True)), rng=Seeded(0))


def test_sources_are_not_cut_into_prefixes(pairs, tmp_path):
    train(run_of(tmp_path / "run", pairs, SMALL["encoder-decoder"], 2), quiet=True)
    run = TiltRun(str(tmp_path / "energy"), contrast=ContrastConfig(prefixes=(1, 2)))
    with pytest.raises(ValueError, match="would cut sources"):
        tilt(str(tmp_path / "run"), run, quiet=True)


def test_a_causal_base_goes_on_from_its_sources(pairs, tmp_path):
    train(run_of(tmp_path / "run", pairs, CAUSAL, 4), quiet=True)
    model = load_translator(tmp_path / "run")
    assert model.prompts(["ab"]) == [[*model.tokenizer.encode(["ab"])[0], model.tokenizer.eos]]
    assert len(list(translate(model, ["ab", "cd"], build_decoder(DecodingConfig(), model), rng=Seeded(0)))) == 2
    with pytest.raises(ValueError, match="its data are pairs of texts"):
        model.read(["ab"])


def test_a_translator_is_measured_on_pairs(pairs, tmp_path, capsys):
    train(run_of(tmp_path / "run", pairs, SMALL["encoder-decoder"], 6), quiet=True)
    found = measured(capsys, str(tmp_path / "run"), "--data", str(pairs), "--target", "2")
    assert found["data"].endswith("336 pairs, 0 of them too long and left out")
    tilted = measured(capsys, str(tmp_path / "run"), "--data", str(pairs), "--target", "2", "--energy", "own", "--draws", "4")
    assert "saved_by_tilting" in tilted


def measured(capsys, *arguments: str) -> dict:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["measure", *arguments, "--json", "--quiet"])
    assert stop.value.code == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])
