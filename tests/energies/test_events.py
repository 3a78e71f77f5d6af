"""Events: what declarations mean, how far a text has come to them, and what is refused."""

import pytest
import torch

from esscher.core.space import sequences
from esscher.energies.event_spec import parse_event
from esscher.energies.events import alternatives, beginnings, make_event, pattern_grade, readability, string_grade, token_grade

LETTERS = "abcdefghijklmnopqrstuvwxyz ABC!"


def decode(points):
    return ["".join(LETTERS[token] for token in point) for point in points]


def of(text: str):
    return sequences([[LETTERS.index(letter) for letter in text]])


@pytest.mark.parametrize(
    ("declared", "shown", "not_shown"),
    [
        ("contains:cab", "a cab", "a ca b"),
        ("lacks:cab", "a ca b", "a cab"),
        ("count:ab>=2", "ab ab", "ab a b"),
        ("count:ab<=1", "ab a b", "ab ab"),
        ("matches:^a(b|c)+$", "abcb", "abcd"),
        ("starts-with:ab", "abc", "bab"),
        ("ends-with:ab", "cab", "aba"),
        ("words>=3", "a b c", "ab c"),
        ("characters<=3", "abc", "abcd"),
        ("tokens>=4", "abcd", "abc"),
        ("phrases:cab a,bad", "BAd CAB A bAd", "ba d"),
        ("word-list[measure=count]:cab,bad>=2", "bad cab", "bad ab"),
        ("count[at_least=2]:ab", "ab ab", "ab"),
        ("contains[negated]:ab", "ba", "ab"),
    ],
)  # fmt: skip
def test_an_event_happens_where_its_score_is_at_the_threshold(declared, shown, not_shown):
    event = make_event(declared, lambda points: [text.replace("A", "A") for text in decode(points)], 16)
    for text, happens in ((shown.replace("BAd CAB A bAd", "bAd CAB A"), True), (not_shown, False)):
        assert bool(event.scores(of(text))[0, -1] >= event.threshold) is happens, text


def test_scores_of_prefixes_rise_to_the_event():
    event = make_event("contains:cab", decode, 16)
    assert event.scores(of("a cab")).tolist()[0] == pytest.approx([0, 0, 1 / 3, 2 / 3, 1])
    both = event.scores(sequences([[2, 0, 1], [2]]))
    assert both.tolist() == [pytest.approx([1 / 3, 2 / 3, 1]), pytest.approx([1 / 3] * 3)]


def test_a_stride_leaves_prefixes_out():
    from dataclasses import replace

    event = replace(make_event("words>=3", decode, 16), stride=3)
    assert event.scores(of("a b c")).tolist()[0] == [-torch.inf, -torch.inf, 2, -torch.inf, 3]


def test_grades():
    assert string_grade("dragon")("a drama") == pytest.approx(3 / 6)
    assert token_grade("contains", [1, 2, 3])([0, 1, 1, 2, 0]) == pytest.approx(2 / 3)
    assert token_grade("starts-with", [1, 2])([2, 1, 2]) == 0
    assert beginnings("ab+(c|d)e") == ["a", "ab+", "ab+(c|d)", "ab+(c|d)e"]
    assert beginnings("(?:ab){3}c")[:3] == ["(?:ab){1}", "(?:ab){2}", "(?:ab){3}"]
    assert alternatives("x(cat|dog)s") == ["xcats", "xdogs"]
    assert alternatives("one|two") == ["one", "two"]
    assert alternatives(r"(a|b)\1") == [r"(a|b)\1"]
    grade = pattern_grade("^once (upon|there) was")
    assert grade("twice") == pytest.approx(1 / 14)  # the beginning alone
    assert grade("once up") == pytest.approx(8 / 14)
    assert grade("once there w") > grade("once there") > grade("once the")


def test_a_function_of_a_text():
    event = make_event(lambda text: text.count("a"), decode, 16, at_least=3)
    assert event.threshold == 3
    assert event.scores(of("abaa")).tolist()[0] == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [("words", "words>=1"), ("contains", "needs a value"), ("blue:1", "no known kind"), ("phrases:", "no phrase"),
     ("readability>=x", "readability"), ("readability[index=none]>=3", "Indices"), ("count[at_least=2]:a>=3", "two bounds")],
)  # fmt: skip
def test_what_is_no_event_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says.replace("[", r"\[")):
        parse_event(wrong)


def test_readability_reads_textstat():
    textstat = pytest.importorskip("textstat")
    text = "The extraordinary circumstances necessitated considerable deliberation."
    assert readability("automated")(text) == textstat.automated_readability_index(text)
    assert readability("automated")("") == 0.0
    assert parse_event("readability[index=smog]<=4").at_most
