"""The recipes on XLNet: what their studies are, which text they judge by, and their smallest run from end to end."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from esscher.papers.study import StudyContext
from esscher.papers.xlnet import recipe as studies
from esscher.papers.xlnet.recipe import (
    ALL_TOKENS,
    CAUSAL,
    DENOISING,
    LOCAL,
    NO_PRETRAINING,
    PERMUTED,
    REPEATED_METHODS,
    run_xlnet,
    xlnet_studies,
)
from esscher.papers.xlnet.recipe import run_local_xlnet as run_local
from esscher.papers.xlnet.text_spans import span_rows


@pytest.fixture
def few(tmp_path, monkeypatch):
    """The smallest study with two ways to pretrain and one task more than none."""
    whole = studies._smoke(tmp_path)
    kept = replace(
        whole,
        models={name: whole.models[name] for name in (PERMUTED, DENOISING, NO_PRETRAINING)},
        repeated_over_seeds=(NO_PRETRAINING,),
    )

    def short(one):
        return replace(one, training=replace(one.training, steps=1, evaluate_every=1))

    contrast = replace(kept.tilt.contrast, draws=64, sequences=32, held_out=16)
    kept = replace(
        kept,
        models={name: short(one) for name, one in kept.models.items()},
        tasks={name: short(one) for name, one in kept.tasks.items()},
        energy_base=short(kept.energy_base),
        tilt=replace(short(kept.tilt), contrast=contrast),
    )
    monkeypatch.setattr(studies, "_smoke", lambda out: kept)
    return kept


def test_ways_to_pretrain_differ_in_one_thing(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "STORIES", tmp_path / "none")
    monkeypatch.setattr(studies, "LETTERS", tmp_path / "neither")
    assert [xlnet_study.split(" is not here")[0] for xlnet_study in xlnet_studies("small", tmp_path)[1]] == [
        f"{tmp_path}/none", f"{tmp_path}/neither",
    ]  # fmt: skip
    ((published,), _) = xlnet_studies("paper", tmp_path)
    assert set(published.tasks) == {"RACE", "SQuAD 2.0", "MNLI", "SST-2"}
    assert (
        published.tasks["RACE"].data.source == "ehovy/race:all" and published.tasks["RACE"].data.test == "ehovy/race:all:test"
    )
    assert published.tasks["SST-2"].data.test == "stanfordnlp/sst2::validation"
    for study in (published, studies._smoke(tmp_path)):
        assert study.names_for_seed(1) == REPEATED_METHODS and len(study.names_for_seed(0)) == 9
        right = study.models[PERMUTED]
        for name, way in study.models.items():
            assert (way.data, way.training, way.tokenizer) == (right.data, right.training, right.tokenizer)
            differs = [part for part in ("base", "length", "objective") if getattr(way, part) != getattr(right, part)]
            assert len(differs) == (0 if name in (PERMUTED, NO_PRETRAINING) else 2 if name in (CAUSAL, ALL_TOKENS) else 1)
        counted = {name: 1 / study.models[name].objective.one_in for name in (PERMUTED, CAUSAL)}
        assert {study.models[DENOISING].objective.mask_probability, *counted.values()} == {1 / 6}


def test_the_small_studies_judge_by_text_of_their_own(tmp_path, monkeypatch):
    """Stories whose held-out part has other words: no label and no test text was pretrained on."""
    stories, letters = tmp_path / "stories", tmp_path / "letters.gz"
    stories.mkdir()
    for part, letter in (("val", "a"), ("test", "b")):
        texts = [
            [f"{letter * (4 + s)}{'xyzwvutsrq'[n % 10]} goes to {letter * (9 + s)}." for s in range(9)] for n in range(2_500)
        ]
        (stories / f"tinystories.{part}.txt").write_text("<|endoftext|>".join(map(" ".join, texts)))
    letters.write_bytes(gzip.compress(" ".join("abcdefghij"[n % 10] * (n % 7 + 4) for n in range(2_000_000)).encode()))
    monkeypatch.setattr(studies, "STORIES", stories)
    monkeypatch.setattr(studies, "LETTERS", letters)
    monkeypatch.setattr(
        studies, "word_documents", lambda text: studies.story_documents((stories / "tinystories.test.txt").read_text())
    )
    (first, second, parts), missing = xlnet_studies("small", tmp_path / "out")
    assert not missing and set(first.tasks) == set(second.tasks) == set(parts.tasks) == {"order", "next", "cloze"}
    assert set(first.models) == set(second.models) == set(REPEATED_METHODS) and not parts.names_for_seed(1)
    assert not set(parts.models) & set(first.models) and parts.tasks == first.tasks
    assert span_rows(StudyContext(scale="small", out=tmp_path), parts, 0, pytest.fail) == []  # it has not both objectives
    steps = {name: run.training.steps for name, run in parts.models.items() if run.training.steps != 3_000}
    assert steps == {studies.updates_name(count): count for count in studies.BUDGETS}
    text = (first.files / "train.txt").read_text()
    for task in first.tasks.values():
        for source, count in ((task.data.source, 400), (task.data.validation, 400), (task.data.test, 800)):
            rows = [json.loads(line) for line in Path(source).read_text().splitlines()]
            assert len(rows) == count and not any(row.get("text", row.get("article")) in text for row in rows)
    documents = [
        {json.loads(line)["document"] for line in Path(source).read_text().splitlines()}
        for source in (first.tasks["next"].data.source, first.tasks["next"].data.validation, first.tasks["next"].data.test)
    ]
    assert not documents[0] & documents[2] and not documents[1] & documents[2]
    bayes = json.loads((first.files / "naive-bayes.json").read_text())
    assert set(bayes) == {"order, accuracy", "next, accuracy", "cloze, accuracy"}
    assert 0.4 < bayes["order, accuracy"]["value"] < 0.6  # a bag of words does not know the order


@pytest.mark.slow
def test_the_smallest_run(few, tmp_path):
    actual = run_xlnet(StudyContext(scale="smoke", out=tmp_path, seeds=2))
    assert json.loads((tmp_path / "tasks.json").read_text())["missing"] == 0
    assert [(row["pretrained"], row["seed"]) for row in actual["rows"]] == [
        (PERMUTED, 0),
        (DENOISING, 0),
        (NO_PRETRAINING, 0),
        (NO_PRETRAINING, 1),
    ]
    assert [(row["tokens"], row["seed"]) for row in actual["spans"]] == [(n, seed) for seed in (0, 1) for n in (2, 3, 4)]
    assert all(row["gain"].value == pytest.approx(row[DENOISING].value - row[PERMUTED].value) for row in actual["spans"])
    assert {"orders, accuracy", "words, F1", "words, exact match", "words, answerability"} <= set(actual["rows"][0])
    assert [row["pretrained"] for row in actual["over seeds"]] == [NO_PRETRAINING] and len(actual["energies"]) == 4
    for row in actual["energies"]:
        assert row["saved"].low <= row["saved"].value <= row["saved"].high
    assert "As an energy" in (tmp_path / "report.html").read_text()
    context = StudyContext(scale="smoke", out=tmp_path)

    def make(run_dir):
        pytest.fail(f"The row of {run_dir} was made again instead of read.")

    assert context.row(few.name, NO_PRETRAINING, 1, make) == actual["rows"][3]


@pytest.mark.slow
def test_the_smallest_run_of_local_attention(few, tmp_path):
    actual = run_local(StudyContext(scale="smoke", out=tmp_path, seeds=1))
    assert [row["pretrained"] for row in actual["rows"]] == [PERMUTED, LOCAL]
    settings = json.loads(
        (StudyContext(scale="smoke", out=tmp_path).run_dir(few.name, LOCAL) / "pretrained/config.json").read_text()
    )
    assert settings["base"]["mixers"] == ["local"]
