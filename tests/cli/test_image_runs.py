"""Images from end to end: every kind learns, its folder draws, completes, is measured and tilted; classes; errors."""

import json

import numpy as np
import pytest
import torch
from cli_calls import answer, call
from marks import slow_except
from PIL import Image

from esscher.bases.network import NetworkBase
from esscher.core.config import from_dict, to_dict
from esscher.core.randomness import SeededRng
from esscher.data.config import DataConfig, ImageConfig, LengthConfig
from esscher.data.images import ImageArray, read_images
from esscher.hub import load_base
from esscher.networks.pixelcnn_config import GatedPixelCnnConfig, PixelCnnConfig, PixelCnnPlusPlusConfig
from esscher.networks.transformer_config import TransformerConfig
from esscher.objectives.config import EForcingConfig
from esscher.samplers.ancestral import Ancestral
from esscher.training.config import TrainingConfig
from esscher.workflow.config.sample import SampleConfig
from esscher.workflow.config.train import TrainRun
from esscher.workflow.model import load
from esscher.workflow.sample import sampling_target
from esscher.workflow.train import train_base

TINY = {
    "pixelcnn": PixelCnnConfig(width=8, layers=1, first_kernel_size=3),
    "gated-pixelcnn": GatedPixelCnnConfig(width=8, layers=1, first_kernel_size=3),
    "pixelcnn++": PixelCnnPlusPlusConfig(width=4, layers=1, dropout=0.0, scales=2, mixtures=2),
    "transformer": TransformerConfig(width=8, layers=1, heads=2, feedforward=16),
}
TRAINING = TrainingConfig(steps=12, batch_size=16, learning_rate=1e-2, evaluate_every=6)
IMAGES = ImageConfig(4, most=200)


def run_of(folder, kind, **more) -> TrainRun:
    return TrainRun(str(folder), data=DataConfig("digits"), base=TINY[kind], training=TRAINING, images=IMAGES, **more)


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """A model of images, and what is known of it."""
    return train_base(run_of(tmp_path_factory.mktemp("images") / "gated", "gated-pixelcnn"))


@pytest.mark.parametrize("kind", slow_except(["gated-pixelcnn", "transformer"], TINY))
def test_every_kind_learns_and_its_folder_is_the_same_model(tmp_path, kind):
    result = train_base(run_of(tmp_path, kind, objective=EForcingConfig(after_steps=10)))
    assert result.measured["bits per dimension"].value < 2.0
    nats = result.measured["bits per dimension"].value * 64 * np.log(2)
    assert result.measured["nats per image"].value == pytest.approx(nats)
    base, tokenizer = load_base(tmp_path)
    assert tokenizer is None and load(tmp_path).images == result.splits.processor
    with torch.no_grad():
        assert torch.equal(base.log_probs(result.splits.test), result.base.eval().log_probs(result.splits.test))
    assert "esscher sample" in (tmp_path / "README.md").read_text() or kind == "transformer"


def test_settings_travel(tmp_path):
    run = run_of(tmp_path, "pixelcnn++")
    assert from_dict(TrainRun, json.loads(json.dumps(to_dict(run)))) == run and run.reads_images
    assert not TrainRun("x").reads_images and TrainRun("x", images=ImageConfig(2)).reads_images
    with pytest.raises(ValueError, match="Images have no tokenizer"):
        run_of(tmp_path, "pixelcnn", length=LengthConfig(12))
    with pytest.raises(ValueError, match=r"The data have image = \(8, 8, 1\)"):
        train_base(TrainRun(str(tmp_path), data=DataConfig("digits"), base=PixelCnnConfig(image=(4, 4, 1))))


