"""The verb risk: the probability of an event of a tiny model against direct draws, resuming, prompts, and what is refused."""

import json
from dataclasses import replace

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


def test_an_event_that_is_not_rare_takes_more_direct_draws(model):
    result = model.risk("contains:a", draws=1000)
    assert "direct" in result.probability.method
    assert result.probability.n == pytest.approx(0.9 * 950, abs=60)  # the first draws decide, and do not count
    assert not result.risk.twist
    assert result.report.facts["direct_draws_for_this_error"] is not None


def many(text: str) -> float:
    """An event without an automaton: a function of the text."""
    return text.count("a")


SCORED = {"event": many, "at_least": 7}


def test_an_event_with_a_score_alone_takes_a_ladder(model):
    result = model.risk(**SCORED, draws=4000, runs=8)
    assert "splitting" in result.probability.method
    assert result.risk.sequences < 4000
    assert result.risk.levels[-1] == 7
    assert all(text.count("a") >= 7 for text in result.texts)
    seen = share(model, lambda text: text.count("a") >= 7)
    assert result.probability.low / 1.5 < seen < 1.5 * result.probability.high
    assert result.risk.direct_draws > 0


@pytest.mark.parametrize(("least", "how"), [(0.0, "independent"), (2.0, "particles")])
def test_an_event_with_an_automaton_is_led_to(model, monkeypatch, least, how):
    monkeypatch.setattr(workflow, "INDEPENDENT", least)
    monkeypatch.setattr(workflow, "EVEN_SPREAD", 100.0)
    result = model.risk("count:a>=7", draws=4000, runs=8)
    assert how in result.risk.twist
    assert result.verdict == "good"
    assert result.risk.sequences < 4000
    assert result.probability.high < 1.3 * result.probability.low
    seen = share(model, lambda text: text.count("a") >= 7)
    assert seen == pytest.approx(result.probability.value, rel=0.5)  # about 130 hits among 40,000 draws
    assert len(result.texts) == 4
    assert all(text.count("a") >= 7 for text in result.texts)
    assert result.report.facts["led_by"] == result.risk.twist
    assert float(result.report.facts["tokens_saved"].split()[0]) > 1
    assert not result.report.notes


def test_a_report_says_when_direct_draws_would_have_been_cheaper(model):
    result = model.risk(many, at_least=5, draws=1000, runs=12)
    assert result.risk.direct_draws < result.risk.sequences
    assert "direct draws" in result.report.notes[0]
    assert result.report.facts["tokens_saved"] is None


def test_texts_that_end_early_are_completed(model):
    result = model.risk("starts-with:aaaa", draws=2000)
    assert int(result.risk.x.lengths.max()) == 4
    assert all(text.startswith("aaaa") for text in result.texts)
    assert max(map(len, result.texts)) > 4


def test_an_automaton_that_does_not_agree_is_not_used(model, monkeypatch):
    """One that takes `a` for `b`, and one that is wrong for texts that only led draws show."""
    spec = workflow.make_event

    def mistaken(event, *args, **kwargs):
        other = spec("contains:bb", *args, **kwargs)
        return replace(spec(event, *args, **kwargs), acceptor=other.acceptor)

    monkeypatch.setattr(workflow, "make_event", mistaken)
    assert not model.risk("count:a>=7", draws=2000, runs=4).risk.twist

    def slightly(event, *args, **kwargs):
        return replace(spec(event, *args, **kwargs), acceptor=spec("count:b>=8", *args, **kwargs).acceptor)

    monkeypatch.setattr(workflow, "make_event", slightly)
    assert not model.risk("count:a>=8", draws=1000, runs=4).risk.twist


def test_what_contradicts_the_direct_draws_is_unreliable(model, monkeypatch):
    monkeypatch.setattr(workflow, "ENOUGH_HITS", 10**9)
    monkeypatch.setattr(workflow, "FREQUENT_HITS", 10**9)
    wrong = workflow.weighted_probability

    def lower(log_weight, **named):
        return wrong(log_weight - 5, **named)

    monkeypatch.setattr(workflow, "weighted_probability", lower)
    monkeypatch.setattr(workflow, "INDEPENDENT", 0.0)
    result = model.risk("contains:a", draws=2000)
    assert result.verdict == "unreliable"
    assert "direct draws say" in result.advice


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
    result = model.risk(**SCORED, draws=4000, runs=4)
    assert "direct" in result.probability.method and result.probability.high < 0.05
    assert result.verdict != "good" and result.risk.sequences > 1000  # what the runs cost is counted


@pytest.mark.parametrize(("event", "stage", "done"), [("count:a>=7", "draw_twisted", 7), (many, "split", 2)])
def test_a_stopped_run_resumes_to_the_same_numbers(model, tmp_path, monkeypatch, event, stage, done):
    monkeypatch.setattr(workflow, "DRAWS_AT_ONCE", 300)
    settings = {"draws": 3000, "runs": 4, "seed": 3, "at_least": 7}
    whole = model.risk(event, **settings)
    made, made_by = [], getattr(workflow, stage)

    def stopped(*args, **kwargs):
        if len(made) == done:
            raise Interrupted(2)
        made.append(1)
        return made_by(*args, **kwargs)

    monkeypatch.setattr(workflow, stage, stopped)
    with pytest.raises(Interrupted):
        model.risk(event, **settings, out=str(tmp_path / "out"))
    monkeypatch.setattr(workflow, stage, made_by)
    with pytest.raises(ValueError, match="--resume goes on"):
        model.risk(event, **settings, out=str(tmp_path / "out"))
    with pytest.raises(ValueError, match="made with"):
        model.risk("count:a>=6", **settings, out=str(tmp_path / "out"), resume=True)
    again = model.risk(event, **settings, out=str(tmp_path / "out"), resume=True)
    assert again.probability == whole.probability
    assert again.texts == whole.texts
    for name in ("report.html", "answer.json", "texts.jsonl", *(["ladder.png"] if event is many else [])):
        assert (tmp_path / "out" / name).is_file()


@pytest.mark.parametrize("least", [0.0, 2.0], ids=["independent", "particles"])
def test_prompts_that_carry_the_event_are_listed(folder, tmp_path, capsys, monkeypatch, least):
    monkeypatch.setattr(workflow, "INDEPENDENT", least)
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
