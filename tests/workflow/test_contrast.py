"""Energies that a network learns: from the base's text or another, after prompts or without, resumed, used by all verbs."""

import math
import shutil
from dataclasses import replace

import pytest
import torch
from random_targets import random_automaton

from esscher.bases.network import build_base
from esscher.core.chunking import Chunking
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts
from esscher.core.storage import module_tensors
from esscher.core.target import Tilted
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.data.splits import evenly_spaced_rows
from esscher.data.tokenizers import train_tokenizer
from esscher.energies.config import EnergyConfig
from esscher.energies.serialization import load_energy
from esscher.hub import load_base, save_base
from esscher.networks.recurrent_config import LstmConfig
from esscher.networks.transformer_config import TransformerConfig
from esscher.objectives.noise_contrastive import NoiseContrast
from esscher.samplers.ancestral import draw
from esscher.training.config import DistilConfig, TrainingConfig
from esscher.workflow.config.distil import DistilRun, DistilTraining
from esscher.workflow.config.tilt import ContrastConfig, ContrastTraining, FitConfig, TiltRun
from esscher.workflow.config.train import TrainRun
from esscher.workflow.distil import DistilResult, distil_model
from esscher.workflow.model import load
from esscher.workflow.tilt import (
    ContrastResult,
    build_tilt_energy,
    draw_negatives,
    evaluation_subset,
    learnt_nothing,
    tilt_model,
    train_energy,
    untrained_loss,
)
from esscher.workflow.train import train_base

CHUNKS = Chunking(max_length=8, prompt_tokens=16)
SMALL = ContrastConfig(held_out=40, draws=400)
SHORT = ContrastTraining(steps=6, batch_size=8, evaluate_every=3, learning_rate=3e-3, warmup_steps=0)


def tilt(folder: str, run: TiltRun, *, resume: bool = False, chunking: Chunking | None = None):
    """What `tilt_model` learnt or fitted."""
    return tilt_model(load(folder, **vars(chunking or Chunking())), replace(run, resume=resume)).details


def distil(folder: str, energy: str, run: DistilRun, *, resume: bool = False) -> DistilResult:
    return distil_model(load(folder, energy), replace(run, resume=resume))


@pytest.fixture(scope="module")
def strings(tmp_path_factory) -> str:
    """A base that learnt too little from strings of a motif."""
    folder = tmp_path_factory.mktemp("contrast") / "strings"
    data = DataConfig("motif:101", size=300, length=6)
    base = TransformerConfig(width=16, layers=1, heads=2, feedforward=32)
    train_base(TrainRun(str(folder), data=data, base=base, training=TrainingConfig(steps=10)))
    return str(folder)


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> str:
    """A base of chunks of one long text."""
    folder = tmp_path_factory.mktemp("contrast") / "book"
    text = folder.parent / "book.txt"
    text.write_text("\n".join(f"the {a} cat saw the {b} dog and sat on the mat {a}" for a in range(12) for b in range(12)))
    run = TrainRun(
        str(folder),
        data=DataConfig(str(text), unit="document", split="position", held_out=0.2),
        tokenizer=TokenizerConfig("character"),
        length=LengthConfig(tokens=24, chunks=True),
        base=TransformerConfig(width=16, layers=1, heads=2, feedforward=32),
        training=TrainingConfig(steps=10),
    )
    train_base(run)
    return str(folder)


def test_a_network_learns_what_the_base_missed(strings, tmp_path):
    learns = replace(SHORT, steps=50, batch_size=64, evaluate_every=25, learning_rate=1e-2)
    run = TiltRun(out=str(tmp_path / "energy"), contrast=SMALL, training=learns)
    result = tilt(strings, run)
    assert isinstance(result, ContrastResult)
    measured = result.measured
    assert measured.reduction is not None and measured.tilted is not None and measured.reduction["token"].low > 0.02
    saved = load_energy(run.out)
    assert saved.log_z == measured.log_z and saved.config.kind == "bidirectional"
    model = load(strings, run.out)
    x = model.training_splits().test.rows(slice(0, 20))
    with torch.no_grad():
        assert torch.equal(model.target.energy(x), result.target.energy(x))


def test_a_stopped_run_goes_on_to_the_same_weights(strings, tmp_path):
    whole = TiltRun(out=str(tmp_path / "whole"), contrast=replace(SMALL, stored=2, sequences=100), training=SHORT)
    tilt(strings, whole)
    other = replace(whole, out=str(tmp_path / "stopped"))
    tilt(strings, other)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "stopped" / name).unlink()
    checkpoints = sorted((tmp_path / "stopped" / "checkpoints").glob("step-*"))
    shutil.rmtree(checkpoints[-1])
    (tmp_path / "stopped" / "negatives" / "00000.safetensors").unlink()
    tilt(strings, other, resume=True)
    first, second = (module_tensors(load_energy(run.out).energy()) for run in (whole, other))
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(ValueError, match=r"contrast.negatives = 1, and is resumed with contrast.negatives = 2"):
        tilt(strings, replace(other, contrast=replace(other.contrast, negatives=2)), resume=True)
    kept = (tmp_path / "stopped" / "tilt.yaml").read_text()
    with pytest.raises(FileExistsError, match=r"already holds an energy. Nothing was changed; replace it with --overwrite"):
        tilt(strings, replace(other, training=replace(SHORT, steps=7)))
    assert (tmp_path / "stopped" / "tilt.yaml").read_text() == kept


