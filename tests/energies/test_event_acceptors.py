"""Acceptors of events agree with the events, whatever pieces of text tokens have."""

from itertools import product

import pytest
import torch

from esscher.core.space import Space, sequences
from esscher.energies.event_acceptors import MAX_STATES, event_acceptor, token_pieces
from esscher.energies.event_spec import parse_event
from esscher.energies.events import make_event

PIECES = ["", "a", "b", " a", " ", "ab", "ba ", "B", "\n", "cab"]  # token 0 ends a point
SPACE = Space(len(PIECES), 5, eos=0)
EVENTS = (
    "contains:ab", "contains:a a", "contains[negated]:ab", "lacks:ab", "lacks[negated]:b a", "count:ab>=2", "count:aba>=1",
    "count:a<=2", "count[at_least=3]:a", "matches:a.b", "matches:^(?:ab|b)a", "matches:[ab]{3} ", "matches:^a",
    "starts-with:ab", "starts-with: a", "ends-with:ba", "ends-with[negated]:a", "words>=3", "words<=1",
    "characters>=7", "characters<=3",
    "phrases:ab a,bab", "tokens>=4", "tokens<=3", "contains[on=tokens]:1 2", "count[on=tokens]:1 1>=2",
    "ends-with[on=tokens]:1 0", "starts-with[on=tokens,negated]:1", "lacks[on=tokens]:5",
)  # fmt: skip


def decode(points):
    """Like sentencepiece, it drops a space at the start of a text."""
    return ["".join(PIECES[token] for token in point).removeprefix(" ") for point in points]


def all_points():
    """Every point of up to three tokens that ends, and of five tokens of a few kinds."""
    short = [[*point, 0] for length in range(4) for point in product(range(1, len(PIECES)), repeat=length)]
    return sequences([*short, *([1 + token for token in point] for point in product((0, 1, 2, 4), repeat=5))])


@pytest.mark.parametrize("declared", EVENTS)
def test_an_acceptor_accepts_where_the_event_happens(declared):
    x, event = all_points(), make_event(declared, decode, SPACE.max_length)
    acceptor = event.acceptor(SPACE)
    assert acceptor is not None
    happens = event.score(x) >= event.threshold
    assert 0 < int(happens.sum()) < len(x)
    assert bool((acceptor.accepts(x) == happens).all())


@pytest.mark.parametrize(
    "declared", ["matches:a\\b", "matches:^a|b", "hash:2", "word-list[measure=count]:ab>=1", "characters>=900", "words>=0"]
)
def test_what_has_no_small_acceptor_has_none(declared):
    assert event_acceptor(parse_event(declared), decode, SPACE) is None
    assert MAX_STATES < 900


def test_pieces_depend_on_the_place():
    first, later = token_pieces(decode, SPACE)
    assert (first[3], later[3]) == ("a", " a")
    assert first[5] == later[5] == "ab"
    assert token_pieces(lambda points: ["?"] * len(points), SPACE) is None


def test_pieces_that_change_the_text_before_them_are_unknown():
    def joined(points):
        return [text.replace("ab ", "X") for text in decode(points)]

    _, later = token_pieces(joined, Space(len(PIECES), 5, eos=0))
    assert later[4] == "\ufffd"
    assert make_event(lambda text: True, joined, 5).acceptor(SPACE) is None


def test_case_is_folded_with_characters_that_grow():
    pieces = ["", "STRA", "ß", "E", "ab"]

    def read(points):
        return ["".join(pieces[token] for token in point) for point in points]

    space = Space(5, 4, eos=0)
    acceptor = event_acceptor(parse_event("phrases:strasse"), read, space)
    assert acceptor.accepts(sequences([[1, 2, 3, 0], [1, 3, 2, 0]])).tolist() == [True, False]
    assert torch.equal(acceptor.accepting, event_acceptor(parse_event("phrases:strasse"), read, space).accepting)
