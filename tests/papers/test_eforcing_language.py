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
    with_validation,
)
from esscher.papers.study import StudyContext, validation_history


def size(run, vocabulary=2_000):
    with torch.device("meta"):
        return sum(weight.numel() for weight in build_network(run.base, vocabulary).parameters())


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_all_objectives_have_one_network_and_text(scale, tmp_path, monkeypatch):
    for name in ("WIKI", "BOOK"):
        monkeypatch.setattr(studies, name, replace(getattr(studies, name), source=str(tmp_path)))
    assert len(language_studies(scale)[0]) == {"small": 4, "paper": 1}[scale]
    for study in language_studies(scale)[0]:
        plain = study.models[PLAIN]
        for value in study.models.values():
            assert (value.base, value.data, value.length) == (plain.base, plain.data, plain.length)
        if scale == "small" and SMOOTH in study.models:
            assert set(study.models) == {PLAIN, SMOOTH, SCHEDULED, FORCED, ONCE}
            assert study.models[SMOOTH].training.epochs == plain.training.epochs > 1.5 * study.models[FORCED].training.epochs
        else:
            assert len({value.training.epochs for value in study.models.values()}) == 1


def test_backbones_are_of_about_one_size(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "BOOK", replace(studies.BOOK, source=str(tmp_path / "none")))
    assert backbone_studies("small")[0] == [] and "none is not here" in backbone_studies("small")[1][0]
    monkeypatch.setattr(studies, "BOOK", replace(studies.BOOK, source=str(tmp_path)))
    assert len(backbone_studies("small")[0]) == 7
    sizes = [size(study.models.get(LAYERS, study.models[PLAIN])) for study in backbone_studies("small")[0]]
    assert max(sizes) < 1.15 * min(sizes)
    for scale in ("smoke", "small", "paper"):
        for study in backbone_studies(scale)[0]:
            forced = study.models[ONCE if scale == "small" else FORCED]
            assert replace(forced, objective=study.models[PLAIN].objective) == study.models[PLAIN]


def test_a_text_that_is_not_here_is_named(tmp_path, monkeypatch):
    for name in ("WIKI", "BOOK"):
        monkeypatch.setattr(studies, name, replace(getattr(studies, name), source=str(tmp_path / "none")))
    actual, missing = language_studies("small")
    assert [study.name for study in actual] == ["docstrings"] and len(missing) == 1 and "none is not here" in missing[0]


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
