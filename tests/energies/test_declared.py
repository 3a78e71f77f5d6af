import pytest

from esscher.energies.declared import Declared, declared_feature
from esscher.energies.features import values
from esscher.space import sequences


def decode(points: list[list[int]]) -> list[str]:
    return ["".join("_ab c"[token] for token in point if token) for point in points]


def test_declarations_judge_the_text_of_the_point_alone():
    x = sequences([[1, 2, 3, 1, 0], [0], [2, 2]], [[1, 1], [2], []])  # "ab a", "", "bb"
    declared = [
        Declared("contains", "b"),
        Declared("lacks", "a"),
        Declared("count", "b"),
        Declared("starts-with", "ab"),
        Declared("ends-with", "a", name="last is a"),
        Declared("matches", r"^b+$"),
        Declared("characters"),
        Declared("words"),
    ]
    found = {d.title: values([declared_feature(d, decode)], x)[:, 0].tolist() for d in declared}
    assert found == {
        "contains b": [1, 0, 1],
        "lacks a": [0, 1, 1],
        "count b": [1, 0, 2],
        "starts-with ab": [1, 0, 0],
        "last is a": [1, 0, 0],
        "matches ^b+$": [0, 0, 1],
        "characters": [4, 0, 2],
        "words": [2, 0, 1],
    }


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("holds", "x", "No feature of kind 'holds'. Choose from: contains, lacks"),
        ("contains", "", "needs a value"),
        ("words", "x", "takes no value"),
        ("matches", "(", "no regular expression"),
    ],
)
def test_bad_declarations(kind, value, message):
    with pytest.raises(ValueError, match=message):
        Declared(kind, value)
