"""The recipes on E-Forcing: what they compare, and the smallest runs."""

from dataclasses import replace

import pytest
import torch

from esscher.bases.network import build_network
from esscher.data.config import DataConfig
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
    run_language,
    with_chosen_rate,
    with_chosen_strengths,
    with_validation,
)
from esscher.papers.study import StudyContext, validation_history


def size(run, vocabulary=2_000):
    with torch.device("meta"):
        return sum(weight.numel() for weight in build_network(run.base, vocabulary).parameters())


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Both texts, as far as their files exist."""
    for name in ("WIKI", "BOOK"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(studies, name, replace(getattr(studies, name), source=str(tmp_path / name)))
    return tmp_path


def test_published_objectives_have_one_network_and_text():
    (study,), missing = language_studies("paper")
    assert list(study.models) == [PLAIN, SMOOTH, SCHEDULED, FORCED, ONCE] and missing == []
    assert len({(run.base, run.data, run.length, run.training.epochs) for run in study.models.values()}) == 1


def test_e_forcing_is_compared_with_and_without_dropout_and_smoothing(texts):
    """Each study has one of four regularisations and differs within in the objective alone; likelihood has more epochs."""
    made = language_studies("small")[0]
    assert len(made) == 8 and {study.strengths_of for study in made} == {studies.NOVEL, studies.WIKI_VALIDATION}
    regularised = set()
    for study in made:
        plain, forced, once = (study.models[name] for name in (PLAIN, FORCED, ONCE))
        assert (SCHEDULED in study.models) == (study.name == study.strengths_of)
        regularised.add((study.strengths_of, plain.base.dropout, plain.training.label_smoothing))
        assert {run.length.segments for run in study.models.values()} == {"random"}
        assert once == replace(forced, objective=replace(forced.objective, counts="once"))
        longer = replace(forced.training, epochs=plain.training.epochs)
        assert replace(forced, objective=plain.objective, training=longer) == plain
        assert plain.training.epochs > 1.5 * forced.training.epochs
    assert len(regularised) == 8 and {share for _, share, _ in regularised} == {0.0, studies.DROPOUT}


def test_a_text_is_named_for_what_it_is(texts):
    validation = [study.name for study in language_studies("small")[0] if study.models[PLAIN].data == studies.WIKI]
    assert len(validation) == 4 and all(name.startswith("validation text of WikiText-2") for name in validation)


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
    assert {run.training.learning_rate for run in rated.models.values()} == {studies.RATES[1]}
    assert [run.base.unrolled for run in tried[deq.name, "learning rate"]] == [2] * len(studies.RATES)
    forced = with_chosen_strengths(context, language_studies("small")[0])
    assert {what[0] for what in tried if what[1] == f"strength of {FORCED}"} == {studies.NOVEL, studies.WIKI_VALIDATION}
    tried.clear()
    forced += with_chosen_strengths(context, backbone_studies("small")[0])
    assert {what[0] for what in tried} == {f"{studies.NOVEL}, Transformer-XL"}, "one network is judged for all"
    for study in forced:
        weights = [study.models[name].objective.weight for name in (FORCED, ONCE)]
        assert weights == pytest.approx([studies.STRENGTHS[FORCED][1] * 0.1] * 2)


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
    assert with_validation(context, row) == {**row, "least validation": 2.5, "at step": 4, "late rise": 0.25}


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
