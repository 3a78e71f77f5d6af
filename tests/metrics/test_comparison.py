"""Two systems on the same lines, and one system by the length of its sources."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch
from metrics.translations import made_references, translated

from esscher.core.randomness import SeededRng
from esscher.metrics.metric import (
    LineCounts,
    by_length,
    get_metric,
    paired_comparison,
    randomisation_p_value,
    score_translation,
    word_ratio,
)
from esscher.metrics.text_metrics import WordErrorRate
from esscher.testing import assert_covers

pytest.importorskip("sacrebleu")
WER, BLEU = WordErrorRate(), get_metric("bleu")
REFERENCES = made_references(80)


def made_counts(lines: int, *, seed: int, worse: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Word errors of two systems; hard lines are hard for both, and the second errs more often by the factor."""
    rng = torch.Generator().manual_seed(seed)
    words = torch.randint(1, 40, (lines,), generator=rng).double()
    common = torch.binomial(words, torch.rand(lines, generator=rng, dtype=torch.float64).square() * 0.3, generator=rng)
    errors = [common + torch.binomial(words, torch.full_like(words, 0.03 * by), generator=rng) for by in (1.0, worse)]
    return tuple(torch.stack([error, words], -1) for error in errors)


def test_the_p_value_is_the_share_of_all_swaps():
    """False-alarm rate 1e-6."""
    first, second = made_counts(9, seed=3, worse=3.0)

    def apart(mask):
        rows = torch.tensor(mask)[:, None]
        item, other = torch.where(rows, second, first), torch.where(rows, first, second)
        return abs(float(WER.value(item.sum(0)) - WER.value(other.sum(0))))

    known = [apart(mask) >= apart((False,) * 9) - 1e-9 for mask in product((False, True), repeat=9)]
    actual = randomisation_p_value(WER, first, second, confidence=1 - 1e-6, rng=SeededRng(0))
    assert 0.01 < actual.value < 0.5 and actual.covers(sum(known) / len(known)) and actual.n == 10_000
    assert not actual.covers(sum(known) / len(known) / 2), "one-sided"


def rejections(p_value, *, worse: float = 1.0, replications: int = 300) -> int:
    return sum(p_value(*made_counts(60, seed=seed, worse=worse), seed) <= 0.05 for seed in range(replications))


def swapped(first, second, seed):
    return randomisation_p_value(WER, first, second, swaps=99, rng=SeededRng(seed)).value


def test_systems_that_are_alike_part_at_the_stated_rate():
    """False-alarm rate 1e-3. Lines told thrice part too often, lines that are not paired hide a difference."""

    def unpaired(first, second, seed):
        order = SeededRng(seed, "shuffled").permutation(len(second))
        return swapped(first, second[order], seed)

    def thrice(first, second, seed):
        return swapped(first.repeat(3, 1), second.repeat(3, 1), seed)

    assert_covers(300 - rejections(swapped), 300, 0.95)
    with pytest.raises(AssertionError, match="stated rate 95%"):
        assert_covers(100 - rejections(thrice, replications=100), 100, 0.95)
    actual, weaker = (rejections(how, worse=2.2, replications=30) for how in (swapped, unpaired))
    assert actual > 25 > 15 > weaker


def test_differences_cover_and_unpaired_ones_are_wide():
    """False-alarm rate 1e-3 each; the truth is 3 % of words less 4.5 %, and 0.1 for a mean of scores."""

    def corpus(seed, order=None):
        first, second = made_counts(80, seed=seed, worse=1.5)
        second = second if order is None else second[order]
        metric = get_metric("wer")
        return LineCounts(metric, first, "").minus(LineCounts(metric, second, ""), resamples=200, rng=SeededRng(seed))

    def mean(seed, order=None):
        rng = torch.Generator().manual_seed(seed)
        hard = torch.rand(80, generator=rng, dtype=torch.float64)
        first, second = (hard + torch.rand(80, generator=rng, dtype=torch.float64) / 5 + by for by in (0.1, 0.0))
        second = second if order is None else second[order]
        metric, ones = get_metric("rouge1"), torch.ones(80, dtype=torch.float64)
        rows = [LineCounts(metric, torch.stack([item, ones], -1), "") for item in (first, second)]
        return rows[0].minus(rows[1], rng=SeededRng(seed))

    for number, truth in ((corpus, -1.5), (mean, 0.1)):
        ours, unpaired = ([number(seed, order) for seed in range(200)] for order in (None, torch.arange(80).roll(1)))
        assert_covers(sum(item.covers(truth) for item in ours), 200, 0.95)
        assert all(wide.high - wide.low > 1.5 * (item.high - item.low) for item, wide in zip(ours, unpaired, strict=True))


