"""The coverage study: its exact values are exact, its rows are complete; the study itself runs as `slow`."""

import json

import pytest
import torch

from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.estimators.expectations import moments
from esscher.estimators.log_z import log_z
from esscher.estimators.perplexity import cross_entropy
from esscher.exact.automaton import Automaton
from esscher.papers.laboratory import coverage
from esscher.papers.study import StudyContext
from esscher.samplers.importance import Importance


@pytest.mark.parametrize("make", [coverage.ending, coverage.motif, coverage.heavy])
def test_exact_values_agree_with_a_large_sample(make):
    """Three 99.99 % intervals."""
    process = make()
    draws = Importance()(process.target, empty_prompts(1), 40_000, rng=SeededRng(1))
    test = process.sequences(4000, SeededRng(2))
    assert log_z(draws, confidence=0.9999).covers(process.truth["log Z"])
    assert moments(draws, coverage._feature(draws.x).view(1, -1, 1), confidence=0.9999)[0].covers(process.truth["moment"])
    assert cross_entropy(process.target, test, draws=draws, confidence=0.9999)["token"].covers(process.truth["cross-entropy"])


def test_heavy_weights_are_log_normal_with_deviation_three_halves():
    draws = Importance()(coverage.heavy().target, empty_prompts(1), 20_000, rng=SeededRng(3))
    standard = (draws.log_weight - draws.log_weight.mean()) / draws.log_weight.std()
    assert float(draws.log_weight.std()) == pytest.approx(1.5, abs=0.03)
    assert abs(float((standard**3).mean())) < 0.1
    assert float((standard**4).mean()) == pytest.approx(3, abs=0.2)


def test_state_share_is_that_of_long_random_prompts():
    base = coverage._automaton_target().base
    assert isinstance(base, Automaton)
    prompts = coverage.prompts_of((1 + torch.randint(3, (3000, 12), generator=torch.Generator().manual_seed(4))).tolist())
    actual = base.begin(prompts)[1].bincount(minlength=3) / 3000
    assert torch.allclose(actual.double(), coverage._state_share(base), atol=0.05)


def test_rows_and_file(monkeypatch, tmp_path):
    monkeypatch.setitem(coverage.REPLICATIONS, "smoke", 4)
    monkeypatch.setitem(coverage.DRAWS, "smoke", (50,))
    result = coverage.run(StudyContext(scale="smoke", out=tmp_path, seeds=2))
    assert {row["process"] for row in result["rows"]} == {"ending", "motif", "heavy", "prompted"}
    for row in result["rows"]:
        assert row["replications"] == 8 and 0 <= row["low"] <= row["coverage"] <= row["high"] <= 1
    assert json.loads((tmp_path / "coverage.json").read_text())["rows"] == result["rows"]


@pytest.mark.slow
def test_intervals_cover_between_93_and_97_percent(tmp_path):
    """1500 replications: an interval that covers at 95 % leaves this band once in 2000."""
    rows = coverage.run(StudyContext(scale="smoke", out=tmp_path, seeds=3))["rows"]
    for row in rows:
        if row["quantity"] in ("log Z", "mean log Z", "perplexity"):
            assert 0.93 <= row["coverage"] <= 0.97, row
        if row["quantity"] == "log Z, guaranteed":
            assert row["coverage"] >= 0.95, row
        if row["process"] == "heavy":
            assert row["warned"] >= 0.9, row
