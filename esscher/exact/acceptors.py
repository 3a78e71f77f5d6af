"""Acceptors: sets of token strings as deterministic automata, from motifs, regular expressions and their combinations.

An acceptor starts in state 0, reads every token (the end symbol has no effect unless the motif holds it) and accepts in the
states where `accepting` is True. Acceptors combine with `&`, `|` and `~`. `regex_acceptor` follows Python's `re`. Left out,
with an error: what is not regular or looks beyond the match (anchors, `\\b`, back-references, lookaround), flags, possessive
and atomic groups.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from esscher.core.space import Sequences, Space
from esscher.exact.automaton import WeightedAutomaton, path_states, product_states, reachable
from esscher.exact.counting import kmp_transitions


@dataclass(frozen=True)
class Acceptor:
    """The strings that lead from state 0 to an accepting state."""

    next_state: Int[Tensor, "S V"]
    accepting: Bool[Tensor, "S"]

    def __invert__(self) -> "Acceptor":
        return Acceptor(self.next_state, ~self.accepting)

    def __and__(self, other: "Acceptor") -> "Acceptor":
        states = product_states([self.next_state, other.next_state], [self.next_state, other.next_state], eos=None)
        return Acceptor(states.next_state, self.accepting[states.parts[:, 0]] & other.accepting[states.parts[:, 1]])

    def __or__(self, other: "Acceptor") -> "Acceptor":
        return ~(~self & ~other)

    def accepts(self, x: Sequences) -> Bool[Tensor, "B"]:
        """Whether each point, its end symbol included, is accepted; prompts are not read."""
        return self.accepting[path_states(x, torch.zeros_like(x.start), self.next_state)[:, -1]]

    def to_weighted_automaton(self, space: Space) -> WeightedAutomaton:
        """Weight 1 for points whose prompt and point together are accepted, 0 for others."""
        if self.next_state.shape[1] != space.vocab_size:
            raise ValueError(f"The acceptor reads {self.next_state.shape[1]} tokens and the space has {space.vocab_size}.")
        forbidden = torch.tensor(-torch.inf, dtype=torch.float64)
        log_emission = torch.zeros(self.next_state.shape, dtype=torch.float64)
        if space.eos is not None:
            log_emission[:, space.eos] = torch.where(self.accepting[self.next_state[:, space.eos]], 0.0, forbidden)
        return WeightedAutomaton(log_emission, self.next_state, space, torch.where(self.accepting, 0.0, forbidden))


def accept_all(vocab_size: int) -> Acceptor:
    """Every string."""
    return Acceptor(torch.zeros(1, vocab_size, dtype=torch.long), torch.tensor([True]))


def contains(motif: Sequence[int], vocab_size: int) -> Acceptor:
    """The strings that contain the motif."""
    next_state = ends_with(motif, vocab_size).next_state.clone()
    next_state[-1] = len(motif)
    return Acceptor(next_state, torch.arange(len(motif) + 1) == len(motif))


def ends_with(motif: Sequence[int], vocab_size: int) -> Acceptor:
    """The strings that end with the motif; put the end symbol into the motif to find it at the end of points."""
    _check_motif(motif, vocab_size)
    return Acceptor(torch.tensor(kmp_transitions(motif, vocab_size)), torch.arange(len(motif) + 1) == len(motif))


def starts_with(motif: Sequence[int], vocab_size: int) -> Acceptor:
    """The strings that begin with the motif."""
    _check_motif(motif, vocab_size)
    length = len(motif)
    next_state = torch.full((length + 2, vocab_size), length + 1)  # the last state: another prefix was read
    for state, token in enumerate(motif):
        next_state[state, token] = state + 1
    next_state[length] = length
    return Acceptor(next_state, torch.arange(length + 2) == length)


def _check_motif(motif: Sequence[int], vocab_size: int) -> None:
    wrong = [token for token in motif if not 0 <= token < vocab_size]
    if wrong:
        raise ValueError(f"The motif {list(motif)} has tokens {wrong} that are not among the {vocab_size} of the vocabulary.")
    if not motif:
        raise ValueError("A motif needs at least one token: every string contains the empty one.")


_WRAP = {"full": "{}", "search": ".*{}.*", "start": "{}.*", "end": ".*{}"}
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[dDwWsSnrtfva]|[^a-zA-Z0-9])", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_REPEAT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_GROUP = re.compile(r"\(\?(?::|P<\w+>)|\((?!\?)")


def regex_acceptor(pattern: str, symbols: Sequence[str], *, match: str = "full") -> Acceptor:
    """The token strings whose text matches: wholly (`full`), somewhere (`search`), from its start (`start`), or up to its end
    (`end`, for counts). `symbols` holds the text of each token of the vocabulary; a token without text, such as the end symbol,
    has no effect."""
    table, accepting, classes = regex_automaton(pattern, sorted(set("".join(symbols))), match=match)
    next_state = read_symbols(table, classes, symbols)
    used = reachable(torch.tensor([0]), lambda states: next_state[states])
    renumbered = torch.zeros(len(next_state), dtype=torch.long)
    renumbered[used] = torch.arange(len(used))
    return Acceptor(renumbered[next_state[used]], torch.tensor(accepting)[used])


def regex_automaton(
    pattern: str, characters: Sequence[str], *, match: str = "full"
) -> tuple[list[list[int]], list[bool], Callable[[str], int]]:
    """The automaton of a regular expression over these characters: `next_state[state][class]`, the accepting states, and the
    class of a character."""
    from greenery import parse
    from greenery.parse import NoMatch

    if match not in _WRAP:
        raise ValueError(f"match is one of {sorted(_WRAP)}, not {match!r}.")
    translated = _WRAP[match].format(f"({_translate(pattern, list(characters))})")
    try:
        machine = parse(translated).to_fsm()
    except NoMatch as error:
        raise ValueError(f"{pattern!r} repeats what is already repeated (`a++`); write a group, `(?:a+)+`.") from error
    states = [machine.initial, *sorted(set(machine.states) - {machine.initial})]
    number, alphabet = {state: place for place, state in enumerate(states)}, list(machine.alphabet)
    class_of = {char: next(k for k, chars in enumerate(alphabet) if chars.accepts(char)) for char in characters}
    table = [[number[machine.map[state][chars]] for chars in alphabet] for state in states]
    return table, [state in machine.finals for state in states], class_of.__getitem__


def read_symbols(
    next_state: Sequence[Sequence[int]], classes: Callable[[str], int], symbols: Sequence[str]
) -> Int[Tensor, "S V"]:
    """The state after the text of each symbol, from each state of an automaton over characters."""
    table, class_of = torch.tensor(next_state), {char: classes(char) for char in set("".join(symbols))}
    going = list(range(len(symbols)))
    column = torch.arange(len(table))[:, None].repeat(1, len(symbols))
    for position in range(max(map(len, symbols), default=0)):
        going = [number for number in going if len(symbols[number]) > position]
        read = torch.tensor([class_of[symbols[number][position]] for number in going])
        column[:, going] = table[column[:, going], read]
    return column


def alphabet_symbols(alphabet: Sequence[str], space: Space) -> list[str]:
    """The text of each token of a space: the alphabet, with an empty string at the place of the end symbol."""
    symbols = list(alphabet)
    if space.eos is not None:
        symbols.insert(space.eos, "")
    if len(symbols) != space.vocab_size:
        raise ValueError(f"{len(alphabet)} symbols do not name the tokens of {space}.")
    return symbols


def _translate(pattern: str, characters: list[str]) -> str:
    """The pattern with every character class expanded; an error where it is not regular."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}. Nothing was compiled.") from error
    translated, place, repeatable = "", 0, False
    while place < len(pattern):
        piece, text = _next_piece(pattern, place, characters, repeatable)
        repeatable = text not in ("|", "(")
        place += len(piece)
        translated += text
    return translated