def test_draws_that_judged_another_energy_are_made_anew(strings, tmp_path):
    """What is left of another run's `judge` would give the new energy the log Z of the old one."""
    run = TiltRun(out=str(tmp_path / "first"), contrast=SMALL, training=SHORT)
    first = tilt(strings, run)
    shutil.copytree(tmp_path / "first" / "judge", tmp_path / "left" / "judge")
    second, fresh = (
        tilt(strings, replace(run, training=replace(SHORT, steps=3), out=str(tmp_path / name))) for name in ("left", "none")
    )
    assert second.measured.log_z == fresh.measured.log_z != first.measured.log_z


def test_chunks_have_prompts_and_the_energy_remembers_how_text_was_cut(book, tmp_path):
    run = TiltRun(out=str(tmp_path / "energy"), contrast=SMALL, training=SHORT)
    result = tilt(book, run, chunking=CHUNKS)
    assert isinstance(result, ContrastResult) and result.measured.draws is not None
    assert result.measured.draws.log_weight.shape == (6, 64)  # 400 draws suffice for six prompts
    model = load(book, run.out)
    assert model.chunking == CHUNKS and model.base.space.max_length == 8 and model.base.space.eos is None
    made = model.data.encode(["the 1 cat saw the 2 dog and sat on the mat"])
    assert made.x.start.tolist() == [16] and made.x.stop.tolist() == [24]
    with pytest.raises(ValueError, match="was fitted on the base"):
        load(book, run.out, max_length=9)


