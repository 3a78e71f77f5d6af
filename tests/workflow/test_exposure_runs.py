"""Exposure of models on streams: the memory is the context, places lie apart, some at a time is the same as all at once."""

import pytest
import torch
from small_networks import CONFIGS, lively

from esscher.bases.logits import log_probs_and_logsumexp
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, point_values
from esscher.estimators.exposure_bias import self_conditioned_scores
from esscher.workflow import analyse_bases
from esscher.workflow.analyse_bases import score_stream_positions, stream_windows
from esscher.workflow.config.analyse import ExposureConfig

TOKENS = torch.arange(400) * 7 // 3 % 3
SETTINGS = ExposureConfig(sequences=12, draws=2, warmup=5)


def test_places_lie_apart_behind_what_stands_before():
    windows, warm = stream_windows(TOKENS, 4, SETTINGS)
    assert windows.shape == (12, 9) and warm == 5
    text = "".join(map(str, TOKENS.tolist()))
    places = [text.index("".join(map(str, row.tolist()))) for row in windows[:1]]
    assert places[0] == 0 and torch.equal(windows[0], TOKENS[:9])
    marked, _ = stream_windows(torch.arange(400), 4, SETTINGS)
    firsts = marked[:, 5]
    assert int((firsts[1:] - firsts[:-1]).min()) >= 4 and int(marked.max()) < 400
    many, less = stream_windows(torch.arange(30), 4, ExposureConfig(sequences=100, warmup=1000))
    assert less == 13 and len(many) == 4 and torch.equal(many[0], torch.arange(17))
    with pytest.raises(ValueError, match=r"5 tokens has fewer than two places of 4"):
        stream_windows(TOKENS[:5], 4, SETTINGS)


@pytest.mark.parametrize("config", ["transformer-xl", "lstm, vectors"])
def test_levels_are_those_after_the_whole_context(config, monkeypatch):
    """As after prompts; a memory that was not read gives others; groups of places change nothing."""
    base = lively(CONFIGS[config], Space(3, 4)).double()
    windows, warm = stream_windows(TOKENS, 4, SETTINGS)
    data, drawn, outputs = score_stream_positions(base, windows, warm, SETTINGS, rng=SeededRng(0))
    stop = torch.full((12,), 9)
    whole = Sequences(windows, stop - 4, stop)
    expected = point_values(whole, log_probs_and_logsumexp(base, whole)[1].detach().double(), 4)
    torch.testing.assert_close(data.logsumexp, expected, atol=1e-9, rtol=0)
    self_value = self_conditioned_scores(base, whole, rng=SeededRng(0))
    torch.testing.assert_close(outputs.log_prob, self_value.log_prob, atol=1e-9, rtol=0)
    assert drawn.replicate.tolist() == [row for row in range(12) for _ in range(2)]
    torch.testing.assert_close(drawn.logsumexp[::2, 0], expected[:, 0], atol=1e-9, rtol=0)  # before the first draw
    torch.testing.assert_close(drawn.logsumexp[1::2, 0], expected[:, 0], atol=1e-9, rtol=0)
    blind, _, _ = score_stream_positions(base, windows[:, warm:], 0, SETTINGS, rng=SeededRng(0))
    assert float((blind.logsumexp - expected).abs().max()) > 1e-3
    monkeypatch.setattr(analyse_bases, "rows_at_once", lambda space: 10)
    data_again, _, outputs_again = score_stream_positions(base, windows, warm, SETTINGS, rng=SeededRng(0))
    torch.testing.assert_close(data_again.logsumexp, data.logsumexp, atol=1e-9, rtol=0)
    torch.testing.assert_close(outputs_again.log_prob, outputs.log_prob, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"sequences": 1}, "sequences is at least 2"),
        ({"draws": 0}, "draws is at least 1"),
        ({"longest": 0}, "longest is at least 1"),
        ({"warmup": -1}, "warmup is at least 0"),
    ],
)
def test_impossible_settings_are_refused(settings, word):
    with pytest.raises(ValueError, match=word):
        ExposureConfig(**settings)
