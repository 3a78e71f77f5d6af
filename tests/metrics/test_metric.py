"""Word error rate and BLEU against independent counts, and their bootstrap intervals against a known truth."""

from functools import cache

import numpy as np
import pytest
import torch

from esscher.core.randomness import SeededRng
from esscher.estimators.intervals import bootstrap_counts, interval
from esscher.metrics import metric
from esscher.metrics.metric import corpus_difference, corpus_value
from esscher.metrics.text_metrics import Bleu, WordErrorRate
from esscher.testing import assert_covers

WER, BLEU = WordErrorRate(), Bleu()


def test_word_errors_of_single_texts():
    reference = "the cat sat on the mat"
    cases = {
        reference: 0,
        "": 6,
        "the cat sat on mat": 1,
        "the cat sat on the the mat": 1,
        "a  cat sat\ton the mat": 1,
        "mat the on sat cat the": 4,
        "The cat": 5,
    }
    assert WER.counts(list(cases), [reference]).tolist() == [[errors, 6] for errors in cases.values()]
    assert WER.counts(["a b c"], ["a x", "a b c d", ""]).tolist() == [[1, 4]]
    assert WER.counts(["a b"], [""]).tolist() == [[2, 0]]
    assert float(WER.value(torch.tensor([3.0, 12.0]))) == 25.0


def test_word_errors_are_those_of_the_definition():
    @cache
    def distance(one: str, other: str) -> int:
        if not one or not other:
            return len(one) + len(other)
        rest = distance(one[1:], other[1:]) + (one[0] != other[0])
        return min(rest, distance(one[1:], other) + 1, distance(one, other[1:]) + 1)

    letters = ["".join("abc"[k] for k in row) for row in SeededRng(0).categorical(torch.zeros(60, 3), 7).tolist()]
    for one, other in zip(letters[:30], letters[30:], strict=True):
        assert WER.counts([" ".join(one[:5])], [" ".join(other)]).tolist() == [[distance(one[:5], other), 7]]


def test_bleu_is_that_of_sacrebleu():
    sacrebleu = pytest.importorskip("sacrebleu")
    pairs = [
        ("The cat sat on the mat.", ["The cat sat on a mat.", "A cat sat on the mat!"]),
        ("it rained for two days", ["it rained for three days"]),
        ("a", ["a b"]),
        ("", ["nothing here"]),
        ("no match at all", ["quite something else"]),
        ("one two three four five", ["one two x four five six seven"]),
    ]
    for chosen in (pairs, pairs[:2], pairs[1:3], pairs[2:5], pairs[3:5], pairs[5:]):
        theirs = sacrebleu.corpus_bleu(
            [candidate for candidate, _ in chosen],
            [[refs[min(n, len(refs) - 1)] for _, refs in chosen] for n in range(2)],
        ).score
        sums = torch.cat([BLEU.counts([candidate], refs) for candidate, refs in chosen]).sum(0)
        assert float(BLEU.value(sums)) == pytest.approx(theirs, abs=1e-9)


def drawn_counts(texts: int, *, seed: int, worse: float = 1.0):
    """Two systems on the same texts: hard texts are hard for both, and the second errs more often by the factor."""
    rng = torch.Generator().manual_seed(seed)
    words = torch.randint(1, 40, (texts,), generator=rng).double()
    hard = torch.rand(texts, generator=rng, dtype=torch.float64).square() * 0.3
    common = torch.binomial(words, hard, generator=rng)
    first = common + torch.binomial(words, torch.full_like(words, 0.02), generator=rng)
    second = common + torch.binomial(words, torch.full_like(words, 0.02 * worse), generator=rng)
    return torch.stack([first, words], -1), torch.stack([second, words], -1)


def test_the_interval_is_about_that_of_the_jackknife():
    counts, _ = drawn_counts(400, seed=1)

    def rate(times):
        sums = (times[0, :, None] * counts).sum(0)
        return 100 * sums[0] / sums[1]

    known = interval(rate, [(1, 400)], confidence=0.95, n=400, method="")
    actual = corpus_value(WER, counts, rng=SeededRng(0))
    assert actual.value == pytest.approx(known.value) and actual.unit == "%" and actual.n == 400
    assert (actual.low, actual.high) == pytest.approx((known.low, known.high), abs=0.2)
    assert actual == corpus_value(WER, counts, rng=SeededRng(0))
    same = corpus_difference(WER, counts, counts, rng=SeededRng(0))
    assert same.low == same.value == same.high == 0


