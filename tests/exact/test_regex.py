"""Regular expressions: the same verdict as Python's `re` on every short string."""

import itertools
import re

import pytest
import torch

from esscher.core.space import Space, sequences
from esscher.exact.acceptors import Acceptor, alphabet_symbols, regex_acceptor
from esscher.exact.dynamic_programming import expectation
from esscher.exact.features import count_accepted_prefixes, indicator
from esscher.exact.languages import white_noise

CHARACTERS = "abc-.]{,2\n"
PATTERNS = [
    "a*b", "a.b", "[^a]+b?", "(a|b)*?c", "a{2,3}b{,1}", r"\w\-", ".b|c", r"[\]a]b", "[]a]", "[^]a]", "a{b", "a{,}", "()", "a|",
    r"\n", r"\.", "a b", "(?P<name>ab)+", "(?:ab|b){2}", "[a-c]{2}", r"[^ab\n-]", r"\d", "[.]", ".*", r"\s|\S\D", r"\x61b", "é",
    "a]", "{a", "-+", "", r"[\w.]+?c", "(a(b)?)*", ",{1,}",
]  # fmt: skip
PYTHON = {"full": re.fullmatch, "search": re.search, "end": lambda p, w: re.fullmatch(f"(?s:.*)(?:{p})", w)}


def words(length: int) -> list[str]:
    return ["".join(word) for n in range(length + 1) for word in itertools.product(CHARACTERS, repeat=n)]


def verdicts(acceptor: Acceptor, strings: list[str], symbols: str = CHARACTERS) -> list[bool]:
    return acceptor.accepts(sequences([[*map(symbols.index, word), len(symbols)] for word in strings])).tolist()


@pytest.mark.parametrize("match", PYTHON)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_same_verdict_as_python(pattern, match):
    acceptor = regex_acceptor(pattern, [*CHARACTERS, ""], match=match)
    assert verdicts(acceptor, words(3)) == [PYTHON[match](pattern, word) is not None for word in words(3)]


def test_the_comparison_catches_a_dot_that_matches_a_newline_and_search_taken_for_fullmatch():
    expected = [re.fullmatch("a.", word) is not None for word in words(3)]
    assert verdicts(regex_acceptor("a.", [*CHARACTERS, ""]), words(3)) == expected
    assert verdicts(regex_acceptor(r"a(?:.|\n)", [*CHARACTERS, ""]), words(3)) != expected
    assert verdicts(regex_acceptor("a.", [*CHARACTERS, ""], match="search"), words(3)) != expected


def test_tokens_of_several_characters():
    symbols = ["ab", "a", "b", "ba", ""]
    acceptor = regex_acceptor("(ab)+", symbols)
    rows = [list(word) for n in range(4) for word in itertools.product(range(4), repeat=n)]
    expected = [re.fullmatch("(ab)+", "".join(symbols[t] for t in row)) is not None for row in rows]
    assert acceptor.accepts(sequences(rows)).tolist() == expected
    assert sum(expected) > 3


def test_patterns_as_features():
    """The share of strings with a match, and the number of places where a match ends, over all strings of length 7."""
    noise = white_noise(3, 7)
    symbols = alphabet_symbols("abc", noise.space)
    strings = ["".join(word) for word in itertools.product("abc", repeat=7)]
    actual = indicator("ab+c", regex_acceptor("ab+c", symbols, match="search"), noise.space)
    assert float(expectation(noise, actual)) == pytest.approx(sum(bool(re.search("ab+c", w)) for w in strings) / len(strings))
    count = count_accepted_prefixes("ab+", regex_acceptor("ab+", symbols, match="end"), noise.space)
    ends = sum(re.fullmatch(".*ab+", w[:n]) is not None for w in strings for n in range(1, 8))
    assert float(expectation(noise, count)) == pytest.approx(ends / len(strings))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("^a", "anchors"),
        ("a$", "anchors"),
        (r"\ba", "anchors"),
        (r"(a)\1", "back-references"),
        ("(?i)a", "flags"),
        ("(?=a)b", "lookaround"),
        ("(?>a)b", "lookaround"),
        ("a++", "already repeated"),
        ("(a", "not a regular expression"),
    ],
)
def test_what_is_not_regular_is_refused(pattern, message):
    with pytest.raises(ValueError, match=message):
        regex_acceptor(pattern, [*CHARACTERS, ""])


def test_names_of_matches_and_sizes_are_checked():
    with pytest.raises(ValueError, match=r"\['end', 'full', 'search', 'start'\]"):
        regex_acceptor("a", ["a"], match="somewhere")
    assert alphabet_symbols("ab", Space(3, 2, eos=0)) == ["", "a", "b"]
    assert alphabet_symbols("ab", Space(2, 2)) == ["a", "b"]
    with pytest.raises(ValueError, match="do not name the tokens"):
        alphabet_symbols("abc", Space(3, 2, eos=0))
    with pytest.raises(ValueError, match="reads 3 tokens and the space has 4"):
        regex_acceptor("a", ["a", "b", ""]).to_weighted_automaton(Space(4, 2))
    assert torch.equal(regex_acceptor("a", ["b"]).accepting, torch.tensor([False]))
