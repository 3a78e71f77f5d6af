"""esscher sample on a tilted model: the candidates, what was chosen, what is written, and errors that say what to do."""

import json

import pytest
from calling import answer, call
from test_command_line import TINY

from esscher.cli import main


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A base, and an energy that likes the motif."""
    base, energy = (str(tmp_path_factory.mktemp("sample") / name) for name in ("base", "energy"))
    for arguments in (
        ["train", "--out", base, *TINY],
        ["tilt", base, "--out", energy, "--want", "contains:101=0.9", "--fit.draws", "500"],
    ):
        with pytest.raises(SystemExit) as stop:
            main([*arguments, "--quiet", "--json"])
        assert not stop.value.code
    return base, energy


def test_candidates_have_shares_and_the_chosen_are_marked(capsys, folders):
    base, energy = folders
    found = answer(capsys, "sample", base, "--energy", energy, "--prompt", "1", "--prompt", "", "--draws", "3")
    assert (found["sampler"], found["independent_draws"]) == ("adaptive-pool", False)
    assert [row["prompt"] for row in found["samples"]] == ["1"] * 3 + [""] * 3
    for prompt in ("1", ""):
        rows = [row for row in found["candidates"] if row["prompt"] == prompt]
        (pool,) = (row for row in found["prompts"] if row["prompt"] == prompt)
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        assert sum(row["chosen"] for row in rows) == 3 and sum(row["times"] for row in rows) == pool["candidates"]
        assert rows == sorted(rows, key=lambda row: -row["share"])
        assert pool["enough"] and pool["largest_share"] <= 1 and pool["verdict"] in ("good", "doubtful", "unreliable")
        assert pool["log_z"]["low"] <= pool["log_z"]["value"] <= pool["log_z"]["high"]
        texts = {row["text"]: row for row in rows}
        for row in found["samples"]:
            if row["prompt"] == prompt:
                assert row["log_base"] == pytest.approx(texts[row["text"]]["log_base"])
                assert row["energy"] == pytest.approx(texts[row["text"]]["energy"])


def test_top_k_joint_sampling(capsys, folders):
    """With one token kept at each step, all candidates are the same."""
    base, energy = folders
    found = answer(capsys, "sample", base, "--energy", energy, "--top-k", "1", "--pool", "20", "--draws", "4")
    assert found["sampler"] == "pool" and found["drawn_from_the_base"] == 20
    (only,) = found["candidates"]
    assert (only["times"], only["chosen"], only["log_base"]) == (20, 4, pytest.approx(0))
    own = answer(capsys, "sample", base, "--energy", energy, "--pool", "20", "--draws", "4", "--own-pools")
    assert own["drawn_from_the_base"] == 80 and own["independent_draws"]


@pytest.mark.parametrize("sampler", ["importance", "pool", "adaptive-pool", "metropolis", "particles", "exhaustive"])
def test_every_sampler_is_reached(capsys, folders, sampler):
    base, energy = folders
    few = ("--steps", "5", "--pool", "8", "--block", "2", "--halvings", "1", "--effective", "4")
    found = answer(capsys, "sample", base, "--energy", energy, "--sampler", sampler, "--draws", "2", *few)
    assert found["sampler"] == sampler and len(found["samples"]) >= 2
    assert ("candidates" in found) == (sampler in ("pool", "adaptive-pool", "particles"))
    if sampler == "particles":
        assert found["prompts"][0]["log_z"] is None and found["prompts"][0]["candidates"] == 8
        assert found["drawn_from_the_base"] > 256  # the pilot counts


def test_draws_are_written_line_by_line(capsys, folders, tmp_path):
    base, energy = folders
    out = tmp_path / "draws.jsonl"
    found = answer(capsys, "sample", base, "--energy", energy, "--draws", "5", "--out", str(out), "--seed", "2")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows == found["samples"] and set(rows[0]) == {"prompt", "text", "log_base", "energy", "log_weight"}
    code, _, err = call(capsys, "sample", base, "--out", str(out))
    assert code == 1 and "is there already. Nothing was drawn" in err


def test_the_table_shows_the_first_and_the_chosen(capsys, folders):
    base, energy = folders
    code, out, _ = call(capsys, "sample", base, "--energy", energy, "--prompt", "1", "--draws", "2", "--show", "1")
    assert code == 0 and "1. candidates after '1'" in out.replace("\n", " ") and "share" in out and "verdict" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draws", "0"], "at least 1 draw for each prompt, not 0"),
        (["--effective", "100", "--largest", "50"], "No pool of up to 50 candidates is effective 100.0 times over"),
        (["--sampler", "ancestral"], "knows no energy"),
        (["--sampler", "particles", "--block", "0"], "at least 1 token"),
        (["--top-k", "0"], "top_k keeps at least one token"),
        (["--pool", "0"], "at least one candidate, not 0"),
    ],
)
def test_mistakes_are_named(capsys, folders, arguments, message):
    base, energy = folders
    code, _, err = call(capsys, "sample", base, "--energy", energy, *arguments)
    assert code == 1 and message in " ".join(err.replace("│", " ").split())


def test_a_pool_that_is_too_small_is_told(capsys, folders):
    base, energy = folders
    found = answer(capsys, "sample", base, "--energy", energy, "--effective", "20", "--largest", "20", "--draws", "1")
    assert not found["prompts"][0]["enough"] and "even 20 candidates were too few" in found["notes"][0]
