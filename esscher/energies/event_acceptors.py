"""Events as finite automata over tokens: what `esscher.samplers.acceptor_twist` needs to lead draws to an event.

A text event is first an automaton over characters, and then read token by token: each token adds its piece of text, as the
tokenizer decodes it after another token, or at the beginning of a text, where some tokenizers drop a space. A tokenizer whose
pieces depend on more than that does not agree with the automaton; who uses one compares it with the event on draws.

Left out (None): classifiers, readability, word lists, functions of a text, patterns that are not regular, and automata of more
than `MAX_STATES` states.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from esscher.core.space import Space
from esscher.energies.declared_features import ACCEPTORS
from esscher.energies.event_spec import EventSpec
from esscher.energies.feature_spec import FeatureSpec
from esscher.energies.features import Decode
from esscher.exact import acceptors
from esscher.exact.acceptors import Acceptor, read_symbols
from esscher.exact.counting import kmp_transitions

MAX_STATES = 512
UNKNOWN = "\ufffd"
MAX_ENTRIES = 2**27  # of the table of states and tokens


@dataclass(frozen=True)
class CharacterAutomaton:
    """`next_state[state][class]`; characters that `classes` does not name are of class 0."""

    next_state: list[list[int]]
    accepting: list[bool]
    classes: Callable[[str], int]
    fold: bool = False  # whether it reads case-folded text

    def __invert__(self) -> "CharacterAutomaton":
        return replace(self, accepting=[not each for each in self.accepting])


def event_acceptor(spec: EventSpec, decode: Decode | None, space: Space) -> Acceptor | None:
    """The acceptor of the points for which the event happens, or None if there is no small one."""
    feature = spec.feature
    if feature is not None and feature.reads == "tokens":
        return _on_tokens(spec, feature, space)
    pieces = None if decode is None else token_pieces(decode, space)
    if pieces is None:
        return None
    automaton = _on_characters(spec, sorted(set("".join(pieces[0] + pieces[1]))))
    if automaton is None or len(automaton.next_state) > min(MAX_STATES, MAX_ENTRIES // space.vocab_size):
        return None
    return read_tokens(automaton, *pieces)


def read_tokens(automaton: CharacterAutomaton, first: Sequence[str], later: Sequence[str]) -> Acceptor:
    """The automaton over tokens, of which the first of a text and later ones add these pieces."""
    folded = [[piece.casefold() if automaton.fold else piece for piece in pieces] for pieces in (first, later)]
    start, rest = (read_symbols(automaton.next_state, automaton.classes, pieces) for pieces in folded)
    accepting = torch.tensor(automaton.accepting)
    if bool((start[0] == rest[0]).all()):
        return Acceptor(rest, accepting)
    return Acceptor(torch.cat([start[:1] + 1, rest + 1]), torch.cat([accepting[:1], accepting]))


def token_pieces(decode: Decode, space: Space) -> tuple[list[str], list[str]] | None:
    """The text of each token at the beginning of a text, and after the longest token of letters; None if no token is of
    letters. Tokens that change the text before them, such as a part of a character, count as one that is not known."""
    tokens = range(space.vocab_size)
    first = list(decode([[token] for token in tokens]))
    letters = [token for token in tokens if first[token].isascii() and first[token].isalpha() and token != space.eos]
    if not letters:
        return None
    before = max(letters, key=lambda token: len(first[token]))
    start, both = first[before], decode([[before, token] for token in tokens])
    later = [text[len(start) :] if text.startswith(start) else UNKNOWN for text in both]
    if space.eos is not None:
        first[space.eos] = later[space.eos] = ""
    return first, later


def _on_tokens(spec: EventSpec, feature: FeatureSpec, space: Space) -> Acceptor | None:
    size = space.vocab_size
    if spec.bound is not None:
        least = _least_count(spec)
        if least is None or feature.kind not in ("count", "tokens"):
            return None
        moves = kmp_transitions(feature.motif, size) if feature.kind == "count" else EVERY_SYMBOL
        return _counted(moves, least, size, spec.at_most)
    if feature.kind not in ACCEPTORS:
        return None
    acceptor = ACCEPTORS[feature.kind](feature.motif, size)
    return ~acceptor if feature.negated else acceptor


def _counted(moves: Sequence[Sequence[int]], least: int, size: int, at_most: bool) -> Acceptor | None:
    if (len(moves) - 1) * least > min(MAX_STATES, MAX_ENTRIES // size):
        return None
    counter = _counter(moves, least)
    acceptor = Acceptor(torch.tensor(counter.next_state).expand(-1, size).contiguous(), torch.tensor(counter.accepting))
    return ~acceptor if at_most else acceptor


def _least_count(spec: EventSpec) -> int | None:
    """From which count on an event with a bound happens, or does not, if the bound is at most; None if there is none."""
    assert spec.bound is not None
    least = math.floor(spec.bound) + 1 if spec.at_most else math.ceil(spec.bound)
    return least if 1 <= least <= MAX_STATES else None


EVERY_SYMBOL = [[1], [1]]  # transitions of which every symbol, all of one class, is an occurrence


def _counter(moves: Sequence[Sequence[int]], least: int) -> CharacterAutomaton:
    """Counts how often the transitions of `kmp_transitions` reach their last state, from where they begin again."""
    length, symbols = len(moves) - 1, len(moves[0])
    table = [
        [(number + 1) * length if to == length else number * length + to for to in moves[state]]
        for number in range(least)
        for state in range(length)
    ]
    end = least * length
    return CharacterAutomaton([*table, [end] * symbols], [False] * end + [True], lambda char: 0)


def _on_characters(spec: EventSpec, characters: Sequence[str]) -> CharacterAutomaton | None:
    if spec.phrases:
        return replace(any_of(spec.phrases), fold=True)
    feature = spec.feature
    if feature is None or feature.at_least is not None:
        return None
    if spec.bound is not None:
        least = _least_count(spec)
        if least is None:
            return None
        if feature.kind == "count":
            counted = _count_string(feature.value, least)
        elif feature.kind == "characters":
            counted = _counter(EVERY_SYMBOL, least)
        elif feature.kind == "words":
            counted = _count_words(least)
        else:
            return None
        return ~counted if spec.at_most else counted
    automaton = _yes_or_no(feature, characters)
    return None if automaton is None else ~automaton if feature.negated else automaton


def _yes_or_no(feature: FeatureSpec, characters: Sequence[str]) -> CharacterAutomaton | None:
    value = feature.value
    if feature.kind in ("contains", "lacks"):
        found = any_of([value])
        return found if feature.kind == "contains" else ~found
    if feature.kind == "ends-with":
        return any_of([value], forget=True)
    if feature.kind == "starts-with":
        classes, size = _classes([value])
        lost = len(value) + 1
        table = [
            [state + 1 if symbol == classes(value[state]) else lost for symbol in range(size)] for state in range(len(value))
        ]
        return CharacterAutomaton(
            [*table, [len(value)] * size, [lost] * size], [state == len(value) for state in range(lost + 1)], classes
        )
    return _pattern(value, characters) if feature.kind == "matches" else None


def _classes(strings: Sequence[str]) -> tuple[Callable[[str], int], int]:
    """A class for each character of the strings, and class 0 for all others; and how many classes there are."""
    number = {char: place for place, char in enumerate(sorted(set("".join(strings))), 1)}
    return lambda char: number.get(char, 0), len(number) + 1


def any_of(strings: Sequence[str], *, forget: bool = False) -> CharacterAutomaton:
    """The texts that contain one of the strings, or, with `forget`, end with one (Aho and Corasick, 1975)."""
    classes, size = _classes(strings)
    goto: list[dict[int, int]] = [{}]
    found = [False]
    for string in strings:
        state = 0
        for char in string:
            if classes(char) not in goto[state]:
                goto.append({})
                found.append(False)
                goto[state][classes(char)] = len(goto) - 1
            state = goto[state][classes(char)]
        found[state] = True
    table = [[0] * size for _ in goto]
    fallback, queue = [0] * len(goto), deque([0])
    while queue:
        state = queue.popleft()
        found[state] = found[state] or found[fallback[state]]
        for symbol in range(size):
            to = goto[state].get(symbol)
            if to is None:
                table[state][symbol] = table[fallback[state]][symbol] if state else 0
                continue
            table[state][symbol] = to
            fallback[to] = table[fallback[state]][symbol] if state else 0
            queue.append(to)
    if not forget:
        table = [[state] * size if found[state] else row for state, row in enumerate(table)]
    return CharacterAutomaton(table, found, classes)


def _count_string(value: str, least: int) -> CharacterAutomaton:
    """Occurrences as `str.count` finds them: from the left, without overlaps."""
    classes, size = _classes([value])
    return replace(_counter(kmp_transitions([classes(char) for char in value], size), least), classes=classes)


def _count_words(least: int) -> CharacterAutomaton:
    """Words as `str.split` finds them; states are twice the number of words, and one more outside of a word."""
    table = [[state, state + 1] if state % 2 == 0 else [state + 1, state] for state in range(2 * least - 1)]
    return CharacterAutomaton(
        [*table, [2 * least - 1] * 2], [False] * (2 * least - 1) + [True], lambda char: int(not char.isspace())
    )


def _pattern(pattern: str, characters: Sequence[str]) -> CharacterAutomaton | None:
    """A regular expression that is found anywhere, or, after ^, at the beginning."""
    anchored = pattern.startswith("^")
    if anchored and len(top_level(pattern)) > 1:  # the anchor is that of the first alternative only
        return None
    match = "start" if anchored else "search"
    try:
        return CharacterAutomaton(*acceptors.regex_automaton(pattern[anchored:], characters, match=match))
    except ValueError:  # not regular
        return None


def top_level(pattern: str) -> list[str]:
    """The alternatives of a pattern outside of groups and classes."""
    pieces, depth, start = list[str](), 0, 0
    for match in re.finditer(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]", pattern, flags=re.DOTALL):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if match[0] == "|" and depth == 0:
            pieces, start = [*pieces, pattern[start : match.start()]], match.end()
    return [*pieces, pattern[start:]]
