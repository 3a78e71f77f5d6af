"""Metrics of labels against scikit-learn, scipy and hand-made answers; intervals against how far they should reach."""

import math

import pytest
import torch
from scipy import stats
from sklearn import metrics as reference

from esscher.core.randomness import SeededRng
from esscher.metrics import labels
from esscher.metrics.labels import (
    accuracy,
    exact_match,
    macro_f1,
    matthews,
    ndcg,
    pearson,
    reciprocal_rank,
    share,
    spearman,
    word_f1,
)

RNG = SeededRng(3)
RIGHT = RNG.categorical(torch.tensor([[0.5, 0.3, 0.2]]).log(), 60)[0].tolist()
SAID = [one if keep else 2 - one for one, keep in zip(RIGHT, RNG.bernoulli(torch.full((60,), 0.6).log()).tolist(), strict=True)]
ALONE = [str(number) for number in range(60)]
NOISE = RNG.normal(60)
X, Y = (NOISE + RNG.normal(60)).round(decimals=1).double().tolist(), (NOISE * 2).round(decimals=1).double().tolist()


def test_values_are_those_of_scikit_learn_and_scipy():
    assert accuracy([a == b for a, b in zip(SAID, RIGHT, strict=True)], ALONE).value == pytest.approx(
        reference.accuracy_score(RIGHT, SAID)
    )
    assert macro_f1(SAID, RIGHT, ALONE).value == pytest.approx(reference.f1_score(RIGHT, SAID, average="macro"))
    assert matthews(SAID, RIGHT, ALONE).value == pytest.approx(reference.matthews_corrcoef(RIGHT, SAID))
    assert pearson(X, Y, ALONE).value == pytest.approx(stats.pearsonr(X, Y).statistic)
    assert spearman(X, Y, ALONE).value == pytest.approx(stats.spearmanr(X, Y).statistic)
    scores, grades = torch.tensor([0.2, 0.9, 0.4, 0.1]), torch.tensor([2.0, 0.0, 1.0, 0.0])
    gains = (2**grades - 1)[None].numpy()
    assert ndcg(scores, grades) == pytest.approx(reference.ndcg_score(gains, scores[None].numpy()))
    assert ndcg(scores, grades, 2) == pytest.approx(reference.ndcg_score(gains, scores[None].numpy(), k=2))


@pytest.mark.parametrize("metric", [pearson, spearman])
def test_intervals_of_correlations_are_about_those_of_a_bootstrap(metric):
    actual, values = metric(X, Y, ALONE), []
    for number in range(400):
        rows = SeededRng(number).categorical(torch.zeros(1, 60), 60)[0].tolist()
        x, y = ([item[row] for row in rows] for item in (X, Y))
        values.append((stats.pearsonr if metric is pearson else stats.spearmanr)(x, y).statistic)
    low, high = torch.tensor(values, dtype=torch.float64).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    assert actual.low == pytest.approx(low, abs=0.06) and actual.high == pytest.approx(high, abs=0.06)


def test_examples_that_depend_are_one_replicate():
    """Every example four times tells nothing new: counted as if alone, the interval would be half as long."""
    hits = [float(a == b) for a, b in zip(SAID, RIGHT, strict=True)]
    alone, fourfold = share(hits, ALONE, method="x"), share(hits * 4, ALONE * 4, method="x")
    wrong = share(hits * 4, [str(number) for number in range(240)], method="x")
    assert fourfold.value == alone.value and fourfold.high - fourfold.low == pytest.approx(alone.high - alone.low, rel=0.02)
    assert wrong.high - wrong.low < 0.6 * (alone.high - alone.low)
    assert "in 60 groups" in fourfold.method


def test_numbers_stay_in_their_bounds():
    for item in (macro_f1([0, 1], [0, 1], ["a", "b"]), pearson([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], ["a", "b", "c"])):
        assert item.value == pytest.approx(1) and -1 <= item.low <= item.high <= 1 + 1e-9
    assert matthews([1, 1, 1], [0, 1, 1], ["a", "b", "c"]).value == 0
    only = accuracy([True, False], ["a", "a"])
    assert (only.value, only.low, only.high) == (0.5, 0.0, 1.0) and "no interval" in only.method
    with pytest.raises(ValueError, match="no predictions"):
        accuracy([], [])


@pytest.mark.parametrize(
    ("said", "answers", "exact", "f1"),
    [
        ("the Cat!", ["a cat"], 1.0, 1.0),
        ("black cat", ["the cat", "dog"], 0.0, 2 / 3),
        ("", [], 1.0, 1.0),
        ("cat", [], 0.0, 0.0),
        ("", ["cat"], 0.0, 0.0),
    ],
)
def test_answers_are_compared_as_in_squad(said, answers, exact, f1):
    assert exact_match(said, answers) == exact and word_f1(said, answers) == pytest.approx(f1)


def test_ranks_of_the_first_relevant_document():
    scores = torch.tensor([0.1, 0.9, 0.5])
    assert reciprocal_rank(scores, torch.tensor([0.0, 0.0, 1.0])) == 0.5
    assert reciprocal_rank(scores, torch.zeros(3)) == 0 and ndcg(scores, torch.zeros(3)) == 0
    assert math.isclose(labels.ndcg(scores, torch.tensor([0.0, 1.0, 0.0])), 1.0)
