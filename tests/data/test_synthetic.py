"""Sets drawn from a known process: their sizes, and that they are of the process."""

import pytest

from esscher.core.randomness import SeededRng
from esscher.data.splits import draw_splits
from esscher.exact.languages import motif_process


def test_sizes_of_the_paper():
    process = motif_process("1", 2).base
    splits = [draw_splits(process, size, test=1, rng=SeededRng(0)) for size in (500, 1000, 5000, 10000, 20000)]
    assert [len(split.validation) for split in splits] == [500, 500, 1250, 2000, 2000]


def test_sets_are_of_the_process_and_the_test_set_stays():
    process = motif_process("101", 8)
    small, large = (draw_splits(process.base, size, test=300, rng=SeededRng(3)) for size in (100, 600))
    assert (len(small.train), len(small.validation), len(small.test)) == (100, 500, 300)
    assert small.test.tokens.equal(large.test.tokens)
    assert not large.train.tokens[:300].equal(large.test.tokens)
    for part in (small.train, small.validation, small.test):
        assert all("101" in string for string in process.decode(part))
    assert len(draw_splits(process.base, 1, rng=SeededRng(3)).test) == 5000
    with pytest.raises(ValueError, match="at least one point"):
        draw_splits(process.base, 0, rng=SeededRng(3))