def _next_piece(pattern: str, place: int, characters: list[str], repeatable: bool) -> tuple[str, str]:
    """The piece of the pattern at this place, and its translation."""
    char = pattern[place]
    if group := _GROUP.match(pattern, place):
        return group[0], "("
    if char in ")|*+?":
        return char, char
    if repeatable and (repeat := _REPEAT.match(pattern, place)) and repeat[0] != "{}":
        low, comma, high = repeat.groups()
        return repeat[0], f"{{{low or 0}{comma}{high}}}"
    for kind in (_ESCAPE, _CLASS):
        if atom := kind.match(pattern, place):
            return atom[0], _expanded(atom[0], characters)
    if char in "^$\\(":
        raise ValueError(
            f"{pattern!r} uses {pattern[place : place + 3]!r} at position {place}: anchors, flags, lookaround and "
            f"back-references are not compiled to automata. Nothing was compiled; say where the text matches with "
            f"match='full', 'search' or 'end', and combine acceptors with &, | and ~."
        )
    return char, _expanded(char if char == "." else re.escape(char), characters)


def _expanded(atom: str, characters: list[str]) -> str:
    """The class of all characters of the alphabet that this atom matches in `re`; `[]` matches nothing."""
    matcher = re.compile(atom)
    return "[" + "".join(re.sub(r"([\\\[\]^-])", r"\\\1", char) for char in characters if matcher.fullmatch(char)) + "]"
