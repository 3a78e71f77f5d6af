"""Streams measured: columns lose nothing, and the interval of a dependent series covers where one of single tokens does not."""

import math

import pytest
import torch
from scipy.signal import lfilter
from small_networks import CONFIGS, lively

from esscher.core.space import Sequences, Space
from esscher.estimators import long_context as module
from esscher.estimators.intervals import (
    block_correlation,
    block_sums,
    choose_blocks,
    correlation_threshold,
    interval,
    ratio_of_sums,
)
from esscher.estimators.long_context import stream_cross_entropy, stream_log_probs, stream_warnings
from esscher.estimators.perplexity import as_bits, as_perplexity
from esscher.testing import assert_covers

SPACE = Space(5, 4)


@pytest.fixture(scope="module")
def base():
    return lively(CONFIGS["lstm, vectors"], SPACE)


def tokens_of(count):
    return torch.randint(5, (count,), generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("count", [1, 2, 23, 60])
@pytest.mark.parametrize("segment", [1, 7, 100])
def test_one_column_scores_the_whole_stream(base, count, segment):
    tokens = tokens_of(count)
    actual = stream_log_probs(base, tokens, segment=segment)
    whole = base.log_probs(Sequences(tokens[None], torch.tensor([0]), torch.tensor([count]))).detach()[0]
    assert torch.allclose(actual, whole.double(), atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 23, 60])
@pytest.mark.parametrize("streams", [2, 3, 11])
@pytest.mark.parametrize("warm", [0, 1, 9])
def test_columns_score_every_token_once_after_at_least_the_warm_up(base, count, streams, warm):
    """Each score is that of the token after the tokens from where its column began."""
    tokens = tokens_of(count)
    actual = stream_log_probs(base, tokens, streams=streams, warm=warm, segment=4)
    warm = min(warm, count - 1)
    step = math.ceil((count - warm) / streams)
    for place in range(count):
        column = 0 if place < warm + step else (place - warm) // step
        seen = tokens[column * step : place + 1]
        assert len(seen) > min(warm, place)
        alone = base.log_probs(Sequences(seen[None], torch.tensor([0]), torch.tensor([len(seen)]))).detach()[0, -1]
        assert float(actual[place]) == pytest.approx(float(alone), abs=1e-5)


def test_a_long_warm_up_gives_the_scores_of_one_column():
    """The memory of this network fades, so that 60 tokens are as good as all."""
    calm = lively(CONFIGS["gru, vectors"], SPACE)
    with torch.no_grad():
        for weight in calm.parameters():
            weight.mul_(0.5)
    tokens = tokens_of(400)
    item, cold, warm = (stream_log_probs(calm, tokens, streams=s, warm=w) for s, w in ((1, 0), (4, 0), (4, 60)))
    assert torch.allclose(item, warm, atol=1e-5) and not torch.allclose(item, cold, atol=1e-3)


def test_a_wrong_cut_of_columns_is_caught(base, monkeypatch):
    def shifted(tokens, streams, warm):
        rows, step = right(tokens, streams, warm)
        return rows.roll(1, 1), step

    right = module._stream_columns
    monkeypatch.setattr(module, "_stream_columns", shifted)
    with pytest.raises(AssertionError):
        test_columns_score_every_token_once_after_at_least_the_warm_up(base, 23, 3, 9)


def test_what_cannot_be_read(base):
    for wrong in ({"streams": 0}, {"segment": 0}, {"warm": -1}):
        with pytest.raises(ValueError, match="Nothing was measured"):
            stream_log_probs(base, tokens_of(9), **wrong)
    with pytest.raises(ValueError, match="got 0 tokens"):
        stream_log_probs(base, tokens_of(0))


def dependent(replication, *, memory=0.98, length=20_000):
    """Losses around 2 whose neighbours are alike, skewed as losses are."""
    generator = torch.Generator().manual_seed(replication)
    noise = torch.empty(length, dtype=torch.float64).exponential_(generator=generator) - 1
    return 2 + torch.from_numpy(lfilter([0.1], [1, -memory], noise.numpy()))


def _of_single_tokens(losses):
    def mean(count):
        return (count[0] * losses).sum() / count.sum()

    return interval(mean, [(1, len(losses))], confidence=0.95, n=len(losses), method="every token a replicate")


