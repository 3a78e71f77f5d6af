import pytest
import torch

from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.energies.declared_features import CachedFeature, cached
from esscher.energies.features import Feature, contains, feature_values, text_batch_feature, text_feature, token_feature
from esscher.exact.enumeration import enumerate_points

SPACE = Space(3, 4, eos=0)
X = sequences([[1, 2, 0], [1, 2, 0], [2, 0], [1, 2, 0]], [[1], [], [], [1]])


class Counting:
    """A judge that knows what it was asked, and how often the decoder ran."""

    def __init__(self):
        self.asked, self.decoded = [], []

    def decode(self, points):
        self.decoded += [tuple(point) for point in points]
        return ["".join(" ab"[token] for token in point).strip() for point in points]

    def judge(self, texts):
        self.asked += texts
        return [float(len(text)) for text in texts]


def reads_prompt(x: Sequences) -> torch.Tensor:
    return (10 * x.start + x.lengths).double()


def test_the_judge_is_called_once_for_each_different_point():
    counting = Counting()
    plain = text_batch_feature("length", counting.decode, counting.judge)
    feature = cached(plain)
    first = feature_values([feature], X)
    assert counting.asked == ["ab", "b"] and counting.decoded == [(1, 2, 0), (2, 0)]
    assert torch.equal(feature_values([feature], X), first) and torch.equal(feature.of(X), first[:, 0])
    assert counting.asked == ["ab", "b"]
    wider = sequences([[1, 0], [2, 0], [1, 1, 1, 1]])  # one of three is known; padded otherwise
    assert feature_values([feature], wider)[:, 0].tolist() == [1, 1, 4]
    assert counting.asked == ["ab", "b", "a", "aaaa"]
    assert torch.equal(feature_values([plain], X), first)


def test_the_prompt_counts_where_it_is_read():
    x = enumerate_points(SPACE, prompts_of([[], [1], [1, 1], [2]]))
    safe = CachedFeature("safe", reads_prompt)
    for _ in range(2):
        assert torch.equal(safe(x), reads_prompt(x))
    assert len(safe) == len(x)
    assert not torch.equal(CachedFeature("wrong", reads_prompt, reads_prompt=False)(x), reads_prompt(x))
    assert torch.equal(feature_values([cached(Feature("safe", reads_prompt))], x)[:, 0], reads_prompt(x))


def test_prompt_and_point_are_told_apart_by_where_they_meet():
    x = sequences([[1, 2], [2]], [[], [1]])  # the same tokens in a row
    assert CachedFeature("meet", reads_prompt)(x).tolist() == [2, 11]


def test_what_reads_the_prompt_is_known_of_text_and_tokens():
    counting = Counting()
    whole = cached(text_batch_feature("whole", counting.decode, counting.judge, with_prompt=True))
    assert feature_values([whole], X)[:, 0].tolist() == [3, 2, 1, 3]
    assert counting.asked == ["aab", "ab", "b"]
    asked = []
    of_points = cached(token_feature("sum", lambda point: asked.append(point) or sum(point)))
    assert feature_values([of_points], X)[:, 0].tolist() == [3, 3, 2, 3] and asked == [[1, 2, 0], [2, 0]]


def test_memory_is_bounded_and_forgets_what_was_asked_for_longest_ago():
    counting = Counting()
    feature = cached(text_batch_feature("length", counting.decode, counting.judge), max_cached=2)
    everything = enumerate_points(SPACE)
    right = [float(len(text)) for text in Counting().decode(everything.points())]
    assert feature_values([feature], everything)[:, 0].tolist() == right and len(feature.of) == 2
    counting.asked.clear()
    for point in ([1, 0], [2, 0], [1, 0], [1, 1, 0], [1, 0], [2, 0]):
        feature_values([feature], sequences([point]))
    assert counting.asked == ["a", "b", "aa", "b"]
    with pytest.raises(ValueError, match="at least one sequence, not 0"):
        cached(contains([1]), max_cached=0)


def test_wrong_values_are_named_and_not_kept():
    answers = [[float("nan"), 1.0], [1.0], [2.0, 3.0]]
    feature = cached(text_batch_feature("moody", Counting().decode, lambda texts: answers.pop(0)))
    with pytest.raises(ValueError, match=r"'moody' is nan for 1 of 2 sequences, first in row 0: \[1, 2, 0\]"):
        feature_values([feature], X)
    with pytest.raises(ValueError, match=r"'moody' gave \(1,\) values for 2 sequences"):
        feature_values([feature], X)
    assert len(feature.of) == 0
    assert feature_values([feature], X)[:, 0].tolist() == [2, 2, 3, 2]


def test_no_rows():
    counting = Counting()
    feature = cached(text_feature("length", counting.decode, len))
    assert feature_values([feature], X.rows(slice(0, 0))).shape == (0, 1)