def test_the_verbs(gated, capsys, tmp_path):
    folder, energy = str(gated.folder), str(tmp_path / "energy")
    measured = answer(capsys, "measure", folder, "--data", "digits")
    assert measured["bits"][0]["bits per dimension"]["value"] == pytest.approx(gated.measured["bits per dimension"].value)
    assert measured["data"] == "digits: 81 images of 8 x 8 pixels, 1 channel"
    assert measured["measured_on"] == "81 sequences (5,184 dimensions, 81 images)"
    drawn = answer(capsys, "sample", folder, "--draws", "9")
    assert len(drawn["samples"]) == 9
    with Image.open(drawn["out"]) as grid:
        assert grid.size[0] == grid.size[1] >= 500 and grid.mode == "L"
    answer(
        capsys, "tilt", folder, "--out", energy, "--training.steps", "3", "--contrast.draws", "60", "--contrast.held-out", "20"
    )
    tilted = answer(capsys, "measure", folder, "--data", "digits", "--energy", energy, "--draws", "40")
    assert [row["model"] for row in tilted["bits"]] == ["base", "tilted"] and "log_z" in tilted
    out = str(tmp_path / "completed.png")
    completed = answer(
        capsys, "sample", folder, "--energy", energy, "--sampler.kind", "sir", "--sampler.num-candidates", "4", "--draws", "2",
        "--images.complete", "digits", "--images.rows", "6", "--images.count", "3", "--out", out,
    )  # fmt: skip
    assert completed["out"] == out and [row["prompt"] for row in completed["samples"]] == [0, 0, 1, 1, 2, 2]


def test_training_goes_on_with_the_codec_of_its_folder(gated, tmp_path):
    more = TrainRun(
        str(tmp_path), data=DataConfig("digits"), training=TrainingConfig(steps=2, batch_size=16), start=str(gated.folder)
    )
    assert train_base(more).splits.processor == gated.splits.processor


def test_wrong_requests_are_told(gated, capsys):
    folder = str(gated.folder)
    for arguments, message in (
        (["sample", folder, "--prompt", "a"], "Images have no text for a prompt"),
        (["sample", folder, "--images.classes", "3"], "The model has 0 classes"),
        (["sample", folder, "--images.complete", "digits", "--images.rows", "8"], "0 to 7 may be given, not 8"),
        (["measure", folder, "--data", "digits", "--positions", "2"], "was loaded without an energy"),
        (["measure", folder, "--data", "digits", "--data.target", "2"], "Images have no translations"),
        (["measure", folder, "--data", "digits", "--stream.columns", "2"], "has no memory"),
    ):
        code, _, said = call(capsys, *arguments)
        assert code and message in said, (arguments, said)


def completed(model, images, rows, draws):
    """For each image: itself, what is given of it, and what was drawn after that."""
    prompts = model.images.completion_prompts(model.images.encode(images), rows)
    drawn = Ancestral()(sampling_target(model, SampleConfig(), prompts), prompts.x, draws, rng=SeededRng(0))
    return model.images.grid(drawn.x, prompts), drawn


def test_completed_images_keep_what_was_given(gated):
    model = load(gated.folder)
    some = read_images("digits")[0].rows(slice(0, 5))
    shown, draws = completed(model, some, 5, 3)
    codec = model.images.codec
    assert np.array_equal(shown[:, 0], codec.decode(codec.encode(some)))
    for column in range(1, 5):
        assert np.array_equal(shown[:, column, :5], shown[:, 0, :5])
    assert (shown[:, 1, 5:] == 128).all() and not np.array_equal(shown[:, 2], shown[:, 3])
    assert isinstance(gated.base, NetworkBase)
    with torch.no_grad():
        known = model.base.log_probs(draws.x).sum(-1).double()
    assert torch.allclose(draws.log_base.view(-1), known, atol=1e-4)


def test_classes_are_given(tmp_path, capsys):
    images = ImageConfig(binarize="threshold", classes=True, most=200)
    run = TrainRun(str(tmp_path), data=DataConfig("digits"), base=TINY["gated-pixelcnn"], training=TRAINING, images=images)
    result = train_base(run)
    assert result.base.config.classes == 10 and result.splits.test.start.tolist() == [1] * len(result.splits.test)
    drawn = answer(capsys, "sample", str(tmp_path), "--draws", "2", "--images.classes", "3", "--images.classes", "7")
    assert [row["prompt"] for row in drawn["samples"]] == [0, 0, 1, 1]
    model = load(tmp_path)
    labelled = ImageArray(np.zeros((2, 8, 8, 1), np.uint8), np.array([1, 2]), "two")
    shown, _ = completed(model, labelled, 7, 1)
    assert shown.shape == (2, 3, 8, 8, 1)
    with pytest.raises(ValueError, match="knows no classes"):
        train_base(TrainRun(str(tmp_path / "other"), data=DataConfig("digits"), base=TINY["transformer"], images=images))