def test_a_saved_model_is_loaded_with_its_energy(strings, book, tmp_path):
    learnt = load(book, **vars(CHUNKS)).tilt(contrast=SMALL, training=SHORT)
    fitted = load(strings).tilt(want=["contains:11=0.3"], fit=FitConfig(draws=200))
    for name, tilted in {"learnt": learnt, "fitted": fitted, "self": load(strings, "self")}.items():
        x, before = tilted.training_splits().test.rows(slice(0, 20)), tilted
        for copy in (tmp_path / name, tmp_path / f"{name}-again"):  # as tilted, and as loaded
            before.save(copy)
            before = load(copy, "self" if name == "self" else copy / "energy")
            with torch.no_grad():
                assert torch.equal(before.target.energy(x), tilted.target.energy(x)), name
                assert torch.equal(before.target.log_score(x), tilted.target.log_score(x)), name
            assert before.chunking == tilted.chunking
    rounded = load(tmp_path / "fitted", tmp_path / "fitted" / "energy", dtype="bfloat16")  # the energy knows its base before
    assert rounded.is_tilted and next(rounded.base.parameters()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"only energies that `tilt` made can be saved. Nothing was saved"):
        load(strings).tilt(lambda x: x.lengths.double()).save(tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_a_model_is_served_with_settings_as_keywords(strings):
    with pytest.raises(ValueError, match="num_candidates must be above 0, not 0"):
        load(strings).serve(num_candidates=0)
    with pytest.raises(ValueError, match=r"Other machines can reach 0.0.0.0, and there is no token"):
        load(strings).explore(host="0.0.0.0", prompts=["1"])
    with pytest.raises(TypeError, match="candidates"):
        load(strings).serve(candidates=1)


def test_a_base_of_chunks_remembers_what_was_given(book):
    model = load(book)
    assert model.chunking.prompt_tokens == 0 and model.prompt_tokens == 0 and model.base.space.eos is None
    assert set(model.data.encode(["the cat saw the dog and sat on the mat, twice"]).x.lengths.tolist()) == {24}


def test_a_conditional_energy_is_distilled_after_prompts_of_its_text(book, tmp_path):
    run = TiltRun(out=str(tmp_path / "energy"), contrast=SMALL, training=SHORT)
    tilt(book, run, chunking=CHUNKS)
    config = DistilConfig(draws=60, candidates=80, evaluation_draws=40, prompts=5)
    student = DistilRun(str(tmp_path / "student"), distil=config, training=DistilTraining(steps=2))
    result = distil(book, run.out, student)
    assert result.distilled.draws.x.start.unique().tolist() == [16] and len(result.distilled.draws.log_weight) == 5
    assert load_base(student.out)[0].space.max_length == 8


def test_another_text_and_a_network_of_its_own(strings, tmp_path):
    text = tmp_path / "more.txt"
    text.write_text("\n".join(f"{number:06b}" for number in range(64)))
    energy = EnergyConfig(network=TransformerConfig(width=8, layers=1, heads=2, feedforward=16), bound=2.0)
    run = TiltRun(out=str(tmp_path / "energy"), data=str(text), energy=energy, contrast=SMALL, training=SHORT)
    tilt(strings, run)
    config = load_energy(run.out).config
    assert config.network is not None and config.network.width == 8 and config.bound == 2.0


def test_an_energy_may_start_from_a_larger_model(strings, tmp_path):
    larger = TrainRun(
        str(tmp_path / "larger"),
        data=DataConfig("motif:101", size=300, length=6),
        base=TransformerConfig(width=24, layers=2, heads=2, feedforward=32),
        training=TrainingConfig(steps=3),
    )
    train_base(larger)
    run = TiltRun(out=str(tmp_path / "energy"), start=larger.out, contrast=SMALL, training=SHORT)
    tilt(strings, run)
    config = load_energy(run.out).config
    assert config.network is not None and config.network.width == 24


def test_the_kind_of_energy_that_a_base_allows(strings):
    from esscher.energies.network import build_energy

    base = load(strings).base
    recurrent = build_base(LstmConfig(width=4, layers=1), base.space, rng=SeededRng(0))
    drawn = EnergyConfig(network=TransformerConfig(width=8, heads=2, feedforward=8))
    for start, config, kind in (
        (base, EnergyConfig(), "bidirectional"), (recurrent, EnergyConfig(), "unidirectional"), (recurrent, drawn,
        "bidirectional"),
    ):  # fmt: skip
        assert build_energy(config, start, rng=SeededRng(0)).config.kind == kind
    own_run = TiltRun(energy=drawn)
    assert build_tilt_energy(load(strings), drawn, own_run, 9).config.network.max_positions == 10  # and the beginning


def test_rows_are_chosen_evenly_and_judged_as_draws_allow(book):
    model = load(book, **vars(CHUNKS))
    sets = model.training_splits()
    assert len(evenly_spaced_rows(sets.train, 7)) == 7 and evenly_spaced_rows(sets.train, None) is sets.train
    assert len(evenly_spaced_rows(sets.train, 10**6)) == len(sets.train)
    x, units = evaluation_subset(sets, 3 * 64)
    assert len(x) == 3 and all(len(count) == 3 for count in units.values())


def test_sequences_without_prompts_have_negatives_of_their_own(strings):
    model = load(strings)
    data = model.training_splits().train.rows(slice(0, 50))
    table = draw_negatives(model.base, "some", data, 3, folder=None, digest="digest", rng=SeededRng(0))
    assert table.log_base.shape == (1, 150) and len(table.x) == 150


def test_bad_settings_are_refused(strings, tmp_path):
    with pytest.raises(ValueError, match="2 stored negatives are too few"):
        ContrastConfig(negatives=3, stored=2)
    with pytest.raises(ValueError, match="prefixes cannot be mixed"):
        ContrastConfig(stored=2, prefixes=(1,))
    with pytest.raises(ValueError, match="held_out is at least 1"):
        ContrastConfig(held_out=0)
    with pytest.raises(ValueError, match="prompt_tokens is at least 0"):
        Chunking(prompt_tokens=-1)
    base, _ = load_base(strings)
    tokenizer = train_tokenizer("character", ["01"])
    plain = tmp_path / "plain"
    save_base(plain, base, None)
    with pytest.raises(ValueError, match="does not say what it was trained on"):
        tilt(str(plain), TiltRun(out=str(tmp_path / "energy")))
    with pytest.raises(ValueError, match="holds no tokenizer"):
        load(plain).tokenizer.decode([[0]])
    assert tokenizer.vocab_size


def test_training_never_moves_the_base(strings):
    model = load(strings)
    before = {name: tensor.clone() for name, tensor in module_tensors(model.base).items()}
    sets = model.training_splits()
    from esscher.energies.network import build_energy

    energy = build_energy(EnergyConfig(), model.base, rng=SeededRng(0))
    few = replace(sets, test=sets.test.rows(slice(0, 50)), units={"token": sets.test.lengths[:50]})
    train_energy(model.base, energy, few, SMALL, SHORT)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module_tensors(model.base).items())


def test_the_loss_stands_beside_that_of_no_energy():
    """With E = 0 everywhere, an update sees exactly this loss."""
    prompts, base = empty_prompts(1), random_automaton(Space(3, 4, eos=0))
    data = draw(base, prompts, 40, rng=SeededRng(0))[0]
    for form, negatives in (("binary", 1), ("binary", 4), ("ranking", 1), ("ranking", 3)):
        loss = NoiseContrast(negatives=negatives, form=form)(Tilted(base), data, rng=SeededRng(1))
        assert float(loss.value) == pytest.approx(untrained_loss(ContrastConfig(negatives, form)))
    assert untrained_loss(ContrastConfig()) == pytest.approx(2 * math.log(2))
    above, below = (Estimate(value, value - 0.01, value + 0.01, 0.95, 50, "loss") for value in (1.38, 1.3))
    (note,) = learnt_nothing(above, ContrastConfig())
    assert "has learnt nothing" in note and "1.386" in note and not learnt_nothing(below, ContrastConfig())
