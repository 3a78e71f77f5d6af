"""The recipe on the softmax bottleneck: sizes, stages, ranks, and the smallest run."""

import json
from dataclasses import replace

import pytest
import torch

from esscher.bases.network import build_network
from esscher.core.estimate import Estimate
from esscher.papers.softmax_bottleneck import studies
from esscher.papers.softmax_bottleneck.claims import claims_of
from esscher.papers.softmax_bottleneck.recipe import rank_row, run
from esscher.papers.softmax_bottleneck.studies import (
    AWD_TRAINING,
    MOC,
    MOS,
    SOFTMAX,
    awd_study,
    bottleneck_studies,
    characters_study,
    components_sweep,
    equal_size_sweep,
    smoke_study,
    words_study,
)
from esscher.papers.stream_effects import Trend
from esscher.papers.streams import EvaluationMode, run_for_seed, train_and_measure, with_perplexity
from esscher.papers.study import StudyContext


def size(run, vocabulary):
    with torch.device("meta"):
        return sum(weight.numel() for weight in build_network(run.base, vocabulary).parameters())


@pytest.mark.parametrize(("make", "vocabulary"), [(words_study, 2_000), (characters_study, 28)])
def test_heads_are_compared_in_networks_of_one_size(make, vocabulary):
    sizes = [size(model, vocabulary) for model in make().models.values()]
    assert max(sizes) < 1.01 * min(sizes)
    assert all(model.training == make().models[SOFTMAX].training for model in make().models.values())


def test_the_sweep_keeps_the_size():
    sizes = [size(model, 2_000) for model in [*equal_size_sweep().models.values(), words_study().models[MOS]]]
    assert max(sizes) < 1.01 * min(sizes)


def test_components_are_also_swept_alone():
    """All else equal, a network grows by the same number of weights with every component, and its LSTM does not narrow."""
    words = words_study().models[MOS]
    models = {**components_sweep().models, "MoS of 8": words}
    for name, model in models.items():
        assert replace(model, base=replace(model.base, components=8)) == words, name
    sizes = [size(models[f"MoS of {k}"], 2_000) for k in (1, 2, 4, 8, 16)]
    steps = [(more - less) / k for less, more, k in zip(sizes, sizes[1:], (1, 2, 4, 8), strict=False)]
    assert len(set(steps)) == 1 and steps[0] > 0


def test_awd_lstm_has_one_size_and_a_second_stage_that_averages():
    study = awd_study()
    sizes = [size(study.models[name], 2_000) for name in (SOFTMAX, MOS)]
    assert max(sizes) < 1.01 * min(sizes)
    for name in (SOFTMAX, MOS):
        first, second = study.models[name], study.models[f"{name}, fine-tuned"]
        assert first.training == AWD_TRAINING and first.training.swa_patience == 5 and first.length.segments == "random"
        assert second.start == name and second.training.swa_start == 0.0 and second.length == first.length
        assert [mode.name for mode in study.evaluation_modes[f"{name}, fine-tuned"]] == ["learning from it (mos)"]


def test_claims_are_of_rows_that_the_studies_make(monkeypatch):
    """Each side is a model of a study in a mode in which it is evaluated, at the small and the smallest scale."""
    monkeypatch.setattr("pathlib.Path.exists", lambda _: True)
    for scale in ("smoke", "small"):
        made = {study.name: study for study in bottleneck_studies(scale)[0]}
        claims = claims_of(scale)
        sides = [
            side
            for claim in claims
            for side in (claim.sides.values() if isinstance(claim, Trend) else (claim.side, claim.against))
        ]
        for side in sides:
            study = made[side.study]
            modes = (EvaluationMode(), *study.evaluation_modes.get(side.model, ()))
            assert side.model in study.models and side.evaluated in [mode.name for mode in modes], side
        names = [(claim.claim, claim.column) for claim in claims]
        assert len(set(names)) == len(names) and set(made) <= {side.study for side in sides}
    assert claims_of("paper") == []


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
    monkeypatch.setattr(studies, "BOOKS", replace(studies.BOOKS, source=str(tmp_path / "none")))
    monkeypatch.setattr(studies, "LETTERS", replace(studies.LETTERS, source=str(tmp_path / "nothing")))
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
    whole = smoke_study()
    short = {
        name: replace(rank, data=replace(rank.data, source=str(text)), training=replace(rank.training, steps=2))
        for name, rank in whole.models.items()
    }
    study = replace(whole, models=short, test_limit=60)
    context = StudyContext(scale="smoke", out=tmp_path / "rows")
    for model in study.models:
        rows = train_and_measure(context, study, model, 0, context.run_dir(study.name, model))["rows"]
        modes = study.evaluation_modes.get(model, ())
        assert [row["evaluated"] for row in rows] == ["as in training", *(mode.name for mode in modes)]
    tuned = run_for_seed(context, study, "MoS, fine-tuned", 0)
    assert tuned.start == run_for_seed(context, study, MOS, 0).out and tuned.training.seed == 0
    ranks = {model: rank_row(context, study, model, 0) for model in study.models if model in (SOFTMAX, MOC, MOS)}
    assert all(ranks[model]["rank"].value <= ranks[model]["softmax_at_most"] for model in (SOFTMAX, MOC))
    assert all(rank["divergence"].low < rank["divergence"].value for rank in ranks.values())
    monkeypatch.setattr("esscher.papers.softmax_bottleneck.recipe.measure_rank", None)
    assert {model: rank_row(context, study, model, 0) for model in ranks} == ranks


@pytest.mark.slow
def test_the_smoke_scale_makes_every_part(tmp_path):
    result = run(StudyContext(scale="smoke", out=tmp_path, seeds=1))
    tuned = ["softmax, fine-tuned", "MoS, fine-tuned"]
    assert [row["model"] for row in result["ranks"]] == [SOFTMAX, MOC, MOS, "MoS of 1", *tuned]
    assert len(result["rows"]) == 6 + 4 and len(result["effects"]) == len(claims_of("smoke"))
    assert {row["verdict"] for row in result["effects"]} == {"open"}, "one seed has no verdict"
    kept = json.loads((tmp_path / "bottleneck.json").read_text())
    assert kept["missing"] == 0 and len(kept["levels"]) == 10 and len(kept["ranks"]) == 6
    assert "docstrings: ranks" in (tmp_path / "report.html").read_text()
    assert run(StudyContext(scale="smoke", out=tmp_path, seeds=1)) == result
