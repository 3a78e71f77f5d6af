"""Recipes on long memory: what they study, how rows are compared, and the smallest run of each."""

import math

import pytest
import torch

from esscher.bases.config import TransformerXLConfig
from esscher.estimate import Estimate
from esscher.recipes import stream_studies
from esscher.recipes.local_xl import run as run_local
from esscher.recipes.rows import place_of
from esscher.recipes.stream_rows import SCORES, compared, over_seeds
from esscher.recipes.stream_studies import NONE, XL, Look, StreamStudy, local_studies, memory_studies
from esscher.recipes.transformer_xl import run
from esscher.storage import write_tensors


@pytest.mark.slow
def test_the_smoke_scales_make_every_row_once(tmp_path):
    found = run(scale="smoke", out=tmp_path / "memory", seeds=1)
    assert [(row["model"], row["sees"]) for row in found["rows"]] == [
        (NONE, "as in training"), (NONE, "15 back"), (XL, "as in training"), (XL, "32 back"),
    ]  # fmt: skip
    assert len({row["parameters"] for row in found["rows"]}) == 1
    assert "Transformer-XL" in (tmp_path / "memory/report.html").read_text()
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("row.json")}
    assert run(scale="smoke", out=tmp_path / "memory", seeds=1)["rows"] == found["rows"]
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert len(run_local(scale="smoke", out=tmp_path / "local", seeds=1)["rows"]) == 5


def test_what_is_studied_at_each_scale(tmp_path, monkeypatch):
    absent = {name: (type(data)(str(tmp_path / name)), *rest) for name, (data, *rest) in stream_studies.TEXTS.items()}
    monkeypatch.setattr(stream_studies, "TEXTS", absent)
    studies, left_out = memory_studies("small")
    assert studies == [] and len(left_out) == 3 and "is not here" in left_out[0]
    for scale in ("smoke", "paper"):
        for study in [*memory_studies(scale)[0], *local_studies(scale)[0]]:
            assert study.against in study.models
            for one in study.models.values():
                assert isinstance(one.base.resolve(), TransformerXLConfig) and one.length.stream
    published = {study.name: study for study in memory_studies("paper")[0]}
    assert set(published) == {"enwik8", "text8", "WikiText-103", "One Billion Word", "Penn Treebank"}
    assert published["WikiText-103"].models["16 layers"].base.head_width == 41


def test_rows_are_compared_token_by_token_and_seed_by_seed(tmp_path):
    """A model that is better by a tenth of a bit at every token saves exactly that, however much texts differ."""
    study = StreamStudy("text", "character", {}, {}, NONE)
    rows = []
    for seed in range(3):
        plain = -torch.rand(4_000, generator=torch.Generator().manual_seed(seed)) * 5
        for model, score in ((NONE, plain), (XL, plain + (0.1 + 0.01 * seed) * math.log(2))):
            place = place_of(tmp_path, model, seed)
            write_tensors(place / SCORES, {Look().name: score, "character": torch.ones(4_000).double()})
            bits = Estimate.exact(-float(score.double().mean()) / math.log(2), unit="bits per character")
            rows.append({"text": "text", "model": model, "sees": Look().name, "seed": seed, "bits": bits})
    found = compared(study, rows, tmp_path)
    assert found[0]["saved"] is None
    for seed in range(3):
        saved = found[2 * seed + 1]["saved"]
        assert saved.value == pytest.approx(0.1 + 0.01 * seed, abs=1e-5) and saved.high - saved.low < 1e-4
    mean = over_seeds(found)[1]["saved"]
    half = 4.302653 * 0.01 / math.sqrt(3)  # Student's quantile with 2 degrees of freedom
    assert mean.value == pytest.approx(0.11, abs=1e-5) and mean.high - mean.value == pytest.approx(half, rel=1e-3)
    assert over_seeds(found[:2]) == []
