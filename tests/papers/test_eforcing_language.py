"""The recipes on E-Forcing: what they compare, and the smallest runs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from esscher.bases.network import build_network
from esscher.core.estimate import Estimate
from esscher.data.config import DataConfig
from esscher.objectives.config import EForcingConfig
from esscher.papers.eforcing import language
from esscher.papers.eforcing import language as studies
from esscher.papers.eforcing.language import (
    FORCED,
    LAYERS,
    ONCE,
    PLAIN,
    SCHEDULED,
    SMOOTH,
    backbone_studies,
    language_studies,
    on_excerpts,
    run_language,
    with_chosen_rate,
    with_chosen_strengths,
    with_validation,
)
from esscher.papers.eforcing.text_effects import averages, effects, form_of, strength_of, verdicts
from esscher.papers.study import StudyContext, validation_history


def size(run, vocabulary=studies.TOKENS.vocab_size):
    with torch.device("meta"):
        return sum(weight.numel() for weight in build_network(run.base, vocabulary).parameters())


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Both texts, as far as their files exist."""
    for name in ("WIKI", "BOOK"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(studies, name, replace(getattr(studies, name), source=str(tmp_path / name)))
    return tmp_path


def test_published_rows_are_named_or_left_out():
    """Table 1 has three corpora, of which Toronto Books is the user's copy, and two networks."""
    made, left_out = language_studies("paper", "books.txt")
    corpora, networks = ("WikiText-103", "CC-News", "Toronto Books"), ("Transformer", "Transformer-XL")
    assert [study.name for study in made] == [f"{text}, {network}" for text in corpora for network in networks]
    assert {row["text"] for row in studies.PAPER if row["table"] == "1"} == set(corpora)
    assert made[-1].models[PLAIN].data.source == "books.txt" and not any("Toronto" in message for message in left_out)
    assert len(language_studies("paper")[0]) == 4 and "Toronto Books" in language_studies("paper")[1][-1]
    for study in made:
        assert list(study.models) == [PLAIN, SMOOTH, SCHEDULED, FORCED, ONCE]
        assert len({(run.base, run.data, run.length, run.training.epochs) for run in study.models.values()}) == 1
        assert bool(study.models[PLAIN].base.memory) == study.name.endswith("-XL")


def test_e_forcing_is_compared_with_and_without_dropout_and_smoothing(texts):
    """Each study has one of three regularisations and differs within in the objective alone; another has other starts."""
    *made, starts = language_studies("small")[0]
    assert len(made) == 6 and {study.strengths_of for study in (*made, starts)} == {studies.NOVEL}
    regularised = set()
    for study in made:
        plain, forced, once = (study.models[name] for name in (PLAIN, FORCED, ONCE))
        assert (SCHEDULED in study.models) == (study.name in (studies.NOVEL, studies.WIKI_VALIDATION))
        regularised.add((plain.data.source, plain.base.dropout, plain.training.label_smoothing))
        assert {run.length.segments for run in study.models.values()} == {"random"}
        assert once == replace(forced, objective=replace(forced.objective, counts="once"))
        assert replace(forced, objective=plain.objective) == plain
        assert forced.objective.after_epochs == plain.training.epochs // 4
    assert len(regularised) == 6 and {share for _, share, _ in regularised} == {0.0, studies.DROPOUT}
    for name, run in starts.models.items():
        wanted = FORCED if name.startswith(f"{FORCED} after") else ONCE
        assert name == PLAIN or (form_of(run) == wanted and name.endswith(f"after {run.objective.after_epochs} epochs"))


def test_a_text_is_named_for_what_it_is(texts):
    validation = [study.name for study in language_studies("small")[0] if study.models[PLAIN].data == studies.WIKI]
    assert len(validation) == 3 and all(name.startswith("validation text of WikiText-2") for name in validation)


def test_backbones_are_of_about_one_size(texts):
    made = backbone_studies("small")[0]
    assert len(made) == 7
    sizes = [size(study.models.get(LAYERS, study.models[PLAIN])) for study in made]
    assert max(sizes) < 1.15 * min(sizes)
    for scale in ("smoke", "small", "paper"):
        for study in backbone_studies(scale)[0]:
            plain = study.models[PLAIN]
            for name, counts in ((FORCED, "again"), (ONCE, "once")):
                forced = study.models[name]
                assert replace(forced, objective=plain.objective) == plain and forced.objective.counts == counts


def test_rates_and_strengths_are_those_that_were_chosen(texts, monkeypatch, tmp_path):
    tried = {}

    def second(context, study, what, candidates):
        tried[study, what] = list(candidates.values())
        return list(candidates)[1]

    monkeypatch.setattr(studies, "choose", second)
    context = StudyContext(scale="small", out=tmp_path)
    (deq,) = (study for study in backbone_studies("small")[0] if study.name.endswith("DEQ"))
    rated = with_chosen_rate(context, deq)
    assert {run.training.learning_rate for run in rated.models.values()} == {studies.LEARNING["DEQ"][1][1]}
    assert [run.base.unrolled for run in tried[deq.name, "learning rate"]] == [2] * 2
    forced = with_chosen_strengths(context, language_studies("small")[0])
    assert {what[0] for what in tried if what[1] == f"strength of {FORCED}"} == {studies.NOVEL}
    for study in forced:
        for run in study.models.values():
            form = form_of(run)
            assert form is None or run.objective.weight == pytest.approx(studies.STRENGTHS[form][1] * 0.1)


def test_backbones_have_the_strengths_of_one_text(texts):
    for study in backbone_studies("small")[0]:
        strengths = {form: strength_of(study.models[form]) for form in (FORCED, ONCE)}
        assert strengths == pytest.approx(studies.CHOSEN) and not study.strengths
        assert all(studies.CHOSEN[form] in studies.STRENGTHS[form] for form in strengths)


def test_texts_that_are_not_here_are_named(tmp_path, monkeypatch):
    for name in ("WIKI", "BOOK"):
        monkeypatch.setattr(studies, name, replace(getattr(studies, name), source=str(tmp_path / "none")))
    actual, missing = language_studies("small")
    assert actual == [] and len(missing) == 1 and "none is not here" in missing[0]
    assert backbone_studies("small")[0] == [] and "none is not here" in backbone_studies("small")[1][0]


def test_a_late_rise_is_told(tmp_path):
    context = StudyContext(scale="smoke", out=tmp_path)
    place = context.run_dir("a text", "one")
    place.mkdir(parents=True)
    lines = ['{"step": 1, "loss": 9.0}', *(f'{{"step": {n}, "validation": {v}}}' for n, v in ((2, 3.0), (4, 2.5), (6, 2.75)))]
    (place / "history.jsonl").write_text("\n".join(lines) + "\n")
    assert validation_history(place) == [(2, 3.0), (4, 2.5), (6, 2.75)]
    row = {"text": "a text", "model": "one", "seed": 0}
    plain = language_studies("smoke")[0][0].models[PLAIN]
    for after, own in ((2, True), (4, False)):
        run = replace(
            plain, objective=EForcingConfig(0.3, after_steps=after), training=replace(plain.training, evaluate_every=2)
        )
        actual = with_validation(context, row, run)
        assert actual == {
            **row, "strength": pytest.approx(3.0), "rate": 3e-3, "least validation": 2.5, "at step": 4, "own": own,
            "late rise": 0.25,
        }  # fmt: skip


def test_effects_are_differences_within_seeds():
    """Levels that differ by seed far more than by objective, and a saving that does not: the interval is that of the latter."""

    def row(model, seed, saved, rise, own):
        level, difference = Estimate.exact(40.0 + 10 * seed), None if model == PLAIN else Estimate.exact(saved)
        return {
            "text": "a text", "model": model, "seed": seed, "perplexity": level, "saved": difference, "late rise": rise,
            "at step": 3, "steps": 9, "own": own, "parameters": 1, "rate": 1.0, "strength": None,
        }  # fmt: skip

    rows = [row(PLAIN, seed, 0.0, 0.5 + seed, True) for seed in range(3)]
    rows += [row(FORCED, seed, 0.1 + 0.001 * seed, 0.3 + seed, seed > 0) for seed in range(3)]
    rows += [row(ONCE, seed, (-1) ** seed * 0.1, 0.5 + seed, True) for seed in range(3)]
    forced, once = effects(rows)
    assert forced["saved"].value == pytest.approx(0.101) and forced["saved"].low > 0.098 and forced["verdict"] == "gains"
    assert forced["rise saved"].value == pytest.approx(0.2) and forced["rise saved"].high < 0.21
    assert forced["of likelihood"] == 1 and forced["likelihood"].value == 50.0 and forced["of steps"] == [9, 9, 9]
    assert once["verdict"] == "open" and once["of likelihood"] == 0
    assert [row["verdict"] for row in verdicts([forced, once])] == ["reproduced", "open"]
    averaged = averages([*rows, *({**row, "text": "another"} for row in rows)])
    assert [(row["model"], row["texts"]) for row in averaged] == [(FORCED, 2), (ONCE, 2)]
    assert averaged[0]["saved"].value == pytest.approx(0.101) and averaged[0]["saved"].n == 3
    assert effects(rows[:1] + rows[3:4]) == [], "one seed has no interval and no verdict"


def test_excerpts_are_the_beginning_of_each_text(texts, tmp_path):
    for name in ("WIKI", "BOOK"):
        (texts / name).rmdir()
        (texts / name).write_text(f"{name} says é " * 20_000, encoding="utf8")
    made = on_excerpts(StudyContext(scale="small", out=tmp_path / "out"), language_studies("small")[0])
    for study in made:
        (source,) = {run.data.source for run in study.models.values()}
        name = "WIKI" if study.name.startswith(studies.WIKI_VALIDATION) else "BOOK"
        assert Path(source).read_text(encoding="utf8") == (f"{name} says é " * 20_000)[: studies.EXCERPT]


@pytest.mark.slow
def test_the_smallest_run(tmp_path, monkeypatch):
    text = tmp_path / "lines.txt"
    text.write_text("".join(f"{n % 11} men and {n % 13} cats saw {n % 7} dogs\n" for n in range(500)))
    monkeypatch.setattr(studies, "DataConfig", lambda: DataConfig(str(text)))
    monkeypatch.setattr(language, "BATCH_SIZES", (4, 8))
    actual = run_language(StudyContext(scale="smoke", out=tmp_path / "out", seeds=1))
    assert [row["model"] for row in actual["rows"]] == [PLAIN, SMOOTH, SCHEDULED, FORCED, ONCE]
    assert all(row["perplexity"].low < row["perplexity"].value < row["perplexity"].high for row in actual["rows"])
    assert [row["model"] for row in actual["exposure"]] == [FORCED]
    assert [row["of"] for row in actual["energies"]] == [PLAIN, FORCED, ONCE, PLAIN]
    assert all(row["tilted"].low <= row["tilted"].value <= row["tilted"].high for row in actual["energies"])
    assert len(actual["gradients"]) == 8 and all(row["variance"].value > 0 for row in actual["gradients"])
    page = (tmp_path / "out" / "report.html").read_text()
    assert "while learning" in page and "late rise" in page
    again = run_language(StudyContext(scale="smoke", out=tmp_path / "out", seeds=1))
    assert again["rows"] == actual["rows"] and again["gradients"] == actual["gradients"]
