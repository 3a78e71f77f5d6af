"""Objectives of labels against enumerated answers; examples keep their rows, whatever is chosen of them."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, sequences
from esscher.objectives.supervised import (
    ChoiceLikelihood,
    LabelledExamples,
    LabelLikelihood,
    RankingHinge,
    SpanLikelihood,
    SquaredError,
    span_log_probs,
)

RNG = SeededRng(0)
X = sequences([[5], [6, 6], [7], [8, 8, 8], [9]])


def data(label, example=(0, 0, 1, 2, 2)) -> LabelledExamples:
    return LabelledExamples(X, torch.as_tensor(label), torch.tensor(example))


def first_tokens(x: Sequences) -> torch.Tensor:
    return x.tokens[:, :1].double() / 4


def test_examples_are_chosen_with_all_their_rows():
    whole = data([0, 1, 2, 3, 4])
    assert len(whole) == 3 and len(whole.tensors()) == 5
    some = whole.rows(torch.tensor([2, 0]))
    assert some.label.tolist() == [3, 4, 0, 1] and some.example.tolist() == [0, 0, 1, 1]
    assert some.x.points() == [[8, 8, 8], [9], [5], [6, 6]]
    assert whole.rows(slice(1, 2)).label.tolist() == [2] and len(whole.rows(slice(0, 0))) == 0


def test_choices_compete_within_their_example():
    loss = ChoiceLikelihood()(first_tokens, data([0, 1, 1, 1, 0]), rng=RNG)
    by_hand = [
        cross_entropy(torch.tensor([row]).double() / 4, torch.tensor([right]))
        for row, right in (([5, 6], 1), ([7], 0), ([8, 9], 0))
    ]
    assert float(loss.value) == pytest.approx(float(sum(by_hand)) / 3) and loss.count == 3
    assert loss.metrics["accuracy"] == pytest.approx(2 / 3)


def test_a_ranking_costs_what_its_pairs_do():
    loss = RankingHinge(margin=1.0)(first_tokens, data([2.0, 1.0, 1.0, 0.0, 3.0]), rng=RNG)
    pairs = [1 - (5 - 6) / 4, 0.0, 1 - (9 - 8) / 4]  # the example with one row has no pair
    assert float(loss.value) == pytest.approx(sum(pairs) / 3)
    alike = RankingHinge()(first_tokens, data([1.0, 1.0, 1.0, 1.0, 1.0]), rng=RNG)
    assert float(alike.value) == 0 and alike.count == 3


def test_classes_and_numbers():
    one_each = LabelledExamples(X, torch.tensor([0, 1, 0, 1, 0]), torch.arange(5))
    scores = lambda x: torch.cat([first_tokens(x), 1 - first_tokens(x)], 1)  # noqa: E731
    actual = LabelLikelihood()(scores, one_each, rng=RNG)
    assert float(actual.value) == pytest.approx(float(cross_entropy(scores(X), one_each.label)))
    numbers = LabelledExamples(X, torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), torch.arange(5))
    assert float(SquaredError()(first_tokens, numbers, rng=RNG).value) == pytest.approx(
        sum((token / 4 - number) ** 2 for token, number in ((5, 1), (6, 2), (7, 3), (8, 4), (9, 5))) / 5
    )


@pytest.fixture
def scores():
    actual = RNG.normal(2, 5, 2).double()
    actual[1, 4:] = -torch.inf  # a shorter passage
    return actual


def enumerated(scores, longest, *, wrong: str | None = None) -> dict[tuple[int, int], float]:
    """All lawful spans of a row with their probability, one by one; or one of two mistakes."""
    last = int(torch.isfinite(scores[:, 0]).sum())
    ends = range(1, last)
    spans = [(0, 0), *((i, j) for i in ends for j in ends if j - i < longest and (wrong == "backwards" or i <= j))]
    if wrong == "half an answer":
        spans += [(0, j) for j in ends]
    weight = {span: math.exp(float(scores[span[0], 0] + scores[span[1], 1])) for span in spans}
    return {span: value / sum(weight.values()) for span, value in weight.items()}


@pytest.mark.parametrize("longest", [1, 2, 9])
def test_spans_are_normalised_over_all_that_are_lawful(scores, longest):
    for row, log_p in enumerate(span_log_probs(scores, longest)):
        right = enumerated(scores[row], longest)
        assert float(log_p.exp().sum()) == pytest.approx(1)
        assert int((log_p > -torch.inf).sum()) == len(right)
        for (first, last), share in right.items():
            assert float(log_p[first, last].exp()) == pytest.approx(share)
        for wrong in ("backwards", "half an answer"):
            assert enumerated(scores[row], longest, wrong=wrong)[0, 0] != pytest.approx(right[0, 0]) or longest == 1


def test_answers_and_their_absence_are_likely_or_not(scores):
    two = LabelledExamples(sequences([[1], [2]]), torch.tensor([[1, 2], [-1, -1]]), torch.arange(2))
    actual = SpanLikelihood(3)(lambda x: scores, two, rng=RNG)
    right = -(math.log(enumerated(scores[0], 3)[2, 3]) + math.log(enumerated(scores[1], 3)[0, 0])) / 2
    assert float(actual.value) == pytest.approx(right)
    with pytest.raises(ValueError, match="1 answers have more than 1 tokens"):
        SpanLikelihood(1)(lambda x: scores, two, rng=RNG)
