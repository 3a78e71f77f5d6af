"""Images from end to end: every kind learns, its folder draws, completes, is measured and tilted; classes; errors."""

import json

import numpy as np
import pytest
import torch
from calling import answer, call
from PIL import Image

from esscher.bases.network import NetworkBase
from esscher.data.images import Pictures, read_images
from esscher.hub import load_base
from esscher.randomness import Seeded
from esscher.samplers.ancestral import Ancestral
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig, LengthConfig
from esscher.settings.images import ImageConfig
from esscher.settings.objective import ObjectiveConfig
from esscher.settings.train import TrainRun, from_dict, to_dict
from esscher.settings.training import TrainingConfig
from esscher.target import Tilted
from esscher.verbs.models import load_model
from esscher.verbs.paint import paint_images
from esscher.verbs.train import train

TINY = {
    "pixelcnn": BaseChoice("pixelcnn", width=8, layers=1, first=3),
    "gated-pixelcnn": BaseChoice("gated-pixelcnn", width=8, layers=1, first=3),
    "pixelcnn++": BaseChoice("pixelcnn++", width=4, layers=1, dropout=0.0, scales=2, mixtures=2),
    "transformer": BaseChoice("transformer", width=8, layers=1, heads=2, feedforward=16),
}
TRAINING = TrainingConfig(steps=12, batch_size=16, learning_rate=1e-2, evaluate_every=6)
IMAGES = ImageConfig(4, most=200)


def run_of(folder, kind, **more) -> TrainRun:
    return TrainRun(str(folder), DataConfig("digits"), base=TINY[kind], training=TRAINING, images=IMAGES, **more)


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """A model of images, and what is known of it."""
    return train(run_of(tmp_path_factory.mktemp("images") / "gated", "gated-pixelcnn"), quiet=True)


@pytest.mark.parametrize("kind", TINY)
def test_every_kind_learns_and_its_folder_is_the_same_model(tmp_path, kind):
    found = train(run_of(tmp_path, kind, objective=ObjectiveConfig("eforcing", after_steps=10)), quiet=True)
    assert found.measured["bits per dimension"].value < 2.0
    nats = found.measured["bits per dimension"].value * 64 * np.log(2)
    assert found.measured["nats per image"].value == pytest.approx(nats)
    base, tokenizer = load_base(tmp_path)
    assert tokenizer is None and load_model(tmp_path).codec == found.points.codec
    with torch.no_grad():
        assert torch.equal(base.log_probs(found.points.test), found.base.eval().log_probs(found.points.test))
    assert "esscher sample" in (tmp_path / "README.md").read_text() or kind == "transformer"


def test_settings_travel(tmp_path):
    run = run_of(tmp_path, "pixelcnn++")
    assert from_dict(json.loads(json.dumps(to_dict(run)))) == run and run.of_images
    assert not TrainRun("x").of_images and TrainRun("x", images=ImageConfig(2)).of_images
    with pytest.raises(ValueError, match="Images have no tokenizer"):
        run_of(tmp_path, "pixelcnn", length=LengthConfig(12))
    with pytest.raises(ValueError, match=r"The data have image = \(8, 8, 1\)"):
        train(TrainRun(str(tmp_path), DataConfig("digits"), base=BaseChoice("pixelcnn", image=(4, 4, 1))), quiet=True)


def test_the_verbs(gated, capsys, tmp_path):
    folder, energy = str(gated.folder), str(tmp_path / "energy")
    measured = answer(capsys, "measure", folder, "--data", "digits")
    assert measured["bits"][0]["bits per dimension"]["value"] == pytest.approx(gated.measured["bits per dimension"].value)
    assert measured["measured_on"] == "digits: 81 images of 8 x 8 pixels, 1 channel"
    drawn = answer(capsys, "sample", folder, "--draws", "9")
    assert len(drawn["samples"]) == 9
    with Image.open(drawn["grid"]) as grid:
        assert grid.size[0] == grid.size[1] >= 500 and grid.mode == "L"
    answer(
        capsys, "tilt", folder, "--out", energy, "--training.steps", "3", "--contrast.draws", "60", "--contrast.held-out", "20"
    )
    tilted = answer(capsys, "measure", folder, "--data", "digits", "--energy", energy, "--draws", "40")
    assert [row["model"] for row in tilted["bits"]] == ["base", "tilted"] and "log_z" in tilted
    out = str(tmp_path / "completed.png")
    completed = answer(
        capsys, "sample", folder, "--energy", energy, "--pool", "4", "--draws", "2", "--complete", "digits", "--rows", "6",
        "--images", "3", "--out", out,
    )  # fmt: skip
    assert completed["grid"] == out and [row["prompt"] for row in completed["samples"]] == [0, 0, 1, 1, 2, 2]


def test_training_goes_on_with_the_codec_of_its_folder(gated, tmp_path):
    more = TrainRun(
        str(tmp_path), DataConfig("digits"), training=TrainingConfig(steps=2, batch_size=16), start=str(gated.folder)
    )
    assert train(more, quiet=True).points.codec == gated.points.codec


def test_wrong_requests_are_told(gated, capsys):
    folder = str(gated.folder)
    for arguments, message in (
        (["sample", folder, "--prompt", "a"], "Images have no text for a prompt"),
        (["sample", folder, "--classes", "3"], "The model knows 0 classes"),
        (["sample", folder, "--complete", "digits", "--rows", "8"], "0 to 7 may be given, not 8"),
        (["measure", folder, "--data", "digits", "--steps", "2"], "Images are measured as they are"),
    ):
        code, _, said = call(capsys, *arguments)
        assert code and message in said, (arguments, said)


def test_completed_images_keep_what_was_given(gated):
    model = load_model(gated.folder)
    some = read_images("digits")[0].rows(slice(0, 5))
    shown, draws = paint_images(model, model.target, Ancestral(), some, 5, 3, rng=Seeded(0))
    shown = shown.reshape(5, 5, 8, 8, 1)
    codec = model.pictures
    assert np.array_equal(shown[:, 0], codec.decode(codec.encode(some)))
    for column in range(1, 5):
        assert np.array_equal(shown[:, column, :5], shown[:, 0, :5])
    assert (shown[:, 1, 5:] == 128).all() and not np.array_equal(shown[:, 2], shown[:, 3])
    assert isinstance(gated.base, NetworkBase)
    with torch.no_grad():
        known = model.base.log_probs(draws.x).sum(-1).double()
    assert torch.allclose(draws.log_base.view(-1), known, atol=1e-4)


def test_classes_are_given(tmp_path, capsys):
    images = ImageConfig(binarised="threshold", classes=True, most=200)
    run = TrainRun(str(tmp_path), DataConfig("digits"), base=TINY["gated-pixelcnn"], training=TRAINING, images=images)
    found = train(run, quiet=True)
    assert found.base.config.classes == 10 and found.points.test.start.tolist() == [1] * len(found.points.test)
    drawn = answer(capsys, "sample", str(tmp_path), "--draws", "2", "--classes", "3", "--classes", "7")
    assert [row["prompt"] for row in drawn["samples"]] == [0, 0, 1, 1]
    model = load_model(tmp_path)
    labelled = Pictures(np.zeros((2, 8, 8, 1), np.uint8), np.array([1, 2]), "two")
    shown, _ = paint_images(model, Tilted(model.base), Ancestral(), labelled, 7, 1, rng=Seeded(0))
    assert shown.shape == (6, 8, 8, 1)
    with pytest.raises(ValueError, match="knows no classes"):
        train(TrainRun(str(tmp_path / "other"), DataConfig("digits"), base=TINY["transformer"], images=images), quiet=True)
