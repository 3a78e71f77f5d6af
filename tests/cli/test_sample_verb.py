"""esscher sample and score on a tilted model: the candidates, what was chosen, what is written, and errors."""

import json
from dataclasses import replace

import pytest
from cli_calls import answer, call

from esscher.cli import main
from esscher.core.estimate import Estimate
from esscher.samplers.sir import SIR
from esscher.workflow.model import load

TINY = ["--data", "motif:101", "--data.length", "6", "--data.size", "200", "--base.kind", "gru", "--base.width", "16",
        "--base.layers", "1", "--training.steps", "40", "--training.batch-size", "32"]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A base, and an energy that likes the motif."""
    base, energy = (str(tmp_path_factory.mktemp("sample") / name) for name in ("base", "energy"))
    for arguments in (
        ["train", "--out", base, *TINY],
        ["tilt", base, "--out", energy, "--want", "contains:101=0.9", "--fit.draws", "500"],
    ):
        main([*arguments, "--quiet", "--json"])
    return base, energy


def test_candidates_have_shares_and_the_chosen_are_marked(capsys, folders):
    base, energy = folders
    output = answer(capsys, "sample", base, "--energy", energy, "--prompt", "1", "--prompt", "", "--draws", "3")
    assert (output["sampler"], output["independent_draws"]) == ("adaptive-sir", False)
    assert [row["prompt"] for row in output["samples"]] == ["1"] * 3 + [""] * 3
    for prompt in ("1", ""):
        rows = [row for row in output["candidates"] if row["prompt"] == prompt]
        (pool,) = (row for row in output["prompts"] if row["prompt"] == prompt)
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        assert sum(row["chosen"] for row in rows) == 3 and sum(row["times"] for row in rows) == pool["candidates"]
        assert rows == sorted(rows, key=lambda row: -row["share"])
        assert pool["large_enough"] and pool["largest_share"] <= 1 and pool["verdict"] in ("good", "doubtful", "unreliable")
        assert pool["log_z"]["low"] <= pool["log_z"]["value"] <= pool["log_z"]["high"]
        texts = {row["text"]: row for row in rows}
        for row in output["samples"]:
            if row["prompt"] == prompt:
                assert row["log_base"] == pytest.approx(texts[row["text"]]["log_base"])
                assert row["energy"] == pytest.approx(texts[row["text"]]["energy"])


def test_a_log_z_that_the_folder_holds_must_agree(folders):
    model = load(*folders)
    settings = {"prompts": ["", "1"], "draws": 2, "sampler": SIR(2000)}
    assert all("as stored" not in row["advice"] for row in model.sample(**settings).pools)
    other = replace(model, energy=replace(model.energy, log_z=Estimate(9.0, 8.9, 9.1, 0.95, 500, "stored")))
    empty, prompted = other.sample(**settings).pools
    assert empty["verdict"] != "good" and "and 9 as stored with the energy" in empty["advice"]
    assert "as stored" not in prompted["advice"]  # a log Z after another prompt
    assert "as stored" not in other.sample(**settings, top_k=2).pools[0]["advice"]  # of another base


@pytest.mark.parametrize(("draws", "message"), [
    ("1.5", "'1.5' is not a whole number"), ("1e11", "100,000,000,000 sequences of up to 7 tokens take 8,800 GB"),
    ("100000000000", "take 8,800 GB of memory"), ("three", "'three' is not a whole number"), ("nan", "not a whole number"),
])  # fmt: skip
def test_draws_are_whole_and_fit(capsys, folders, draws, message):
    code, _, err = call(capsys, "sample", folders[0], "--draws", draws)
    assert code in (1, 2) and message in " ".join(err.replace("│", " ").split())


def test_exhaustive_draws_of_a_large_space_are_refused(capsys, folders):
    code, _, err = call(capsys, "sample", folders[0], "--sampler.kind", "exhaustive", "--max-length", "40")
    assert code == 1 and "sequences of up to 40 tokens" in err and "enumeration stops at" in err


def test_top_k_joint_sampling(capsys, folders):
    """With one token kept at each step, all candidates are the same."""
    base, energy = folders
    sir = ("--sampler.kind", "sir", "--sampler.num-candidates", "20", "--draws", "4")
    output = answer(capsys, "sample", base, "--energy", energy, "--top-k", "1", *sir)
    assert output["sampler"] == "sir" and output["drawn_from_the_base"] == 20
    (only,) = output["candidates"]
    assert (only["times"], only["chosen"], only["log_base"]) == (20, 4, pytest.approx(0))
    separate = answer(capsys, "sample", base, "--energy", energy, *sir, "--sampler.no-shared")
    assert separate["drawn_from_the_base"] == 80 and separate["independent_draws"]


FEW = {
    "importance": (),
    "sir": ("--sampler.num-candidates", "8"),
    "adaptive-sir": ("--sampler.min-ess", "4"),
    "metropolis": ("--sampler.steps", "5"),
    "particles": ("--sampler.num-candidates", "8", "--sampler.block", "2", "--sampler.pruning-rounds", "1"),
    "ladder": ("--sampler.num-particles", "8", "--sampler.pilot", "16", "--sampler.moves", "1"),
    "exhaustive": (),
}


@pytest.mark.parametrize("sampler", FEW)
def test_every_sampler_is_reached(capsys, folders, sampler):
    base, energy = folders
    flags = ("--sampler.kind", sampler, *FEW[sampler])
    output = answer(capsys, "sample", base, "--energy", energy, "--draws", "2", *flags)
    assert output["sampler"] == sampler and len(output["samples"]) >= 2
    assert ("candidates" in output) == (sampler in ("sir", "adaptive-sir", "particles"))
    if sampler == "particles":
        assert output["prompts"][0]["log_z"] is None and output["prompts"][0]["candidates"] == 8
        assert output["drawn_from_the_base"] > 256  # the pilot counts
    if sampler == "ladder":
        (row,) = output["prompts"]
        assert row["candidates"] == 2 and row["rungs"] >= 1 and 0 < row["overlap"] <= 1 and row["verdict"] != "good"  # 2 runs
        assert row["log_z"]["low"] <= row["log_z"]["value"] <= row["log_z"]["high"]


def test_draws_are_written_line_by_line(capsys, folders, tmp_path):
    base, energy = folders
    out = tmp_path / "draws.jsonl"
    output = answer(capsys, "sample", base, "--energy", energy, "--draws", "5", "--out", str(out), "--seed", "2")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows == output["samples"] and set(rows[0]) == {"prompt", "text", "log_base", "energy", "log_weight"}
    code, _, err = call(capsys, "sample", base, "--out", str(out))
    assert code == 1 and "exists already. Nothing was drawn" in err


def test_the_draws_come_first_and_candidates_on_request(capsys, folders):
    base, energy = folders
    flags = ("sample", base, "--energy", energy, "--prompt", "1", "--draws", "2", "--quiet")
    code, out, _ = call(capsys, *flags)
    first, _, rest = out.partition("\n")
    assert code == 0 and first == "draws" and "candidates after" in rest and "share" not in rest
    assert "effective sample size" in rest and any(word in rest for word in ("good", "doubtful", "unreliable"))
    code, out, _ = call(capsys, *flags, "--show-candidates", "1")
    assert code == 0 and "candidates after '1', " in out and "share" in out and "sampler" not in out
    code, out, _ = call(capsys, *flags, "--verbose")
    assert code == 0 and "adaptive-sir" in out and "95 % interval" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draws", "0"], "draws is at least 1, not 0"),
        (["--sampler.kind", "adaptive-sir", "--sampler.min-ess", "100", "--sampler.max-candidates", "50"],
         "no 50 candidates have 100.0"),
        (["--sampler.kind", "ancestral"], "cannot use an energy"),
        (["--sampler.kind", "particles", "--sampler.block", "0"], "block is at least 1, not 0"),
        (["--top-k", "0"], "top_k keeps at least one token"),
        (["--sampler.kind", "sir", "--sampler.num-candidates", "0"], "num_candidates is at least 1, not 0"),
        (["--images.rows", "3"], "no model of images"),
        (["--device", "hexagon"], "There is no device 'hexagon'"),
        (["--device", "cuda:99"], "There is no device 'cuda:99'"),
    ],
)  # fmt: skip
def test_mistakes_are_named(capsys, folders, arguments, message):
    base, energy = folders
    code, _, err = call(capsys, "sample", base, "--energy", energy, *arguments)
    assert code == 1 and message in " ".join(err.replace("│", " ").split())


def test_a_pool_that_is_too_small_is_told(capsys, folders):
    base, energy = folders
    flags = ("--sampler.kind", "adaptive-sir", "--sampler.min-ess", "20", "--sampler.max-candidates", "20", "--draws", "1")
    output = answer(capsys, "sample", base, "--energy", energy, *flags)
    assert not output["prompts"][0]["large_enough"] and any(
        "Even 20 candidates are too few" in note for note in output["notes"]
    )


def test_python_has_the_same_words(folders):
    base, energy = folders
    model = load(base, energy=energy)
    result = model.sample(["1", ""], draws=3, sampler=SIR(20))
    assert len(result.texts) == len(result.tokens) == 6 and result.report.facts["sampler"] == "sir"
    assert [tokens[:1] for tokens in result.tokens[:3]] == model.data.encode_prompts(["1"]) * 3
    assert len(model.untilted().sample(draws=2).texts) == 2


def test_scores_are_those_of_the_draws(capsys, folders, tmp_path):
    """A drawn text has the log-probability and the energy that its draw states; a prompt does not count."""
    base, energy = folders
    model = load(base, energy=energy)
    drawn = model.sample(["1", ""], draws=3).samples
    texts, prompts = [row["text"] for row in drawn], [row["prompt"] for row in drawn]
    scores = model.score(texts, prompts=prompts)
    assert scores.log_base == pytest.approx([row["log_base"] for row in drawn], abs=1e-5)
    assert scores.energy == pytest.approx([row["energy"] for row in drawn], abs=1e-9)
    assert scores.log_unnormalized == pytest.approx([a - e for a, e in zip(scores.log_base, scores.energy, strict=True)])
    (tmp_path / "texts.txt").write_text("\n".join(texts[:3]) + "\n")
    output = answer(capsys, "score", base, "--file", str(tmp_path / "texts.txt"), "--prompt", "1")
    assert [row["log_base"] for row in output["scores"]] == pytest.approx(scores.log_base[:3], abs=1e-5)
    assert set(output["scores"][0]) == {"prompt", "text", "tokens", "log_base"} and output["energy"] is None
    whole = answer(capsys, "score", base, "--energy", energy, "--text", "101", "--text", "110")
    assert [row["text"] for row in whole["scores"]] == ["101", "110"] and whole["scores"][0]["tokens"] == 4
    assert whole["scores"][0]["energy"] < whole["scores"][1]["energy"]


def test_what_cannot_be_scored_is_named(folders, tmp_path):
    model, empty = load(folders[0]), tmp_path / "empty.txt"
    empty.write_text("")
    for settings, message in (
        ({"file": str(empty)}, r"empty.txt holds no line\. Nothing was scored"),
        ({}, "Either texts or a file"),
        ({"texts": ["1"], "file": "x"}, "Either texts or a file"),
        ({"texts": ["1" * 9]}, "has 9 tokens, and sequences of"),
        ({"texts": ["1", "0"], "prompts": ["1", "0", "1"]}, "3 prompts for 2 texts"),
    ):
        with pytest.raises(ValueError, match=message):
            model.score(**settings)


def test_a_ladder_measures_log_z(capsys, folders, tmp_path):
    base, energy = folders
    texts = tmp_path / "texts.txt"
    texts.write_text("10110\n01010\n11101\n")
    flags = ("--sampler.kind", "ladder", *FEW["ladder"])
    output = answer(capsys, "measure", base, "--energy", energy, "--data", str(texts), *flags, "--draws", "6", "--quiet")
    by_importance = answer(capsys, "measure", base, "--energy", energy, "--data", str(texts), "--draws", "400", "--quiet")
    assert output["log_z"]["n"] == 6
    assert max(output["log_z"]["low"], by_importance["log_z"]["low"]) < min(
        output["log_z"]["high"], by_importance["log_z"]["high"]
    )
