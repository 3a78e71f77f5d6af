import pytest
import torch
from random_targets import PROMPTS, taste

from esscher.core.space import Space, prompts_of, sequences
from esscher.energies.declared_features import cached
from esscher.energies.features import (
    Feature,
    LogLinear,
    Sum,
    contains,
    count,
    ends_with,
    feature_values,
    lacks,
    length,
    starts_with,
    text_batch_feature,
    text_feature,
    token_feature,
)
from esscher.exact.enumeration import enumerate_points

SPACE = Space(3, 4, eos=0)


def decode(points: list[list[int]]) -> list[str]:
    return ["".join(" ab"[token] for token in point).strip() for point in points]


FEATURES = [
    contains([1, 2]),
    lacks([2], name="no 2"),
    count([1, 1]),
    length(),
    starts_with([2, 1]),
    text_feature("share of b", decode, lambda text: text.count("b") / max(1, len(text))),
    count([1, 1], name="apart", overlapping=False),
    ends_with([1, 0]),
    text_batch_feature("letters", decode, lambda texts: torch.tensor([len(text) for text in texts])),
    token_feature("largest", max),
]


def test_features_mean_what_they_say():
    x = sequences([[1, 1, 1, 2], [0], [2, 1, 0]], [[2], [1, 2], []])
    actual = dict(zip([feature.name for feature in FEATURES], feature_values(FEATURES, x).T.tolist(), strict=True))
    assert actual == {
        "contains [1, 2]": [1, 0, 0],
        "no 2": [0, 1, 0],
        "count [1, 1]": [2, 0, 0],
        "length": [4, 1, 3],
        "starts with [2, 1]": [0, 0, 1],
        "share of b": [0.25, 0, 0.5],
        "apart": [1, 0, 0],
        "ends with [1, 0]": [0, 0, 1],
        "letters": [4, 0, 2],
        "largest": [2, 0, 2],
    }


def test_energies_add():
    x = enumerate_points(SPACE, prompts_of(PROMPTS))
    linear = LogLinear(FEATURES, torch.randn(10, generator=torch.Generator().manual_seed(0)))
    both = Sum({"linear": linear, "taste": taste(SPACE)}, {"taste": 0.5})
    assert torch.allclose(both(x), linear(x) + 0.5 * taste(SPACE)(x))
    assert list(dict(both.named_parameters())) == ["networks.linear.weights"]


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (lambda x: torch.full((len(x),), torch.nan), r"Feature 'odd' is nan for 2 of 2"),
        (lambda x: torch.zeros(len(x) + 1), r"Feature 'odd' gave \(3,\) values for 2"),
    ],
)
def test_bad_features_are_named(of, message):
    with pytest.raises(ValueError, match=message):
        feature_values([Feature("odd", of)], sequences([[1], [2]]))
    with pytest.raises(ValueError, match="name of its own"):
        LogLinear([length(), length()])
    with pytest.raises(ValueError, match="at least one token"):
        feature_values([contains([])], sequences([[1]]))


@pytest.mark.parametrize("judge", [lambda texts: [1.0], lambda texts: [1.0, float("inf")], lambda texts: torch.zeros(2, 1)])
def test_bad_judges_of_text_are_named(judge):
    with pytest.raises(ValueError, match="Feature 'odd'"):
        feature_values([text_batch_feature("odd", decode, judge)], sequences([[1], [2]]))
    with pytest.raises(ValueError, match="decoder gave 1 texts for 2 points"):
        feature_values([text_feature("odd", lambda points: ["a"], len)], sequences([[1], [2]]))


def test_a_batch_is_decoded_once_for_each_decoder():
    class Decoder:
        calls = 0

        def decode(self, points):
            self.calls += len(points)
            return decode(points)

    item, other = Decoder(), Decoder()
    texts = [text_feature(f"one {k}", item.decode, len) for k in range(3)]
    texts += [text_feature("other", other.decode, len), text_feature("whole", item.decode, len, with_prompt=True)]
    texts += [cached(text_feature("dear", item.decode, len))]
    x = sequences([[1, 2, 0], [2]], [[1], [2, 2]])
    for order in (texts, texts[::-1]):
        item.calls = other.calls = 0
        actual = dict(zip([feature.name for feature in order], feature_values(order, x).T.tolist(), strict=True))
        assert actual == {"one 0": [2, 1], "one 1": [2, 1], "one 2": [2, 1], "other": [2, 1], "whole": [3, 3], "dear": [2, 1]}
        assert (item.calls, other.calls) == (4, 2)  # the points, and the points with their prompts
