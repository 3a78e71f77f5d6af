"""Exposure of models on streams: the memory is the context, places lie apart, some at a time is the same as all at once."""

import pytest
import torch
from networks import CONFIGS, lively

from esscher.bases.logits import scores_and_levels
from esscher.estimators.exposure_ratio import own_scores
from esscher.randomness import Seeded
from esscher.settings.exposure import ExposureSettings
from esscher.space import Sequences, Space, by_position
from esscher.verbs import exposure
from esscher.verbs.exposure import contexts_of, read_places

TOKENS = torch.arange(400) * 7 // 3 % 3
SETTINGS = ExposureSettings(sequences=12, draws=2, warm=5)


def test_places_lie_apart_behind_what_stands_before():
    windows, warm = contexts_of(TOKENS, 4, SETTINGS)
    assert windows.shape == (12, 9) and warm == 5
    text = "".join(map(str, TOKENS.tolist()))
    places = [text.index("".join(map(str, row.tolist()))) for row in windows[:1]]
    assert places[0] == 0 and torch.equal(windows[0], TOKENS[:9])
    marked, _ = contexts_of(torch.arange(400), 4, SETTINGS)
    firsts = marked[:, 5]
    assert int((firsts[1:] - firsts[:-1]).min()) >= 4 and int(marked.max()) < 400
    many, less = contexts_of(torch.arange(30), 4, ExposureSettings(sequences=100, warm=1000))
    assert less == 13 and len(many) == 4 and torch.equal(many[0], torch.arange(17))
    with pytest.raises(ValueError, match=r"5 tokens has fewer than two places of 4"):
        contexts_of(TOKENS[:5], 4, SETTINGS)


@pytest.mark.parametrize("config", ["transformer-xl", "lstm, vectors"])
def test_levels_are_those_after_the_whole_context(config, monkeypatch):
    """As after prompts; a memory that was not read gives others; groups of places change nothing."""
    base = lively(CONFIGS[config], Space(3, 4)).double()
    windows, warm = contexts_of(TOKENS, 4, SETTINGS)
    found = read_places(base, windows, warm, SETTINGS, rng=Seeded(0))
    stop = torch.full((12,), 9)
    whole = Sequences(windows, stop - 4, stop)
    expected = by_position(whole, scores_and_levels(base, whole)[1].detach().double(), 4)
    torch.testing.assert_close(found.data.level, expected, atol=1e-9, rtol=0)
    own = own_scores(base, whole, rng=Seeded(0))
    torch.testing.assert_close(found.own.log_prob, own.log_prob, atol=1e-9, rtol=0)
    assert found.drawn.replicate.tolist() == [row for row in range(12) for _ in range(2)]
    torch.testing.assert_close(found.drawn.level[::2, 0], expected[:, 0], atol=1e-9, rtol=0)  # before the first draw
    torch.testing.assert_close(found.drawn.level[1::2, 0], expected[:, 0], atol=1e-9, rtol=0)
    blind = read_places(base, windows[:, warm:], 0, SETTINGS, rng=Seeded(0))
    assert float((blind.data.level - expected).abs().max()) > 1e-3
    monkeypatch.setattr(exposure, "rows_at_once", lambda space: 10)
    again = read_places(base, windows, warm, SETTINGS, rng=Seeded(0))
    torch.testing.assert_close(again.data.level, found.data.level, atol=1e-9, rtol=0)
    torch.testing.assert_close(again.own.log_prob, found.own.log_prob, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"sequences": 1}, "sequences is at least 2"),
        ({"draws": 0}, "draws is at least 1"),
        ({"longest": 0}, "longest is at least 1"),
        ({"warm": -1}, "0 tokens or more"),
    ],
)
def test_impossible_settings_are_refused(settings, word):
    with pytest.raises(ValueError, match=word):
        ExposureSettings(**settings)
