"""The study of intervals on laws with known truth: its rows are complete, and a wrong interval is seen."""

import json
import math

import numpy as np
import pytest

from esscher.papers.laboratory import interval_laws
from esscher.papers.study import StudyContext
from esscher.testing.interval_laws import (
    HELD_BACK_TEXT_LAWS,
    HELD_BACK_WEIGHT_LAWS,
    SECOND_TEXT_LAWS,
    SECOND_WEIGHT_LAWS,
    TEXT_LAWS,
    WEIGHT_LAWS,
)


@pytest.mark.parametrize(
    "name", ["log-normal 1", "2 % at +5", "1 % allowed", "pareto 3", "inverse gaussian", "skew normal", "gumbel 0.4"]
)
def test_truths_of_weights_are_those_of_a_large_sample(name):
    law = {**WEIGHT_LAWS, **SECOND_WEIGHT_LAWS}[name]
    log_weight = law.log_weights(np.random.default_rng(0), (400_000,))
    weight = np.exp(log_weight)
    share = weight / weight.sum()
    assert math.log(weight.mean()) == pytest.approx(law.log_z, abs=0.05)
    assert float((share[weight > 0] * log_weight[weight > 0]).sum()) - law.log_z == pytest.approx(law.kl, abs=0.1)
    assert float(share[log_weight > law.large].sum()) == pytest.approx(law.probability_large, abs=0.03)


@pytest.mark.parametrize("law", [*TEXT_LAWS.values(), *SECOND_TEXT_LAWS.values()], ids=[*TEXT_LAWS, *SECOND_TEXT_LAWS])
def test_truths_of_texts_are_those_of_a_large_sample(law):
    length, nats = law.draw(np.random.default_rng(1), (300_000,))
    assert nats.sum() / length.sum() == pytest.approx(law.rate, rel=0.01)
    assert length.mean() == pytest.approx(law.length, rel=0.01)


def few(monkeypatch):
    for table, value in (("REPLICATIONS", 3), ("DRAWS", (50,)), ("TEXTS", (3,))):
        monkeypatch.setitem(getattr(interval_laws, table), "smoke", value)


def test_rows_of_a_law(monkeypatch):
    few(monkeypatch)
    rows = interval_laws.weight_rows(WEIGHT_LAWS["2 % at +5"], "smoke")
    assert [row["quantity"] for row in rows] == ["log Z", "kl", "large", "coin"]
    assert all(row["draws"] == 50 and row["replications"] == 3 and 0 <= row["good"] <= 1 for row in rows)
    rows = interval_laws.text_rows(TEXT_LAWS["uniform"], "smoke")
    assert {(row["texts"], row["prompts"]) for row in rows} == {(3, 1), (3, 3)} and len(rows) == 18


@pytest.mark.slow
def test_the_smallest_study(monkeypatch, tmp_path):
    few(monkeypatch)
    rows = interval_laws.run(StudyContext(scale="smoke", out=tmp_path))["rows"]
    laws = {row["law"] for row in rows}
    held_back = {*HELD_BACK_WEIGHT_LAWS, *HELD_BACK_TEXT_LAWS, *SECOND_WEIGHT_LAWS, *SECOND_TEXT_LAWS}
    assert laws > {*WEIGHT_LAWS, *TEXT_LAWS, *held_back} and "weak energy" in laws
    assert json.loads((tmp_path / "intervals.json").read_text())["rows"] == rows
