"""The verb risk: the probability of an event of a tiny model against direct draws, resuming, prompts, and what is refused."""

import json

import pytest
from causal_models import save_text_model
from cli_calls import answer, call

import esscher
from esscher.core.interruption import Interrupted
from esscher.workflow import risk as workflow
from esscher.workflow.cost import dry_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_text_model(tmp_path_factory.mktemp("risk") / "model", max_length=8)


@pytest.fixture(scope="module")
def model(folder):
    return esscher.load(folder)


def share(model, holds, draws=40_000) -> float:
    texts = model.sample(draws=draws, seed=9).texts
    return sum(map(holds, texts)) / len(texts)


def test_a_frequent_event_takes_direct_draws(model):
    result = model.risk("contains:a", draws=4000)
    assert "direct" in result.probability.method
    assert result.verdict == "good"
    assert all("a" in text for text in result.texts)
    assert len(result.texts) == 4


def test_a_rare_event_takes_a_ladder(model):
    result = model.risk("count:a>=7", draws=4000, runs=8)
    assert "splitting" in result.probability.method
    assert result.risk.sequences < 4000
    assert result.risk.levels[-1] == 7
    assert all(text.count("a") >= 7 for text in result.texts)
    seen = share(model, lambda text: text.count("a") >= 7)
    assert result.probability.low / 1.5 < seen < 1.5 * result.probability.high
    assert result.risk.direct_draws > 0


def test_what_no_draw_shows_has_an_upper_bound(model):
    result = model.risk(lambda text: "z" in text, draws=1000)
    assert result.probability.value == result.probability.low == 0
    assert result.verdict == "unreliable"
    assert "not seen" in result.advice


def test_runs_that_all_miss_leave_the_bound_of_the_direct_draws(model, monkeypatch):
    split = workflow.split

    def missing(*args, **named):
        parts = split(*args, **named)
        parts.reached[:, -1] = 0
        return parts

    monkeypatch.setattr(workflow, "split", missing)
    result = model.risk("count:a>=7", draws=4000, runs=4)
    assert "direct" in result.probability.method and result.probability.high < 0.05
    assert result.verdict != "good" and result.risk.sequences > 1000  # what the runs cost is counted


def test_a_stopped_run_resumes_to_the_same_numbers(model, tmp_path, monkeypatch):
    settings = {"draws": 3000, "runs": 4, "seed": 3}
    whole = model.risk("count:a>=7", **settings)
    made, split = [], workflow.split

    def stopped(*args, **kwargs):
        if len(made) == 2:
            raise Interrupted(2)
        made.append(1)
        return split(*args, **kwargs)

    monkeypatch.setattr(workflow, "split", stopped)
    with pytest.raises(Interrupted):
        model.risk("count:a>=7", **settings, out=str(tmp_path / "out"))
    monkeypatch.setattr(workflow, "split", split)
    with pytest.raises(ValueError, match="--resume goes on"):
        model.risk("count:a>=7", **settings, out=str(tmp_path / "out"))
    with pytest.raises(ValueError, match="made with"):
        model.risk("count:a>=6", **settings, out=str(tmp_path / "out"), resume=True)
    again = model.risk("count:a>=7", **settings, out=str(tmp_path / "out"), resume=True)
    assert again.probability == whole.probability
    assert again.texts == whole.texts
    for name in ("report.html", "answer.json", "ladder.png", "texts.jsonl"):
        assert (tmp_path / "out" / name).is_file()


def test_prompts_that_carry_the_event_are_listed(folder, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("a\nb\n", encoding="utf8")
    found = answer(
        capsys, "risk", str(folder), "--event", "count:a>=7", "--prompts", str(tmp_path / "prompts.txt"), "--draws", "3000",
        "--runs", "4", "--quiet",
    )  # fmt: skip
    assert 0 < found["probability"]["low"] < found["probability"]["high"] < 1
    assert sum(row["share"]["value"] for row in found["prompts"]) == pytest.approx(1)
    assert any("population" in note for note in found["notes"])


def test_a_dry_run_draws_nothing(model, tmp_path):
    with dry_run() as planned:
        model.risk("contains:a", out=str(tmp_path / "out"))
    assert planned.cost.phases[0].count == 20_000
    assert not (tmp_path / "out").exists()


def test_minutes_are_a_budget_that_is_kept(model, tmp_path):
    model.risk("count:a>=7", minutes=0.01, runs=4, out=str(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "parts" / "budget.json").read_text())["draws"] >= 1000


def test_what_is_refused(model, folder, capsys):
    with pytest.raises(ValueError, match="distil"):
        model.tilt(energy=lambda x: x.lengths.double()).risk("contains:a")
    with pytest.raises(ValueError, match="leave one of both out"):
        model.risk("contains:a", prompt=["a"], prompts="file")
    code, _, err = call(capsys, "risk", str(folder), "--event", "words")
    assert code == 1
    assert "words>=1" in err
