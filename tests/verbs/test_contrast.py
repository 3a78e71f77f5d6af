"""Energies that a network learns: from the base's text or another, after prompts or without, resumed, used by all verbs."""

import shutil
from dataclasses import replace

import pytest
import torch

from esscher.cut import Cut
from esscher.data.tokenizers import train_tokenizer
from esscher.energies.saved import load_energy
from esscher.hub import load_base, save_base
from esscher.randomness import Seeded
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig, LengthConfig, TokenizerConfig
from esscher.settings.distil import DistilConfig, DistilRun, DistilTraining
from esscher.settings.tilt import ContrastConfig, ContrastTraining, EnergyChoice, TiltRun
from esscher.settings.train import TrainRun
from esscher.settings.training import TrainingConfig
from esscher.storage import module_tensors
from esscher.verbs.contrast import LearntEnergy, Sets, _Store, judged, learn_energy
from esscher.verbs.distil import make_student
from esscher.verbs.models import load_model
from esscher.verbs.subsets import evenly
from esscher.verbs.tilt import read_sets, tilt
from esscher.verbs.train import train

SMALL = ContrastConfig(held_out=40, draws=400)
SHORT = ContrastTraining(steps=6, batch_size=8, evaluate_every=3, learning_rate=3e-3, warmup=0)


@pytest.fixture(scope="module")
def strings(tmp_path_factory) -> str:
    """A base that learnt too little from strings of a motif."""
    folder = tmp_path_factory.mktemp("contrast") / "strings"
    data = DataConfig("motif:101", size=300, length=6)
    base = BaseChoice("transformer", width=16, layers=1, heads=2, feedforward=32)
    train(TrainRun(str(folder), data, base=base, training=TrainingConfig(steps=10)), quiet=True)
    return str(folder)


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> str:
    """A base of chunks of one long text."""
    folder = tmp_path_factory.mktemp("contrast") / "book"
    text = folder.parent / "book.txt"
    text.write_text("\n".join(f"the {a} cat saw the {b} dog and sat on the mat {a}" for a in range(12) for b in range(12)))
    run = TrainRun(
        str(folder),
        DataConfig(str(text), unit="document", split="place", held_out=0.2),
        TokenizerConfig("character"),
        LengthConfig(tokens=24, chunks=True),
        BaseChoice("transformer", width=16, layers=1, heads=2, feedforward=32),
        TrainingConfig(steps=10),
    )
    train(run, quiet=True)
    return str(folder)


def test_a_network_learns_what_the_base_missed(strings, tmp_path):
    learns = replace(SHORT, steps=50, batch_size=64, evaluate_every=25, learning_rate=1e-2)
    run = TiltRun(str(tmp_path / "energy"), contrast=SMALL, training=learns)
    found = tilt(strings, run, quiet=True)
    assert isinstance(found, LearntEnergy)
    measured = found.measured
    assert measured.saved is not None and measured.tilted is not None and measured.saved["token"].low > 0.02
    saved = load_energy(run.out)
    assert saved.log_z == measured.log_z and saved.config.reader == "bidirectional"
    model = load_model(strings, run.out)
    x = read_sets(model, None).test.rows(slice(0, 20))
    with torch.no_grad():
        assert torch.equal(model.target.energy(x), found.target.energy(x))


def test_a_stopped_run_goes_on_to_the_same_weights(strings, tmp_path):
    whole = TiltRun(str(tmp_path / "whole"), contrast=replace(SMALL, stored=2, sequences=100), training=SHORT)
    tilt(strings, whole, quiet=True)
    other = replace(whole, out=str(tmp_path / "stopped"))
    tilt(strings, other, quiet=True)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "stopped" / name).unlink()
    checkpoints = sorted((tmp_path / "stopped" / "checkpoints").glob("step-*"))
    shutil.rmtree(checkpoints[-1])
    (tmp_path / "stopped" / "negatives" / "00000.safetensors").unlink()
    tilt(strings, other, resume=True, quiet=True)
    first, second = (module_tensors(load_energy(run.out).energy()) for run in (whole, other))
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(ValueError, match=r"contrast.negatives = 1, and is resumed with contrast.negatives = 2"):
        tilt(strings, replace(other, contrast=replace(other.contrast, negatives=2)), resume=True, quiet=True)
    kept = (tmp_path / "stopped" / "tilt.yaml").read_text()
    with pytest.raises(FileExistsError, match="Nothing was trained or changed"):
        tilt(strings, replace(other, training=replace(SHORT, steps=7)), quiet=True)
    assert (tmp_path / "stopped" / "tilt.yaml").read_text() == kept


def test_chunks_have_prompts_and_the_energy_remembers_how_text_was_cut(book, tmp_path):
    run = TiltRun(str(tmp_path / "energy"), contrast=SMALL, training=SHORT, max_length=8, given=16)
    found = tilt(book, run, quiet=True)
    assert isinstance(found, LearntEnergy) and found.measured.draws is not None
    assert found.measured.draws.log_weight.shape == (6, 64)  # 400 draws suffice for six prompts
    model = load_model(book, run.out)
    assert model.cut == Cut(8, None, 16) and model.base.space.max_length == 8 and model.base.space.eos is None
    made = model.read(["the 1 cat saw the 2 dog and sat on the mat"])
    assert made.x.start.tolist() == [16] and made.x.stop.tolist() == [24]
    with pytest.raises(ValueError, match="was fitted on the base"):
        load_model(book, run.out, Cut(max_length=9))


