import pytest
import torch
from languages import PROMPTS, taste

from esscher.energies.algebra import Sum
from esscher.energies.features import Feature, LogLinear, contains, count, lacks, length, of_text, starts_with, values
from esscher.exact.enumeration import enumerate_points
from esscher.space import Space, prompts_of, sequences
from esscher.testing import check_energy

SPACE = Space(3, 4, eos=0)


def decode(points: list[list[int]]) -> list[str]:
    return ["".join(" ab"[token] for token in point).strip() for point in points]


FEATURES = [
    contains([1, 2]),
    lacks([2], name="no 2"),
    count([1, 1]),
    length(),
    starts_with([2, 1]),
    of_text("share of b", decode, lambda text: text.count("b") / max(1, len(text))),
]


def test_features_mean_what_they_say():
    x = sequences([[1, 1, 1, 2], [0], [2, 1, 0]], [[2], [1, 2], []])
    found = dict(zip([feature.name for feature in FEATURES], values(FEATURES, x).T.tolist(), strict=True))
    assert found == {
        "contains [1, 2]": [1, 0, 0],
        "no 2": [0, 1, 0],
        "count [1, 1]": [2, 0, 0],
        "length": [4, 1, 3],
        "starts with [2, 1]": [0, 0, 1],
        "share of b": [0.25, 0, 0.5],
    }


def test_log_linear_and_sum_obey_the_laws_of_an_energy():
    x = enumerate_points(SPACE, prompts_of(PROMPTS))
    linear = LogLinear(FEATURES, torch.randn(6, generator=torch.Generator().manual_seed(0)))
    check_energy(linear, x)
    both = Sum({"linear": linear, "taste": taste(SPACE)}, {"taste": 0.5})
    check_energy(both, x)
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
        values([Feature("odd", of)], sequences([[1], [2]]))
    with pytest.raises(ValueError, match="name of its own"):
        LogLinear([length(), length()])
    with pytest.raises(ValueError, match="at least one token"):
        values([contains([])], sequences([[1]]))
