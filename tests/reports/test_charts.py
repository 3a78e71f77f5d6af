"""Charts of a page: round axes, one scale, intervals in words, and text that never becomes markup."""

import math
import re

import pytest

from esscher.core.estimate import Estimate
from esscher.reports.charts import MAX_POINTS, Axis, Line, line_chart, whisker_chart

EVIL = "<script>alert(1)</script>"


def some(value, half=0.1, **more):
    return Estimate(value, value - half, value + half, 0.95, 10, "delta", **more)


@pytest.mark.parametrize("values", [[0.0, 1.0], [2.3, 2.9], [-5.0, 1e6], [3.0, 3.0], [math.nan, 1.0], [], [1e-9, 3e-9]])
def test_axes_are_round_and_hold_all_values(values):
    axis = Axis.around(values)
    assert all(axis.low <= value <= axis.high for value in values if math.isfinite(value))
    assert 2 <= len(axis.ticks) <= 7 and len({words for _, words in axis.labels()}) == len(axis.ticks)
    assert [axis.percent(axis.low), axis.percent(axis.high), axis.percent(math.inf)] == [0.0, 100.0, 100.0]


def test_quarters_are_not_rounded_to_tenths():
    assert [words for _, words in Axis.around([0.0, 1.0]).labels()] == ["0.00", "0.25", "0.50", "0.75", "1.00"]


def test_whiskers_share_a_scale_and_show_numbers_on_hover_and_in_text():
    html = str(whisker_chart({"a": some(1.0), EVIL: some(2.0)}, label=EVIL, include=(0.0,)))
    assert "<script" not in html and html.count("&lt;script&gt;") == 2
    dots = [float(left) for left in re.findall(r'class="dot" style="left: ([0-9.]+)%', html)]
    assert dots[1] == pytest.approx(2 * dots[0], abs=0.02)
    assert 'title="1 [0.9, 1.1] (95 %, 10 draws, delta)"' in html and "1.00 [0.90, 1.10]" in html


def test_lines_have_bands_marks_and_few_points():
    steps = [float(step) for step in range(5_000)]
    long = Line("training", steps, [1 / (1 + step) for step in steps], "base")
    marked = Line(EVIL, [0.0, 10.0], [1.0, 0.5], "tilted", [0.9, 0.4], [1.1, 0.6], marks=True)
    html = str(line_chart([long, marked], x="step", y="loss"))
    (first, second) = re.findall(r'<polyline class="[^"]+" points="([^"]+)"', html)
    assert len(first.split()) <= MAX_POINTS + 1 and len(second.split()) == 2
    assert html.count("<polygon") == 1 and "0.5 [0.4, 0.6] at step 10" in html and "<script" not in html
    only = str(line_chart([Line("one", [3.0], [2.0])], x="step", y="loss"))
    assert 'class="mark of-tilted"' in only