def test_a_base_of_chunks_remembers_what_was_given(book):
    model = load_model(book)
    assert model.cut.given == 0 and model.given == 0 and model.base.space.eos is None
    assert set(model.read(["the cat saw the dog and sat on the mat, twice"]).x.lengths.tolist()) == {24}


def test_a_conditional_energy_is_distilled_after_prompts_of_its_text(book, tmp_path):
    run = TiltRun(str(tmp_path / "energy"), contrast=SMALL, training=SHORT, max_length=8, given=16)
    tilt(book, run, quiet=True)
    config = DistilConfig(draws=60, candidates=80, judged=40, prompts=5)
    distil = DistilRun(run.out, str(tmp_path / "student"), config, DistilTraining(steps=2))
    found = make_student(book, distil, quiet=True)
    assert found.distilled.draws.x.start.unique().tolist() == [16] and len(found.distilled.draws.log_weight) == 5
    assert load_base(distil.out)[0].space.max_length == 8


def test_another_text_and_a_network_of_its_own(strings, tmp_path):
    text = tmp_path / "more.txt"
    text.write_text("\n".join(f"{number:06b}" for number in range(64)))
    energy = EnergyChoice(width=8, layers=1, heads=2, feedforward=16, bound=2.0)
    run = TiltRun(str(tmp_path / "energy"), data=str(text), energy=energy, contrast=SMALL, training=SHORT)
    tilt(strings, run, quiet=True)
    config = load_energy(run.out).config
    assert config.network is not None and config.network.width == 8 and config.bound == 2.0


def test_an_energy_may_start_from_a_larger_model(strings, tmp_path):
    larger = TrainRun(
        str(tmp_path / "larger"),
        DataConfig("motif:101", size=300, length=6),
        base=BaseChoice("transformer", width=24, layers=2, heads=2, feedforward=32),
        training=TrainingConfig(steps=3),
    )
    train(larger, quiet=True)
    run = TiltRun(str(tmp_path / "energy"), energy=EnergyChoice(start=larger.out), contrast=SMALL, training=SHORT)
    tilt(strings, run, quiet=True)
    config = load_energy(run.out).config
    assert config.network is not None and config.network.width == 24


def test_the_reader_that_a_base_allows():
    assert EnergyChoice().resolve(both_sides=False, positions=9).reader == "unidirectional"
    assert EnergyChoice().resolve(both_sides=True, positions=9).reader == "bidirectional"
    assert EnergyChoice(encoder="there").resolve(both_sides=True, positions=9).reader == "encoder"
    own = EnergyChoice(width=8, heads=2, dropout=0.1).resolve(both_sides=False, positions=9)
    assert own.reader == "bidirectional" and own.network is not None and own.dropout is None
    assert (own.network.width, own.network.max_positions, own.network.dropout) == (8, 9, 0.1)


def test_rows_are_chosen_evenly_and_judged_as_draws_allow(book):
    model = load_model(book, cut=Cut(8, None, 16))
    sets = read_sets(model, None)
    assert len(evenly(sets.train, 7)) == 7 and evenly(sets.train, None) is sets.train
    assert len(evenly(sets.train, 10**6)) == len(sets.train)
    x, units = judged(sets, 3 * 64)
    assert len(x) == 3 and all(len(count) == 3 for count in units.values())


def test_sequences_without_prompts_have_negatives_of_their_own(strings):
    model = load_model(strings)
    data = read_sets(model, None).train.rows(slice(0, 50))
    table = _Store(model.base, None, print, Seeded(0))("some", data, 3)
    assert table.log_base.shape == (1, 150) and len(table.x) == 150


def test_bad_settings_are_refused(strings, tmp_path):
    with pytest.raises(ValueError, match="2 stored negatives are too few"):
        ContrastConfig(negatives=3, stored=2)
    with pytest.raises(ValueError, match="prefixes cannot be mixed"):
        ContrastConfig(stored=2, prefixes=(1,))
    with pytest.raises(ValueError, match="held_out is at least 1"):
        ContrastConfig(held_out=0)
    with pytest.raises(ValueError, match="0 tokens or more"):
        Cut(given=-1)
    base, _ = load_base(strings)
    tokenizer = train_tokenizer("character", ["01"])
    plain = tmp_path / "plain"
    save_base(plain, base, None)
    with pytest.raises(ValueError, match="does not tell what it was trained on"):
        tilt(str(plain), TiltRun(str(tmp_path / "energy")), quiet=True)
    with pytest.raises(ValueError, match="holds no tokenizer"):
        load_model(plain).read(["01"])
    assert tokenizer.vocab_size


def test_training_never_moves_the_base(strings):
    model = load_model(strings)
    before = {name: tensor.clone() for name, tensor in module_tensors(model.base).items()}
    sets = read_sets(model, None)
    from esscher.energies.building import build_energy
    from esscher.energies.config import EnergyConfig

    energy = build_energy(EnergyConfig(), model.base, rng=Seeded(0))
    few = Sets(sets.train, sets.validation, sets.test.rows(slice(0, 50)), {"token": sets.test.lengths[:50]})
    learn_energy(model.base, energy, few, SMALL, SHORT, quiet=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module_tensors(model.base).items())
