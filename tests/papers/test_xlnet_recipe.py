"""The recipes on XLNet: what their studies are, which passages they judge by, and their smallest run from end to end."""

import json
from dataclasses import replace

import pytest

from esscher.papers.study import StudyContext
from esscher.papers.xlnet import recipe as studies
from esscher.papers.xlnet.recipe import (
    LOCAL,
    NO_PRETRAINING,
    PASSAGE_WORDS,
    PERMUTED,
    REPEATED_METHODS,
    run_xlnet,
    write_books,
    xlnet_studies,
)
from esscher.papers.xlnet.recipe import run_local_xlnet as run_local


@pytest.fixture
def few(tmp_path, monkeypatch):
    """The smallest study with two ways to pretrain and one task more than none."""
    whole = studies._smoke(tmp_path)
    kept = replace(
        whole,
        models={name: whole.models[name] for name in (PERMUTED, NO_PRETRAINING)},
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
    monkeypatch.setattr(studies, "BOOKS", tmp_path / "none")
    monkeypatch.setattr(studies, "XQUAD", tmp_path / "neither")
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
        assert study.names_for_seed(1) == REPEATED_METHODS and len(study.names_for_seed(0)) == 8
        right = study.models[PERMUTED]
        for name, way in study.models.items():
            assert (way.data, way.training, way.tokenizer) == (right.data, right.training, right.tokenizer)
            differs = [part for part in ("base", "length", "objective") if getattr(way, part) != getattr(right, part)]
            assert len(differs) == (0 if name in (PERMUTED, NO_PRETRAINING) else 2 if name == "causal LM" else 1)


def test_no_passage_to_judge_by_was_pretrained_on(tmp_path):
    books = tmp_path / "books"
    books.mkdir()
    for name in ("ann-one", "ann-two", "bob-one"):
        (books / f"{name}.txt").write_text(" ".join(f"{name}{number}" for number in range(4_000)))
    write_books(books, tmp_path / "data", labelled=6, tested=4, vocabulary=300)
    text = (tmp_path / "data/train.txt").read_text()
    for part, count, seen in (("train", 12, True), ("validation", 4, False), ("test", 8, False)):
        rows = [json.loads(line) for line in (tmp_path / f"data/authors-{part}.jsonl").read_text().splitlines()]
        assert len(rows) == count and {row["label"] for row in rows} == {"ann", "bob"}
        assert all(len(row["text"].split()) == PASSAGE_WORDS and (row["text"] in text) == seen for row in rows)


@pytest.mark.slow
def test_the_smallest_run(few, tmp_path):
    actual = run_xlnet(StudyContext(scale="smoke", out=tmp_path, seeds=2))
    assert [(row["pretrained"], row["seed"]) for row in actual["rows"]] == [
        (PERMUTED, 0),
        (NO_PRETRAINING, 0),
        (NO_PRETRAINING, 1),
    ]
    assert {"orders, accuracy", "words, F1", "words, exact match", "words, answerability"} <= set(actual["rows"][0])
    assert [row["pretrained"] for row in actual["over seeds"]] == [NO_PRETRAINING] and len(actual["energies"]) == 4
    for row in actual["energies"]:
        assert row["saved"].low <= row["saved"].value <= row["saved"].high
    assert "As an energy" in (tmp_path / "report.html").read_text()
    context = StudyContext(scale="smoke", out=tmp_path)

    def make(run_dir):
        pytest.fail(f"The row of {run_dir} was made again instead of read.")

    assert context.row(few.name, NO_PRETRAINING, 1, make) == actual["rows"][2]


@pytest.mark.slow
def test_the_smallest_run_of_local_attention(few, tmp_path):
    actual = run_local(StudyContext(scale="smoke", out=tmp_path, seeds=1))
    assert [row["pretrained"] for row in actual["rows"]] == [PERMUTED, LOCAL]
    settings = json.loads(
        (StudyContext(scale="smoke", out=tmp_path).run_dir(few.name, LOCAL) / "pretrained/config.json").read_text()
    )
    assert settings["base"]["mixers"] == ["local"]