def test_blocks_cover_and_single_tokens_do_not():
    """False-alarm rate 1e-3 of the first; neighbours correlate at 0.98, so a hundred tokens are worth about one."""
    ones = torch.ones(20_000, dtype=torch.float64)
    hits, naive, replications = 0, 0, 300
    for replication in range(replications):
        losses = dependent(replication)
        hits += ratio_of_sums(losses, ones, confidence=0.95).covers(2.0)
        naive += _of_single_tokens(losses).covers(2.0)
    assert_covers(hits, replications, 0.95)
    with pytest.raises(AssertionError):
        assert_covers(naive, replications, 0.95)
    assert naive < 0.4 * replications


def test_blocks_grow_until_neighbours_are_not_alike():
    ones = torch.ones(20_000, dtype=torch.float64)
    short, long, endless = (dependent(3, memory=memory) for memory in (0.9, 0.9995, 0.99999))
    assert choose_blocks(short, ones) == 40 and block_correlation(short, ones, 40) < correlation_threshold(40)
    assert choose_blocks(long, ones) < 40 < 2 * choose_blocks(short, ones)
    assert choose_blocks(endless, ones) == 10 and block_correlation(endless, ones, 10) > correlation_threshold(10)


def test_units_bits_and_doubts():
    losses, words = dependent(1), torch.zeros(20_000)
    words[::4] = 1
    actual = stream_cross_entropy(-losses, {"token": torch.ones(20_000), "word": words})
    assert actual["word"].value == pytest.approx(4 * actual["token"].value)
    assert as_bits(actual)["token"].value == pytest.approx(actual["token"].value / math.log(2))
    assert as_bits(actual)["token"].unit == "bits per token" and as_perplexity(actual)["token"].unit == "per token"
    exact = stream_cross_entropy(-losses, {"token": torch.ones(20_000)}, test="fixed")["token"]
    assert exact.n == 0 and exact.value == pytest.approx(actual["token"].value)
    assert stream_warnings(-losses, torch.ones(20_000)) == []
    slow = dependent(3, memory=0.99999)
    assert "interval is too short" in stream_warnings(-slow, torch.ones(20_000))[0]
    assert "too few" in stream_warnings(-losses[:30], torch.ones(30))[0]
    assert ratio_of_sums(losses[:1], torch.ones(1), confidence=0.95).high == math.inf
    assert len(block_sums(losses, 40)) == 40 and float(block_sums(losses, 40).sum()) == pytest.approx(float(losses.sum()))


def test_blocks_sums_and_how_alike_neighbours_are():
    total, size = torch.tensor([1.0, 2, 3, 4, 5, 9]), torch.tensor([1.0, 1, 1, 1, 1, 1])
    assert block_sums(total, 3).tolist() == [3.0, 7.0, 14.0] and block_sums(total, 4).tolist() == [3.0, 7.0, 5.0, 9.0]
    assert block_sums(total, 40).tolist() == total.tolist() and block_sums(total, 0).tolist() == [24.0]
    assert block_correlation(total, size, 3) == pytest.approx((-5 * -1 + -1 * 6) / (25 + 1 + 36))
    assert block_correlation(total, torch.tensor([1.0, 2, 3, 4, 5, 9]), 3) == 0.0
    assert correlation_threshold(16) == 0.5


@pytest.mark.parametrize(("period", "blocks"), [(2, 40), (320, 20), (1200, 10), (2400, 10)])
def test_blocks_grow_until_neighbours_are_no_longer_alike(period, blocks):
    """Waves: shorter than a block they are gone; of 8 blocks of 40 they are 4 of 20; longer ones stay."""
    series = (torch.arange(1600) * 2 * math.pi / period).sin().double()
    assert choose_blocks(series, torch.ones(1600).double()) == blocks


def test_a_stream_as_long_as_two_blocks_each_is_enough():
    alternating = torch.tensor([-1.0, -2.0] * 40)
    assert stream_warnings(alternating, torch.ones(80)) == []
    (few,) = stream_warnings(alternating[:79], torch.ones(79))
    assert few.startswith("79 tokens are too few")
    (alike,) = stream_warnings(-torch.arange(1600.0), torch.ones(1600))
    assert alike.startswith("Neighbouring blocks of 160 tokens correlate (0.7")
