"""Effects over seeds of recipes on long texts, on rows whose answer is known."""

import json
import math

import pytest

from esscher.core.estimate import Estimate
from esscher.papers.stream_effects import AS_IN_TRAINING, Comparison, Side, Trend, effects, keep, levels

QUANTILE = 4.302653  # Student's, with 2 degrees of freedom


def row(model, seed, bits, evaluated=AS_IN_TRAINING, text="words"):
    of_bits = Estimate(bits, bits - 0.5, bits + 0.5, 0.95, 9, "blocks", "bits per token")
    return {"text": text, "model": model, "evaluated": evaluated, "seed": seed, "bits": of_bits}


def rank(model, seed, value):
    return {"text": "words", "model": model, "seed": seed, "rank": Estimate.exact(float(value)), "large": value}


def test_an_effect_is_a_mean_of_differences_within_seeds():
    """Fewer bits are better: saved are 0.1, 0.2 and 0.3. A row in another mode or of another text, and a seed without the other
    side, do not count."""
    saved = [0.1, 0.2, 0.3]
    rows = [row("plain", seed, 5.0 + seed) for seed in range(3)] + [
        row("MoS", seed, 5.0 + seed - saved[seed]) for seed in range(3)
    ]
    rows += [row("MoS", 0, 1.0, "another mode"), row("MoS", 0, 1.0, text="other"), row("MoS", 3, 1.0)]
    (actual,) = effects([Comparison("better", Side("words", "MoS"), Side("words", "plain"), thesis="theirs")], rows)
    half = QUANTILE * 0.1 / math.sqrt(3)
    assert actual["effect"].value == pytest.approx(0.2) and actual["seeds"] == 3 and actual["thesis"] == "theirs"
    assert actual["effect"].high - 0.2 == pytest.approx(half, rel=1e-4) and actual["verdict"] == "open"
    (actual,) = effects([Comparison("worse", Side("words", "plain"), Side("words", "MoS"))], rows[:2] + rows[3:5])
    assert actual["effect"].value == pytest.approx(-0.15) and actual["seeds"] == 2


def test_verdicts_need_two_seeds_and_ranks_are_better_when_higher():
    rows = [rank(model, seed, value) for seed in range(2) for model, value in (("MoS", 2_000), ("plain", 66))]
    up = Comparison("higher", Side("words", "MoS"), Side("words", "plain"), column="rank")
    down = Comparison("lower", Side("words", "plain"), Side("words", "MoS"), column="large")
    assert [(one["effect"].value, one["verdict"]) for one in effects([up, down], rows)] == [
        (1_934, "reproduced"), (-1_934, "refuted under these conditions")
    ]  # fmt: skip
    (single,) = effects([up], rows[:2])
    assert single["seeds"] == 1 and single["verdict"] == "open" and single["effect"].method == "one seed"
    assert effects([up], rows[:1]) == []


def test_a_trend_is_the_gain_of_each_doubling():
    """Bits of 5, 4.9 and 4.7 at 1, 2 and 8 components: the slope of least squares over 0, 1 and 3 doublings is -0.1."""
    rows = [row(f"MoS of {k}", seed, bits + seed) for seed in range(2) for k, bits in ((1, 5.0), (2, 4.9), (8, 4.7))]
    sides = {k: Side("words", f"MoS of {k}") for k in (1, 2, 8)}
    (actual,) = effects([Trend("more", sides)], rows)
    assert actual["effect"].value == pytest.approx(0.1) and actual["verdict"] == "reproduced" and actual["seeds"] == 2
    assert effects([Trend("more", sides)], rows[:5])[0]["seeds"] == 1 and effects([Trend("more", sides)], rows[:2]) == []


def test_levels_say_how_many_seeds_they_have():
    rows = [row("MoS", 0, 5.0), row("MoS", 1, 5.2), row("plain", 0, 6.0)]
    mos, plain = levels(rows, ("bits",))
    assert mos["seeds"] == 2 and mos["bits"].value == pytest.approx(5.1) and mos["bits"].counted == "seeds"
    assert plain["seeds"] == 1 and plain["bits"] == rows[2]["bits"]
    (ranks,) = levels([rank("MoS", 0, 50)], ("rank", "large"))
    assert ranks["evaluated"] == AS_IN_TRAINING and ranks["large"] == ranks["rank"]


def test_what_is_kept_can_be_read_again(tmp_path):
    keep(tmp_path / "made.json", 3, {"rows": [row("MoS", 0, 5.0)]})
    actual = json.loads((tmp_path / "made.json").read_text())
    assert actual["missing"] == 3 and actual["rows"][0]["bits"]["value"] == 5.0
