"""Windows of two segments: what stands where, and how often the second one goes on."""

from itertools import pairwise

import pytest
import torch

from esscher.core.randomness import SeededRng
from esscher.data.text import SegmentPairWindows

WINDOWS = SegmentPairWindows(20, 8, separator=101, summary=102)


def test_a_window_is_what_goes_on_and_two_texts():
    columns = torch.arange(100).view(2, 50)
    followed = 0
    for seed in range(200):
        for row, window in zip(columns, WINDOWS.rows(columns, 16, rng=SeededRng(seed)).tolist(), strict=True):
            assert len(window) == 20 and window[:8] == row[16:24].tolist() and window[-1] == 102
            first, second = (place for place, token in enumerate(window) if token == 101)
            assert second == 18 and 9 <= first <= 16
            assert window[8:first] == row[24 : 24 + first - 8].tolist()
            other = window[first + 1 : second]
            assert all(b - a == 1 for a, b in pairwise(other))
            followed += other[0] == window[first - 1] + 1
    assert 140 < followed < 265  # half of 400, and a few by chance: 6 standard deviations


def test_the_last_window_ends_with_the_column():
    columns = torch.arange(50)[None]
    assert WINDOWS.rows(columns, 33, rng=SeededRng(0)).shape == (1, 20)
    with pytest.raises(ValueError, match="ends after the last of 50"):
        WINDOWS.rows(columns, 34, rng=SeededRng(0))
    with pytest.raises(ValueError, match="has 1 left"):
        SegmentPairWindows(12, 8, 101, 102)
