"""Weights that processes share out: they learn and draw as whole ones do, and leave the same files."""

import functools
import json
import shutil

import pytest
import torch
from distributed_runs import together
from fsdp_runs import asked, draws, furthest, learn, learn_stream, verb, verbs
from marks import slow, slow_except

from esscher.bases.fsdp import shard
from esscher.core.storage import read_tensors
from esscher.papers import find_recipe
from esscher.training.config import TrainingConfig
from esscher.workflow.config.distil import DistilTraining
from esscher.workflow.config.translate import TranslateConfig
from esscher.workflow.model import Model
from esscher.workflow.translate import translate_model

KINDS = slow_except(["transformer-xl"], ["transformer-xl", "llama", "transformer", "lstm", "encoder-decoder", "xlnet"])
SHARDED = {"fsdp": True}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What two processes learn that have all weights each, and where their checkpoints are."""

    @functools.cache
    def learnt(kind):
        folder = tmp_path_factory.mktemp("whole")
        return together(learn, kind, str(folder), {}), folder

    return learnt


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "transformer-xl" else kind for kind in KINDS]
)
def test_they_learn_what_whole_weights_do(kind, whole):
    """Losses, evaluations, lengths of the gradient and weights, with accumulation, weight decay, clipping and averaging."""
    expected, _ = whole(kind)
    for item in together(learn, kind, None, SHARDED):
        assert furthest(item["numbers"], expected[0]["numbers"]) < 1e-9
        assert furthest(item["weights"], expected[0]["weights"]) < 1e-9
        assert 0.45 < item["share"] < 0.55
    assert [entry["share"] for entry in expected] == [1, 1]
    assert furthest(expected[0]["weights"], together(learn, kind, None, {"steps": 1}, processes=1)[0]["weights"]) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lstm", "transformer-xl"])
def test_they_learn_from_a_stream_with_its_memory(kind):
    for part, whole in zip(*(together(learn_stream, kind, settings) for settings in (SHARDED, {})), strict=True):
        assert furthest(part[0], whole[0]) < 1e-9 and furthest(part[1], whole[1]) < 1e-9


def test_gradients_that_are_averaged_are_caught(whole):
    """Adam hardly minds the length of a gradient, but it is told."""
    actual, _ = together(learn, "transformer-xl", None, SHARDED, False, "gradients are averaged")
    assert furthest(actual["numbers"], whole("transformer-xl")[0][0]["numbers"]) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_they_draw_what_whole_weights_do(kind):
    """The processes draw after other prompts, other numbers of points and other lengths, and none waits in vain."""
    for actual, expected in zip(together(draws, kind, True), together(draws, kind, False), strict=True):
        for (tokens, log_base, score), (same, log_same, _) in zip(actual, expected, strict=True):
            assert tokens == same
            assert log_base == pytest.approx(log_same, abs=1e-9)
            assert log_base == pytest.approx(score, abs=1e-9)


def test_without_turns_processes_that_draw_unequally_fail():
    with pytest.raises(AssertionError, match="ended with"):
        together(draws, "transformer-xl", True, "nobody waits for others", seconds=20)


@pytest.mark.parametrize("before", [{}, slow(SHARDED)], ids=["whole", "sharded"])
def test_a_run_goes_on_whole_or_shared_out_from_the_same_files(before, whole, tmp_path):
    expected, folder = whole("transformer-xl")
    if before == SHARDED:
        together(learn, "transformer-xl", str(tmp_path / "run"), SHARDED)
        for file in (folder / "checkpoints").rglob("*.safetensors"):
            kept, ours = read_tensors(file), read_tensors(tmp_path / "run" / file.relative_to(folder))
            assert list(kept) == list(ours)
            assert all(torch.allclose(kept[name], ours[name], rtol=0, atol=1e-9) for name in kept)
    else:
        shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000006")
    for item in together(learn, "transformer-xl", str(tmp_path / "run"), {} if before == SHARDED else SHARDED, True):
        assert furthest(item["weights"], expected[0]["weights"]) < 1e-9
        assert furthest(item["numbers"], expected[0]["numbers"]) < 1e-9


@pytest.mark.slow
def test_layers_computed_anew_while_shared_out(whole):
    actual, _ = together(learn, "transformer-xl", None, {**SHARDED, "gradient_checkpointing": True})
    assert furthest(actual["weights"], whole("transformer-xl")[0][0]["weights"]) < 1e-9


@pytest.mark.slow
def test_the_verbs(tmp_path):
    message, files = {}, {}
    for fsdp in (False, True):
        folder = tmp_path / str(fsdp)
        message[fsdp] = together(verbs, str(folder), fsdp, seconds=300)[0]
        files[fsdp] = read_tensors(folder / "base" / "model.safetensors")
    assert all(torch.allclose(files[True][name], files[False][name], atol=1e-5) for name in files[False])
    alike(json.loads(json.dumps(message[True]).replace(str(tmp_path / "True"), str(tmp_path / "False"))), message[False])


def alike(one, other):
    """Numbers nearly, all else exactly."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            alike(a, b)
    else:
        assert one == (pytest.approx(other, rel=1e-3, abs=1e-4) if isinstance(other, float) else other)


def test_what_is_made_is_said_by_the_first_process(tmp_path):
    (tmp_path / "of 0").touch()
    assert together(asked, str(tmp_path)) == [[True, False]] * 2


@pytest.mark.parametrize("name", ["laboratory", slow("quickstart")])
def test_processes_share_a_recipe_and_leave_the_files_of_one(name, tmp_path):
    output = {}
    for processes in (1, 2):
        place = tmp_path / str(processes)
        words = ("reproduce", name, "--scale", "smoke", "--out", str(place), "--quiet")
        output[processes] = together(verb, *words, processes=processes, seconds=300)
        assert output[processes][0]["rows"] and output[processes][1:] == [None] * (processes - 1)
    first, second = ({str(file.relative_to(tmp_path / folder)) for file in (tmp_path / folder).rglob("*")} for folder in "12")
    assert first == second
    alike(*(output[processes][0]["rows"][0] for processes in (1, 2)))


def test_what_cannot_be_shared_among_processes_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="recipe 'gam' is for one: its policy gradients have one prompt"):
        find_recipe("gam").run(scale="smoke", out=tmp_path / "run", seeds=1)
    with pytest.raises(ValueError, match="2 processes were started, and one translates"):
        translate_model(object.__new__(Model), TranslateConfig(("Il pleut.",)))
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_shared_out_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="sharded over several processes, and there is one"):
        shard(torch.nn.Linear(2, 2))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="A Linear cannot be sharded"):
        shard(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="Only the base of train and tilt can be sharded"):
        DistilTraining(fsdp=True)
    with pytest.raises(ValueError, match=r"batch_tokens = 64 may have too few sequences for gradient_accumulation_steps = 2"):
        TrainingConfig(fsdp=True, batch_tokens=64, gradient_accumulation_steps=2)
