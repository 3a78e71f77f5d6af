"""What long verbs say of their cost before they start, and dry runs, which write nothing."""

import json
import time
from pathlib import Path

import pytest
import torch
from cli_calls import answer, call

from esscher.cli import main
from esscher.cli.commands import COMMANDS, PLANNED
from esscher.core.progress import progress_as
from esscher.core.storage import digest, module_tensors
from esscher.data.config import DataConfig
from esscher.networks.recurrent_config import LstmConfig
from esscher.training.config import TrainingConfig
from esscher.workflow import cost as costs
from esscher.workflow.calibration import restored
from esscher.workflow.config.train import TrainRun
from esscher.workflow.cost import Cost, Phase, StepTime, before_start, dry_run, duration
from esscher.workflow.train import train, train_base

DATA = ("--data", "motif:101", "--data.length", "6", "--data.size", "60")
TINY = (*DATA, "--base.kind", "lstm", "--base.width", "8", "--training.steps", "4", "--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folders of a base, of a base with a memory, and of an energy; a text, labelled texts."""
    place = tmp_path_factory.mktemp("planned")
    main(["train", "--out", str(place / "base"), *TINY, "--quiet", "--json"])
    main(
        [
            "tilt",
            str(place / "base"),
            "--out",
            str(place / "energy"),
            "--feature",
            "contains:101",
            "--fit.draws",
            "500",
            "--quiet",
        ]
    )
    (place / "my.txt").write_text("101010\n001011\n110110\n" * 8)
    stream = ("--length.stream", "--length.tokens", "8", "--tokenizer.kind", "byte", "--training.batch-size", "2")
    network = ("--base.kind", "transformer-xl", "--base.width", "8", "--base.layers", "1", "--base.heads", "2")
    main(["train", "--out", str(place / "memory"), "--data", str(place / "my.txt"), *stream, *network, "--training.steps", "2",
          "--data.split", "raw", "--data.held-out", "0.2", "--quiet"])  # fmt: skip
    rows = [{"text": text, "label": text[0]} for text in (f"{number:06b}" for number in range(64))]
    (place / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return place


CALLS = {
    "train": ["train", "--out", "OUT", *TINY],
    "train on a stream": ["train", "--out", "OUT", "--data", "IN/my.txt", "--length.stream", "--length.tokens", "8",
                          "--tokenizer.kind", "byte", "--base.kind", "transformer-xl", "--base.width", "8",
                          "--base.layers", "1", "--base.heads", "2", "--data.split", "raw", "--data.held-out", "0.2",
                          "--training.batch-size", "2", "--training.steps", "5"],
    "tilt by features": ["tilt", "IN/base", "--out", "OUT", "--want", "contains:101=0.7"],
    "tilt by a network": ["tilt", "IN/base", "--out", "OUT", "--energy.network.kind", "lstm", "--training.steps", "3"],
    "tilt on stored negatives": ["tilt", "IN/base", "--out", "OUT", "--contrast.stored", "2", "--training.steps", "3"],
    "distil": ["distil", "IN/base", "--energy", "IN/energy", "--out", "OUT"],
    "distil in stages": ["distil", "IN/base", "--energy", "IN/energy", "--out", "OUT", "--distil.method", "cyclical"],
    "distil by policy gradients": ["distil", "IN/base", "--energy", "IN/energy", "--out", "OUT", "--distil.method",
                                   "policy-gradient"],
    "finetune": ["finetune", "IN/base", "--out", "OUT", "--data", "IN/labels.jsonl", "--training.steps", "3"],
    "measure": ["measure", "IN/base", "--data", "IN/my.txt", "--out", "OUT"],
    "measure a tilted model": ["measure", "IN/base", "--energy", "IN/energy", "--data", "IN/my.txt", "--positions", "3",
                               "--out", "OUT"],
    "measure a stream": ["measure", "IN/memory", "--data", "IN/my.txt"],
    "measure while learning": ["measure", "IN/memory", "--data", "IN/my.txt", "--dynamic"],
    "sample": ["sample", "IN/base", "--energy", "IN/energy", "--out", "OUT"],
    "sample by metropolis": ["sample", "IN/base", "--energy", "IN/energy", "--sampler.kind", "metropolis"],
    "reproduce": ["reproduce", "laboratory", "--out", "OUT"],
    "risk": ["risk", "IN/base", "--event", "contains:101", "--draws", "1000", "--out", "OUT"],
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_dry_run_says_the_cost_and_writes_nothing(capsys, folder, tmp_path, name):
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    words = [word.replace("IN/", f"{folder}/").replace("OUT", str(tmp_path / "out")) for word in CALLS[name]]
    output = answer(capsys, *words, "--dry-run")
    assert list(tmp_path.iterdir()) == [] and {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
    assert output["minutes"] >= 0 and output["minutes_by_fastest_step"] <= output["minutes_by_slowest_step"]
    assert "estimate" in output["notes"][-1] and "Nothing was written" in output["notes"][-1]
    assert all(row["steps"] and row["minutes"] >= 0 for row in output["cost"])
    assert name == "reproduce" or output["memory_gb"] > 0


def test_every_planned_verb_is_tested_and_its_help_names_the_flag(capsys):
    assert {words[0] for words in CALLS.values()} == set(PLANNED) <= set(COMMANDS)
    for verb in PLANNED:
        assert "--dry-run" in call(capsys, verb, "--help")[1]
    assert "--dry-run" not in call(capsys, "score", "--help")[1]


def test_counts_are_those_of_the_run(capsys, folder, tmp_path):
    output = answer(capsys, "train", "--out", str(tmp_path / "a"), *TINY[:-3], "40", "--dry-run")
    training, evaluation, measurement = output["cost"]
    assert training["steps"].startswith("40 updates of 32 sequences") and training["tokens"] == 40 * 32 * 7
    assert evaluation["steps"] == "20 evaluations of 500 scored sequences"  # an epoch of 60 sequences is two updates
    assert measurement["steps"] == "5,000 scored sequences"
    tilted = answer(
        capsys, "tilt", str(folder / "base"), "--out", str(tmp_path / "b"), "--want", "contains:101=0.7", "--dry-run"
    )
    draws = "20,000 draws of at most 7 tokens"
    assert [row["steps"] for row in tilted["cost"]] == [draws, "60,000 sequences with their features", draws]


def test_a_resumed_run_has_fewer_updates(capsys, folder, tmp_path):
    out = str(tmp_path / "run")
    answer(capsys, "train", "--out", out, *TINY, "--quiet")
    output = answer(capsys, "train", "--out", out, *TINY, "--resume", "--dry-run")
    assert output["cost"][0]["steps"].startswith("0 updates")


def test_other_verbs_have_no_dry_run(capsys, folder):
    code, _, err = call(capsys, "score", str(folder / "base"), "--text", "101", "--dry-run")
    assert code == 1 and ", ".join(PLANNED) in err and "Nothing was done" in err
    assert call(capsys, "--dry-run")[0] == 1


def test_a_mistake_is_an_error_in_a_dry_run_too(capsys, tmp_path):
    code, _, err = call(capsys, "reproduce", "laboratory", "--scale", "huge", "--dry-run")
    assert code == 1 and "has no scale 'huge'" in err
    code, _, err = call(capsys, "sample", str(tmp_path / "nothing"), "--dry-run")
    assert code == 1 and "There is no model folder" in err


def test_an_unrecorded_time_is_said_to_be_unknown(capsys, tmp_path):
    output = answer(capsys, "reproduce", "bad-gan", "--scale", "small", "--out", str(tmp_path / "games"), "--dry-run")
    assert output["would_take"] == "not known" and "is not recorded" in output["notes"][0]


def test_long_work_is_announced_before_it_starts_and_changes_no_bit(capsys, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "LONG", 0.0)
    monkeypatch.setattr("esscher.workflow.calibration.LONG", 0.0)
    settings = {"data": DataConfig("motif:101", length=6, size=60), "base": LstmConfig(width=8, dropout=0.2), "device": "cpu",
                "training": TrainingConfig(steps=60, evaluate_every=60)}  # fmt: skip
    announced = train(str(tmp_path / "announced"), **settings)
    lines = capsys.readouterr().err.splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith("About ")]
    assert "60 updates of 32 sequences, 224 tokens" in lines[place] and "--dry-run shows the details" in lines[place]
    assert place < next(number for number, line in enumerate(lines) if line.startswith("step "))
    with progress_as("quiet"):
        quiet = train(str(tmp_path / "quiet"), **settings)
    assert capsys.readouterr().err == ""
    assert digest(module_tensors(announced.base)) == digest(module_tensors(quiet.base))
    code, _, err = call(capsys, "sample", str(folder / "base"), "--draws", "2")
    assert code == 0 and "About " in err


def test_an_announced_recipe_does_not_announce_its_parts():
    said = []
    plan = Cost("x", (Phase("a", 2, "steps", StepTime(100.0, 90.0, 110.0)),))
    with costs.unannounced():
        before_start(lambda: said.append(plan))
    assert said == []


def test_an_estimate_that_fails_stops_no_run_but_a_dry_run():
    def fails() -> Cost:
        raise RuntimeError("not on this device")

    before_start(fails)
    with pytest.raises(RuntimeError, match="not on this device"), dry_run():
        before_start(fails)


def test_the_sentence_names_what_takes_longest():
    update, evaluation = StepTime(0.2, 0.1, 0.3), StepTime(0.001, 0.001, 0.001)
    plan = Cost("x", (Phase("training", 2400, "updates", update, "16 sequences"), Phase("evaluation", 3, "passes", evaluation)))
    assert plan.sentence == "About 8 minutes: 2,400 updates of 16 sequences; --dry-run shows the details."
    twice = Cost("x", tuple(Phase(name, 1200, "draws", update) for name in ("fit", "measurement")))
    assert twice.sentence == "About 8 minutes: 1,200 draws (fit), 1,200 draws (measurement); --dry-run shows the details."
    assert plan.minutes_range == pytest.approx((4.0, 12.0), rel=1e-3)
    words = {20: "20 seconds", 0: "1 second", 100: "2 minutes", 7200: "2 hours", 1e6: "12 days"}
    assert {seconds: duration(seconds) for seconds in words} == words


def test_a_dry_run_from_python(folder, tmp_path):
    with dry_run() as planned:
        train_base(TrainRun(str(tmp_path / "run"), data=DataConfig("motif:101", length=6, size=60), device="cpu"))
    assert planned.cost.phases[0].name == "training" and not (tmp_path / "run").exists()
    with dry_run() as nothing:
        pass
    with pytest.raises(ValueError, match="No verb"):
        _ = nothing.cost


def test_what_is_timed_leaves_no_trace():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with restored(module):
        module.train()
        module(torch.randn(8, 2))
    assert not module.training and all(torch.equal(module.state_dict()[name], value) for name, value in before.items())


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["train", "tilt"])
def test_the_estimate_is_within_a_factor_of_three(capsys, folder, tmp_path, verb):
    """The time of a small run, of 10 to 30 seconds; other work on the machine may come and go meanwhile, so three tries."""
    size = ("--data", "motif:101", "--data.length", "20", "--data.size", "500", "--base.kind", "lstm", "--base.width", "64")
    words = {
        "train": ["train", *size, "--training.steps", "400", "--device", "cpu"],
        "tilt": ["tilt", str(folder / "base"), "--want", "contains:101=0.7", "--fit.draws", "400000", "--device", "cpu"],
    }[verb]
    ratios = []
    for number in range(3):
        out = ["--out", str(tmp_path / str(number))]
        estimate = 60 * answer(capsys, *words, *out, "--dry-run")["minutes"]
        started = time.perf_counter()
        answer(capsys, *words, *out, "--quiet")
        ratios.append(estimate / (time.perf_counter() - started))
        if 1 / 3 < ratios[-1] < 3:
            return
    pytest.fail(f"the estimate over the true time was {ratios}")


def test_a_dry_run_of_a_missing_folder_makes_none(capsys, folder):
    code, _, _ = call(capsys, "measure", str(folder / "base"), "--data", str(folder / "my.txt"), "--dry-run")
    assert code == 0 and not Path(folder / "base" / "measured").exists()
