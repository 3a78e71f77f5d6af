"""The recipe on the softmax bottleneck: sizes, stages, ranks, and the smallest run."""

from dataclasses import replace

import pytest
import torch

from esscher.bases.network import build_network
from esscher.core.estimate import Estimate
from esscher.papers.softmax_bottleneck import recipe
from esscher.papers.softmax_bottleneck.recipe import MOC, MOS, SOFTMAX, bottleneck_studies, rank_rows, run
from esscher.papers.streams import run_for_seed, train_and_measure, with_perplexity
from esscher.papers.study import StudyContext


def size(run, vocabulary):
    with torch.device("meta"):
        return sum(weight.numel() for weight in build_network(run.base, vocabulary).parameters())


@pytest.mark.parametrize(("make", "vocabulary"), [(recipe._words, 2_000), (recipe._characters, 28)])
def test_heads_are_compared_in_networks_of_one_size(make, vocabulary):
    sizes = [size(model, vocabulary) for model in make().models.values()]
    assert max(sizes) < 1.01 * min(sizes)
    assert all(model.training == make().models[SOFTMAX].training for model in make().models.values())


def test_the_sweep_keeps_the_size():
    sizes = [size(model, 2_000) for model in [*recipe._sweep().models.values(), recipe._words().models[MOS]]]
    assert max(sizes) < 1.01 * min(sizes)


def test_components_are_also_swept_alone():
    """All else equal, a network grows by the same number of weights with every component, and its LSTM does not narrow."""
    models = recipe._fixed_sweep().models
    words = recipe._words().models[MOS]
    for name, model in models.items():
        assert replace(model, base=replace(model.base, components=8)) == words, name
    sizes = [size(models[f"MoS of {k}"], 2_000) for k in (1, 2, 4, 8, 16)]
    steps = [(more - less) / k for less, more, k in zip(sizes, sizes[1:], (1, 2, 4, 8), strict=False)]
    assert len(set(steps)) == 1 and steps[0] > 0


def test_the_published_sizes_are_those_of_the_paper():
    treebank, wikitext = bottleneck_studies("paper")[0]
    million = {name: round(size(treebank.models[name], 10_000) / 1e6) for name in (SOFTMAX, MOC, MOS)}
    assert million == {SOFTMAX: 24, MOC: 22, MOS: 22}
    assert [round(size(wikitext.models[name], 33_278) / 1e6) for name in (SOFTMAX, MOS)] == [34, 35]
    for study in (treebank, wikitext):
        for name in (SOFTMAX, MOC, MOS):
            first, second = study.models[name], study.models[f"{name}, fine-tuned"]
            assert first.training.swa_patience == 5 and second.training.swa_start == 0.0 and second.start == name


def test_texts_that_are_not_here_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "BOOKS", replace(recipe.BOOKS, source=str(tmp_path / "none")))
    monkeypatch.setattr(recipe, "LETTERS", replace(recipe.LETTERS, source=str(tmp_path / "nothing")))
    actual, missing = bottleneck_studies("small")
    assert actual == [] and len(missing) == 2 and "none is not here" in missing[0]


def test_words_have_a_perplexity():
    rows = with_perplexity([{"bits": Estimate(3.0, 2.0, 4.0, 0.95, 9, "told", unit)} for unit in ("bits per token", "bits")])
    assert rows[0]["perplexity"] == Estimate(8.0, 4.0, 16.0, 0.95, 9, "told", "per token") and "perplexity" not in rows[1]


@pytest.mark.slow
def test_a_stage_starts_from_its_model_and_ranks_are_found_once(tmp_path, monkeypatch):
    """Two updates of networks on a few lines: a softmax is of the rank of its width, a mixture may be of more."""
    text = tmp_path / "lines.txt"
    text.write_text("".join(f"{n % 11} men and {n % 13} cats saw {n % 7} dogs\n" for n in range(400)))
    whole = recipe._smoke()
    short = {
        name: replace(rank, data=replace(rank.data, source=str(text)), training=replace(rank.training, steps=2))
        for name, rank in whole.models.items()
    }
    study = replace(whole, models=short, test_limit=60)
    context = StudyContext(scale="smoke", out=tmp_path / "rows")
    for model in study.models:
        rows = train_and_measure(context, study, model, 0, context.run_dir(study.name, model))["rows"]
        assert [row["evaluated"] for row in rows] == ["as in training", *(["learning from it (mos)"] if model == MOS else [])]
    tuned = run_for_seed(context, study, "MoS, fine-tuned", 0)
    assert tuned.start == run_for_seed(context, study, MOS, 0).out and tuned.training.seed == 0
    study = replace(study, models={name: rank for name, rank in study.models.items() if rank.start is None})
    ranks = rank_rows(context, study)
    assert all(rank["rank"].value <= rank["softmax_at_most"] for rank in ranks if rank["model"] != MOS)
    monkeypatch.setattr("esscher.papers.softmax_bottleneck.recipe.measure_rank", None)
    assert rank_rows(context, study) == ranks


@pytest.mark.slow
def test_the_smoke_scale_makes_every_part(tmp_path):
    result = run(StudyContext(scale="smoke", out=tmp_path, seeds=1))
    assert [row["model"] for row in result["rows"]] == [SOFTMAX, MOC, MOS, MOS, "MoS, fine-tuned"]
    assert [row["model"] for row in result["ranks"]] == [SOFTMAX, MOC, MOS, "MoS, fine-tuned"]
    assert "docstrings: ranks" in (tmp_path / "report.html").read_text()
    assert run(StudyContext(scale="smoke", out=tmp_path, seeds=1)) == result
