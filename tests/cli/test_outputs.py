"""What the verbs print at a width of 80: nothing is broken, the result comes first, and what was asked for is said."""

import json

import pytest
from cli_calls import answer, call
from rich.cells import cell_len

from esscher.cli import main
from esscher.reports import report
from esscher.reports.report import print_report

WIDTH = 80
TINY = ["--data", "motif:101", "--data.length", "6", "--data.size", "200", "--base.kind", "gru", "--base.width", "16",
        "--base.layers", "1", "--training.steps", "40", "--training.batch-size", "32"]  # fmt: skip
DISTIL = ["--distil.candidates", "400", "--distil.evaluation-draws", "200", "--training.epochs", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A base, an energy of a feature, a student, texts, and n-best lists; paths are relative, as users write them."""
    folder = tmp_path_factory.mktemp("outputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "texts.txt").write_text("101100\n010101\n" * 6)
        main(["train", "--out", "base", *TINY, "--quiet", "--json"])
        main(["tilt", "base", "--out", "energy", "--want", "contains:11=0.7", "--fit.draws", "500", "--quiet", "--json"])
        main(["distil", "base", "--energy", "energy", "--out", "student", *DISTIL, "--quiet", "--json"])
    return folder


VERBS = {
    "train": ["train", "--out", "other", *TINY[:-4], "--training.steps", "2"],
    "tilt": ["tilt", "base", "--out", "rates", "--want", "contains:11=0.5", "--feature", "starts-with:0", "--fit.draws", "300"],
    "network": [
        "tilt",
        "base",
        "--out",
        "network",
        "--training.steps",
        "1",
        "--contrast.draws",
        "50",
        "--contrast.held-out",
        "20",
    ],
    "distil": ["distil", "base", "--energy", "energy", "--out", "again", *DISTIL],
    "sample": ["sample", "base", "--energy", "energy", "--draws", "2", "--show-candidates", "3"],
    "score": ["score", "base", "--energy", "energy", "--text", "101100"],
    "measure": ["measure", "base", "--energy", "energy", "--data", "texts.txt", "--draws", "200", "--positions", "4"],
    "next-token": ["analyse", "next-token", "base", "--energy", "energy", "--prompt", "10"],
    "energies": ["analyse", "energies", "base", "--energy", "energy", "--data", "texts.txt", "--draws", "4"],
    "n-grams": ["analyse", "n-grams", "base", "--energy", "energy", "--data", "texts.txt", "--draws", "4"],
    "data": ["data", "--data", "motif:101", "--data.length", "6", "--data.size", "100"],
    "exact": ["exact", "motif", "--motif", "10001011111000", "--length", "30", "--mixture", "0.9"],
    "report": ["report", "base", "student"],
    "env": ["env"],
    "verify": ["verify", "base"],
}


WITHOUT_ESTIMATES = ("data", "exact", "env", "verify", "score")
BETWEEN = "~~~~"  # between the short and the full output


@pytest.mark.parametrize("verb", VERBS)
def test_every_table_fits_and_no_number_is_broken(capsys, runs, monkeypatch, verb):
    monkeypatch.chdir(runs)
    monkeypatch.setenv("COLUMNS", str(WIDTH))

    def print_both(result, *, as_json, verbose):
        print_report(result, as_json=False)
        print(BETWEEN)
        print_report(result, as_json=False, verbose=True)

    monkeypatch.setattr(report, "print_report", print_both)
    code, text, err = call(capsys, *VERBS[verb], "--quiet")
    assert code == 0, err
    short, _, full = text.partition(BETWEEN)
    assert all(cell_len(line) <= WIDTH for line in text.splitlines()), text
    assert all(line.count("[") == line.count("]") for line in short.splitlines()), short
    assert "% interval" not in short and ("% interval" in full or verb in WITHOUT_ESTIMATES)


def test_tilting_checks_the_wanted_rates_on_fresh_draws(capsys, runs, monkeypatch):
    monkeypatch.chdir(runs)
    flags = ("--want", "contains:11=0.5", "--fit.draws", "1000", "--overwrite", "--quiet")
    code, out, _ = call(capsys, "tilt", "base", "--out", "checked", *flags)
    head = next(line for line in out.splitlines() if "wanted" in line)
    assert code == 0 and head.split() == ["feature", "wanted", "base", "tilted"] and "fresh draws" in out
    (row,) = json.loads((runs / "checked" / "answer.json").read_text())["tables"]["features"]
    covered = row["tilted"]["low"] <= 0.5 <= row["tilted"]["high"]
    assert covered != ("not 0.5" in out)
    assert "l1" not in out


def test_a_student_stands_beside_its_base(capsys, runs, monkeypatch):
    monkeypatch.chdir(runs)
    saved = json.loads((runs / "student" / "answer.json").read_text())
    distances = {row["distance"]: row for row in saved["tables"]["distance_to_the_tilted_model"]}
    kl = distances["KL(tilted || model), nats"]
    assert saved["facts"]["nearer_than_the_base_by"]["value"] == pytest.approx(
        kl["base"]["value"] - kl["student"]["value"], abs=2e-3
    )
    held_out = next(row for row in saved["tables"]["perplexity_on_held_out_data"] if row["per"] == "token")
    assert {"base", "tilted", "student"} <= set(held_out) and held_out["student"]["unit"] == "per token"
    assert 1 < held_out["student"]["value"] < 1000
    nearer = kl["student"]["value"] < kl["base"]["value"]
    assert nearer or any("nearer" in note for note in saved["notes"])
    more = answer(capsys, "distil", "base", "--energy", "energy", "--out", "data", *DISTIL, "--data", "texts.txt", "--quiet")
    assert more["perplexity_on_held_out_data"][0]["base"]["n"] == 12


def test_unlike_runs_are_compared(capsys, runs, monkeypatch):
    monkeypatch.chdir(runs)
    output = answer(capsys, "report", "base", "student")
    numbers = {row["number"] for row in output["numbers"]}
    assert "perplexity per token" in numbers and [row["run"] for row in output["runs"]] == ["base", "student"]
    assert len(output["settings"]) <= 20 and "base.dropout" not in {row["setting"] for row in output["settings"]}