@pytest.mark.parametrize("name", ["bleu", "chrf", "rouge2"])
def test_a_better_system_is_told_from_texts(name):
    pytest.importorskip("rouge_score")
    better, worse = translated(REFERENCES, seed=1, keep=9), translated(REFERENCES, seed=2, keep=5)
    metric = get_metric(name)
    actual = paired_comparison(metric.count(better, REFERENCES), metric.count(worse, REFERENCES), rng=SeededRng(0))
    assert actual.metric == name and actual.p_value.value == 1 / 10_001 and actual.p_value.low == 0
    assert actual.difference.value == pytest.approx(actual.first.value - actual.second.value)
    assert 0 < actual.difference.low < actual.difference.high
    turned = paired_comparison(metric.count(worse, REFERENCES), metric.count(better, REFERENCES), rng=SeededRng(0))
    assert turned.p_value == actual.p_value and turned.difference.value == pytest.approx(-actual.difference.value)
    same = paired_comparison(metric.count(better, REFERENCES), metric.count(better, REFERENCES), rng=SeededRng(0))
    assert same.p_value.value == 1 and same.difference.low == same.difference.value == same.difference.high == 0
    assert actual == paired_comparison(metric.count(better, REFERENCES), metric.count(worse, REFERENCES), rng=SeededRng(0))


def test_groups_are_those_of_the_words_of_the_source():
    sources = ["w " * (line % 7) for line in range(80)]
    hypotheses = translated(REFERENCES, seed=1)
    groups = by_length(BLEU.count(hypotheses, REFERENCES), sources, (2, 6, 50), resamples=100, rng=SeededRng(0))
    assert [(item.low, item.high, item.name) for item in groups] == [(0, 2, "[0, 2)"), (2, 6, "[2, 6)"), (6, 50, "[6, 50)")]
    for group in groups:
        inside = [line for line in range(80) if group.low <= line % 7 < group.high]
        alone = BLEU.score([hypotheses[k] for k in inside], [REFERENCES[k] for k in inside], resamples=100, rng=SeededRng(0))
        assert (group.lines, group.value.value) == (len(inside), alone.value)
    (whole,) = by_length(BLEU.count(hypotheses, REFERENCES), sources, (), resamples=100, rng=SeededRng(0))
    assert (whole.name, whole.lines) == ("[0, inf)", 80)
    single = by_length(BLEU.count(hypotheses, REFERENCES), ["w"] * 79 + ["w " * 30], resamples=100, rng=SeededRng(0))
    assert [(item.low, item.lines) for item in single] == [(0, 79), (25, 1)] and "no interval" in single[1].value.method
    for bounds in ((0, 5), (5, 5), (9, 3)):
        with pytest.raises(ValueError, match="ascend from above 0"):
            by_length(BLEU.count(hypotheses, REFERENCES), sources, bounds, rng=SeededRng(0))
    with pytest.raises(ValueError, match="79 sources and 80 hypotheses"):
        by_length(BLEU.count(hypotheses, REFERENCES), sources[1:], rng=SeededRng(0))


def test_a_verdict_counts_each_translation_once(monkeypatch):
    @dataclass
    class Watched:
        calls: int = 0

    watched, real = Watched(), WordErrorRate.counts

    def counting(self, candidates, references):
        watched.calls += 1
        return real(self, candidates, references)

    monkeypatch.setattr(WordErrorRate, "counts", counting)
    first, second = translated(REFERENCES, seed=1), translated(REFERENCES, seed=2)
    (actual,) = score_translation(["wer"], first, REFERENCES, against=second, sources=REFERENCES, bounds=(4,), rng=SeededRng(0))
    assert watched.calls == 160 and len(actual.groups) == 2
    assert actual.against is not None and actual.against.first == actual.value and actual.metric is get_metric("wer")
    with pytest.raises(ValueError, match="50 swaps are too few"):
        paired_comparison(*(get_metric("wer").count(item, REFERENCES) for item in (first, second)), swaps=50, rng=SeededRng(0))


def test_lengths_are_told_beside_the_references():
    actual = word_ratio(["a b c", "d", ""], ["a b", "c d", "e"])
    assert actual.value == pytest.approx(4 / 5) and actual.low < 0.8 < actual.high
    with pytest.raises(ValueError, match="hold no word"):
        word_ratio(["a", "b"], ["", ""])
