import re

import pytest
import torch

from esscher.core.space import Space, prompts_of, sequences
from esscher.energies import text_scorers
from esscher.energies.declared_features import EXACT, feature_from_spec, features_from_specs, tally_from_spec
from esscher.energies.feature_spec import FeatureSpec, parse_feature
from esscher.energies.features import LogLinear, feature_values
from esscher.energies.text_scorers import PatternTimeoutError, text_scorer, words
from esscher.exact.enumeration import enumerate_points
from esscher.testing import check_energy

SPACE = Space(3, 6, eos=2)  # symbols 0 and 1
SYMBOLS = "01"


def decode(points: list[list[int]]) -> list[str]:
    return ["".join("_ab c"[token] for token in point if token) for point in points]


def symbols(points: list[list[int]]) -> list[str]:
    return ["".join(SYMBOLS[token] for token in point if token < 2) for point in points]


def spaced(points: list[list[int]]) -> list[str]:
    return [" ".join(SYMBOLS[token] for token in point if token < 2) for point in points]


def judged(short: str, text: str) -> float:
    return float(feature_values([feature_from_spec(parse_feature(short), lambda points: [text])], sequences([[1]])))


def test_declarations_judge_the_text_of_the_point_alone():
    x = sequences([[1, 2, 3, 1, 0], [0], [2, 2]], [[1, 1], [2], []])  # "ab a", "", "bb"
    declared = [
        FeatureSpec("contains", "b"),
        FeatureSpec("lacks", "a"),
        FeatureSpec("count", "b"),
        FeatureSpec("starts-with", "ab"),
        FeatureSpec("ends-with", "a", name="last is a"),
        FeatureSpec("matches", r"^b+$"),
        FeatureSpec("characters"),
        FeatureSpec("words"),
        FeatureSpec("tokens"),
        FeatureSpec("characters", at_least=2),
        FeatureSpec("characters", at_least=2, negated=True),
    ]
    actual = {d.title: feature_values([feature_from_spec(d, decode)], x)[:, 0].tolist() for d in declared}
    assert actual == {
        "contains b": [1, 0, 1],
        "lacks a": [0, 1, 1],
        "count b": [1, 0, 2],
        "starts-with ab": [1, 0, 0],
        "last is a": [1, 0, 0],
        "matches ^b+$": [0, 0, 1],
        "characters": [4, 0, 2],
        "words": [2, 0, 1],
        "tokens": [5, 1, 2],
        "characters at least 2": [1, 0, 1],
        "not characters at least 2": [0, 1, 0],
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
        FeatureSpec(kind, value)


def test_word_lists(tmp_path):
    text = "Happy? He's happy, and unhappy."
    assert words(text) == ["happy", "he's", "happy", "and", "unhappy"]
    assert judged("word-list:happy,HE'S", text) == 3 / 5
    assert judged("word-list[measure=count]:happy", text) == 2
    assert judged("word-list[measure=presence]:sad", text) == 0
    assert judged("word-list[measure=presence,negated]:sad", text) == 1
    assert judged("word-list:happy", "") == 0
    file = tmp_path / "list.txt"
    file.write_text("glad\nhappy, merry\n\n")
    assert judged(f"word-list:@{file}", text) == 2 / 5
    file.write_text("very glad\n")
    with pytest.raises(ValueError, match=r"list.txt of feature .*'very glad' is not one word"):
        judged(f"word-list:@{file}", text)
    with pytest.raises(FileNotFoundError, match=r"reads the file .*gone.txt, which is not there"):
        judged(f"word-list:@{tmp_path}/gone.txt", text)


def test_ngram_overlap(tmp_path):
    file = tmp_path / "reference.txt"
    file.write_text("The cat sat\non the mat.\n \nA dog ran.")
    assert judged(f"ngram-overlap[n=2]:@{file}", "the cat sat down") == 2 / 3
    assert judged(f"ngram-overlap:@{file}", "The cat sat on") == 1.0  # over the line's end
    assert judged(f"ngram-overlap[n=2]:@{file}", "mat a") == 0  # not over an empty line
    assert judged(f"ngram-overlap[n=2]:@{file}", "cat") == 0  # too short to have one
    assert judged("ngram-overlap[n=1]:a b", "a x a b") == 3 / 4
    with pytest.raises(ValueError, match="no 3 words in a row"):
        judged("ngram-overlap:a b", "a")


# declared on tokens, and the same on text; the text of spaced symbols has words, that of joined ones has strings
PAIRS = [
    ("contains[on=tokens]:0 1 1", "contains:011", symbols),
    ("lacks[on=tokens]:1 0", "lacks:10", symbols),
    ("count[on=tokens]:1 1", "count:11", symbols),
    ("count[on=tokens]:0", "count:0", symbols),
    ("starts-with[on=tokens,negated]:0 1", "starts-with[negated]:01", symbols),
    ("matches[on=tokens]:^(0 )+1", "matches:^0+1", symbols),
    ("word-list[on=tokens,measure=count]:1", "word-list[measure=count]:1", spaced),
    ("word-list[on=tokens,measure=presence]:1", "word-list[measure=presence]:1", spaced),
    ("count[on=tokens,at_least=2]:1 1", "count[at_least=2]:11", symbols),
]


@pytest.mark.parametrize(("tokens", "text", "as_text"), PAIRS)
def test_on_tokens_and_on_text_agree_on_every_point(tokens, text, as_text):
    x = enumerate_points(SPACE, prompts_of([[], [0, 1]]))
    on_tokens = feature_from_spec(parse_feature(tokens))
    assert torch.equal(feature_values([on_tokens], x), feature_values([feature_from_spec(parse_feature(text), as_text)], x))
    check_energy(LogLinear([on_tokens], torch.ones(1)), x)


def test_tokens_include_the_end_symbol():
    x = sequences([[0, 1, 2], [0, 1], [2]])
    shorts = ["ends-with[on=tokens]:1 2", "ends-with[on=tokens]:1", "word-list[on=tokens]:1,2", "tokens"]
    shorts.append("ngram-overlap[on=tokens,n=2]:0 1 0")
    actual = feature_values(features_from_specs([parse_feature(short) for short in shorts]), x)
    assert torch.allclose(actual.T, torch.tensor([[1, 0, 0], [0, 1, 0], [2 / 3, 0.5, 1], [3, 2, 1], [0.5, 1, 0]]).double())


@pytest.mark.parametrize("motif", ["1 1", "1 0 1", "0 2", "0"])
@pytest.mark.parametrize("kind", EXACT)
def test_tallies_equal_the_declared_features_on_every_point(kind, motif):
    x = enumerate_points(SPACE, prompts_of([[], [1, 1]]))
    value = "" if kind == "tokens" else motif
    for negated in [False, *([True] if FeatureSpec(kind, value, on="tokens").boolean else [])]:
        declared = FeatureSpec(kind, value, on="tokens", negated=negated)
        tally = tally_from_spec(declared, SPACE)
        assert tally.name == declared.title
        assert torch.equal(tally(x), feature_from_spec(declared).of(x))


def test_a_tally_that_counts_overlaps_would_be_caught():
    from esscher.exact import features as exact

    x = enumerate_points(SPACE)
    declared = feature_from_spec(FeatureSpec("count", "1 1", on="tokens"))
    assert not torch.equal(exact.count([1, 1], SPACE)(x), declared.of(x))


def test_what_has_no_tally_or_no_text_says_so():
    for short in ["contains:a", "matches[on=tokens]:1", "count[on=tokens,at_least=2]:1", "word-list[on=tokens]:1"]:
        with pytest.raises(
            ValueError, match=r"has no exact tally. Declare it on tokens, without a threshold, as one of: contains"
        ):
            tally_from_spec(parse_feature(short), SPACE)
    with pytest.raises(ValueError, match=r"'contains a' reads text.*give `decode`"):
        feature_from_spec(FeatureSpec("contains", "a"))


def test_quick_start_declarations_mean_what_they_meant():
    judge = text_scorer(FeatureSpec("matches", r"\b(\w+) \1\b"))
    assert [judge(text) for text in ["the the cat", "the cat the"]] == [1, 0]


@pytest.mark.parametrize("pattern", [r"(a|aa)+$", r"((a|aa)+)+\1$"])
def test_a_pattern_that_backtracks_has_a_time_limit(monkeypatch, pattern):
    monkeypatch.setattr(text_scorers, "PATTERN_SECONDS", 0.05)
    with pytest.raises(PatternTimeoutError, match=r"took more than 0\.05 s on a text of 61 characters.*Nothing was computed"):
        text_scorer(FeatureSpec("matches", pattern))("a" * 60 + "!")


PATTERNS_OF_RE = (
    r"a{2}", r"a{,2}b", r"a{e}", r"{a}", r"(?:ab){e<=1}", r"[[:alpha:]]", r"[^:a]", r"\{", r"\w+\b", r"(?i)AB",
    r"(?P<x>a)(?P=x)", r"[a||b]", r"a*+b",
)  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS_OF_RE)
def test_patterns_are_read_as_re_reads_them(pattern):
    texts = ["", "a", "b", "aa", "ab", "abb", "a{e}", "{a}", "ab{e<=1}", "[:l]", ":", "{", "AB", "|", "-", "ax", "h:", "aab"]
    score, compiled = text_scorer(FeatureSpec("matches", pattern)), re.compile(pattern)
    assert [score(text) for text in texts] == [float(compiled.search(text) is not None) for text in texts]