def covering(number, truth: float, *, replications: int = 300) -> int:
    return sum(number(replication).covers(truth) for replication in range(replications))


def test_the_intervals_cover_and_wrong_ones_do_not():
    """False-alarm rate 1e-3 each. Words as replicates are too sure, unpaired systems too unsure."""
    texts, truth = 80, 100 * (0.1 + 0.02)

    def ours(seed):
        return corpus_value(WER, drawn_counts(texts, seed=seed)[0], resamples=300, rng=SeededRng(seed))

    def words_as_replicates(seed):
        errors, words = drawn_counts(texts, seed=seed)[0].sum(0).tolist()
        each = torch.stack([torch.arange(words) < errors, torch.ones(int(words))], -1).double()
        return interval(
            lambda times: 100 * (times[0] * each[:, 0]).sum() / times.sum(),
            [(1, int(words))],
            confidence=0.95,
            n=0,
            method="",
        )

    assert_covers(covering(ours, truth), 300, 0.95)
    with pytest.raises(AssertionError, match="stated rate 95%"):
        assert_covers(covering(words_as_replicates, truth, replications=200), 200, 0.95)


def test_differences_are_paired():
    """False-alarm rate 1e-3."""
    texts, truth = 80, 100 * 0.02 * (1 - 1.5)

    def ours(seed):
        return corpus_difference(WER, *drawn_counts(texts, seed=seed, worse=1.5), resamples=300, rng=SeededRng(seed))

    def unpaired(seed):
        item, other = drawn_counts(texts, seed=seed, worse=1.5)
        shuffled = other[torch.randperm(texts, generator=torch.Generator().manual_seed(seed))]
        return corpus_difference(WER, item, shuffled, resamples=300, rng=SeededRng(seed))

    assert_covers(covering(ours, truth), 300, 0.95)
    with pytest.raises(AssertionError, match="stated rate 95%"):
        assert_covers(covering(unpaired, truth), 300, 0.95)


def test_bad_input():
    counts, _ = drawn_counts(5, seed=0)
    for wrong, message in [({"confidence": 95}, "between 0 and 1, not 95"), ({"resamples": 9}, "9 resamples are too few")]:
        with pytest.raises(ValueError, match=message):
            corpus_value(WER, counts, **wrong, rng=SeededRng(0))
    with pytest.raises(ValueError, match="at least 2 texts and has 1"):
        corpus_value(WER, counts[:1], rng=SeededRng(0))


def test_two_texts_are_enough_and_a_hundred_resamples():
    counts = torch.tensor([[1.0, 10.0], [3.0, 10.0]], dtype=torch.float64)
    actual = corpus_value(WER, counts, resamples=100, rng=SeededRng(0))
    assert (actual.value, actual.low, actual.high, actual.n) == (20.0, 10.0, 30.0, 2)
    with pytest.raises(ValueError, match="99 resamples are too few"):
        corpus_value(WER, counts, resamples=99, rng=SeededRng(0))
    less = corpus_difference(WER, counts, counts.flip(0), resamples=100, rng=SeededRng(0))
    assert (less.value, less.low, less.high, less.unit, less.n) == (0.0, -20.0, 20.0, "%", 2)


@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_ends_are_quantiles_of_the_resamples_taken_in_parts(monkeypatch, confidence):
    counts, other = drawn_counts(5, seed=2)
    monkeypatch.setattr(metric, "MAX_COUNTS", 5 * 60)  # 60 resamples at a time: 60 and 40
    actual = corpus_value(WER, counts, confidence=confidence, resamples=100, rng=SeededRng(3))
    rng = SeededRng(3)
    sums = torch.cat([bootstrap_counts(5, rows, rng=rng) for rows in (60, 40)]) @ counts
    ends = np.quantile(100 * sums[:, 0] / sums[:, 1], [(1 - confidence) / 2, (1 + confidence) / 2])
    assert (actual.low, actual.high) == pytest.approx(tuple(ends)) and actual.confidence == confidence
    assert actual.method == "percentile bootstrap, 100 resamples" and (actual.n, actual.counted) == (5, "texts")
    paired = corpus_difference(WER, counts, other, resamples=100, rng=SeededRng(3)).method
    assert paired == "paired percentile bootstrap, 100 resamples"
