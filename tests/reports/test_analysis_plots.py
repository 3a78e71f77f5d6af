"""Pictures of the analyses: every series is drawn, with its interval, into the format asked for."""

import pytest

from esscher.core.estimate import Estimate
from esscher.reports.plots import estimate_bars, estimate_lines, save_figure, step_histograms


def some(value):
    return Estimate(value, value - 0.1, value + 0.05, 0.95, 10, "")


def test_step_histograms_show_densities(tmp_path):
    figure = step_histograms([0.0, 1.0, 3.0], {"data": [0.5, 0.5], "base": [1.0, 0.0], "joint": [0.4, 0.6]}, label="nats")
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["data", "base", "joint"]
    assert max(patch.get_data().values.max() for patch in axes.patches) == 1.0  # a share of 1 in a bin one wide
    assert save_figure(figure, tmp_path / "a" / "b.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match=r"png"):
        save_figure(figure, tmp_path / "b.word")


def test_estimates_have_whiskers(tmp_path):
    lines = {"data": [some(0.9), some(0.8)], "joint": [some(0.7), some(0.6)]}
    figure = estimate_lines([1, 2], lines, x="n", y="ratio")
    assert len(figure.axes[0].containers) == 2
    bars = estimate_bars(["'$x'", "all others"], lines, label="probability")
    assert [text.get_text() for text in bars.axes[0].get_yticklabels()] == [r"'\$x'", "all others"]
    assert save_figure(bars, tmp_path / "bars.svg").read_text().count("<svg") == 1
    gaps = estimate_bars(["a", "b"], {"data": [None, some(0.8)], "joint": [some(0.7), some(0.6)]}, label="probability")
    (gap,) = (bars for bars in gaps.axes[0].containers if getattr(bars, "patches", None) and len(bars.patches) == 1)
    assert gap.patches[0].get_width() == 0.8 and round(gap.patches[0].get_y() + gap.patches[0].get_height() / 2, 6) == 1.0
