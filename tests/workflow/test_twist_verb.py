"""A twist in the folder of its energy: `tilt --twist` learns it, loading finds it, and particles draw with it. The base is a
model of Hugging Face."""

import shutil

import pytest
import torch
from causal_models import save_text_model
from cli_calls import answer, call

import esscher
from esscher.core.progress import progress_as
from esscher.energies.config import TwistConfig
from esscher.energies.twist import TwistedBase
from esscher.energies.twist_folder import TWIST_CONFIG
from esscher.samplers.twists import ParticleSIR
from esscher.training.config import TwistLearningConfig, TwistTraining
from esscher.workflow.config.tilt import FitConfig

TRAINING = TwistTraining(steps=10, evaluate_every=10)
FEW = TwistLearningConfig(128, rounds=2, evaluation_draws=40, network=TwistConfig(8), training=TRAINING)
PARTICLES = ParticleSIR(8, block=1)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a base, and an energy that has a twist."""
    root = tmp_path_factory.mktemp("twist")
    save_text_model(root / "base")
    with progress_as("quiet"):
        model = esscher.load(root / "base")
        model.tilt(want={"contains:ab": 0.6}, out=str(root / "energy"), fit=FitConfig(draws=200), twist=FEW)
    return root


@pytest.fixture
def uses(monkeypatch):
    """Counts the calls of a twist's proposal."""
    calls, begin = [], TwistedBase.begin

    def counted(self, prompts):
        calls.append(len(prompts))
        return begin(self, prompts)

    monkeypatch.setattr(TwistedBase, "begin", counted)
    return calls


def test_a_loaded_model_draws_particles_with_the_twist_of_its_energy(root, uses):
    model = esscher.load(root / "base", energy=root / "energy")
    assert model.twist is not None and model.twist.origin.cost == 128
    assert model.twist.twist.sizes.hidden == 16 and model.twist.twist.config.memory == 0  # hidden vectors of GPT-2
    result = model.sample(["a"], draws=2, sampler=PARTICLES)
    assert uses and len(result.texts) == 2
    uses.clear()
    model.sample(["a"], draws=2)
    assert not uses  # a pool stays the default


def test_a_model_without_a_twist_fits_one(root, uses):
    bare = root / "bare"
    shutil.copytree(root / "energy", bare)
    for name in ("twist_config.json", "twist.safetensors", "esscher-manifest.json"):
        (bare / name).unlink()
    model = esscher.load(root / "base", energy=bare)
    model.sample(["a"], draws=1, sampler=PARTICLES)
    assert model.twist is None and not uses
    with progress_as("quiet"):
        learnt = model.learn_twist(64, rounds=1, evaluation_draws=20, network=TwistConfig(8), training=TRAINING)
    learnt.sample(["a"], draws=1, sampler=PARTICLES)
    assert uses and esscher.load(root / "base", energy=bare).twist is not None  # it is saved where its energy is


def test_a_twist_survives_saving_the_model_elsewhere(root, tmp_path):
    model = esscher.load(root / "base", energy=root / "energy")
    model.save(tmp_path / "copy")
    again = esscher.load(tmp_path / "copy", energy=tmp_path / "copy" / "energy").twist
    assert again is not None and again.twist.offset == model.twist.twist.offset
    for one, other in zip(again.twist.parameters(), model.twist.twist.parameters(), strict=True):
        assert torch.equal(one, other)
    assert model.untilted().twist is None


@pytest.mark.parametrize("changed", ["base", "energy", "weights"])
def test_a_twist_of_something_else_is_refused(root, tmp_path, changed):
    folder = tmp_path / "energy"
    shutil.copytree(root / "energy", folder)
    if changed == "weights":
        (folder / "twist.safetensors").write_bytes(b"no weights")
    else:
        file, key = folder / TWIST_CONFIG, f'"{changed}_digest": "'
        text = file.read_text()
        place = text.index(key) + len(key)
        file.write_text(text[:place] + ("1" if text[place] == "0" else "0") + text[place + 1 :])
        (folder / "esscher-manifest.json").unlink()
    with pytest.raises(
        (ValueError, RuntimeError), match="not what was written" if changed == "weights" else f"for the {changed}"
    ):
        esscher.load(root / "base", energy=folder)


def test_the_command_line_learns_resumes_and_replaces_a_twist(root, tmp_path, capsys):
    out, flags = str(tmp_path / "energy"), ["--want", "contains:ab=0.6", "--fit.draws", "200"]
    small = ["--twist.rounds", "1", "--twist.training.steps", "10", "--twist.evaluation-draws", "20"]
    arguments = ["tilt", str(root / "base"), "--out", out, *flags, *small]
    first = answer(capsys, *arguments, "--twist", "64")
    assert first["drawn_for_the_twist"] == 64
    again = answer(capsys, *arguments, "--twist", "64", "--resume")
    assert again["twist_ess"] == first["twist_ess"]
    answer(capsys, *arguments[: -len(small)], "--overwrite")  # without a twist: the old one is gone
    assert esscher.load(root / "base", energy=out).twist is None
    code, _, err = call(capsys, *arguments, "--twist", "10", "--overwrite")
    assert code != 0 and "needs 64 sequences" in err


def test_only_a_tilted_model_has_a_twist(root):
    with pytest.raises(ValueError, match="not tilted"):
        esscher.load(root / "base").learn_twist(256)
