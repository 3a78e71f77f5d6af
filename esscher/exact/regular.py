r"""Regular expressions as acceptors of token strings, with the meaning they have in Python's `re`.

`greenery` makes the automaton; what one character may be (`.`, `\d`, `[^a-f]`, an escape) is asked of `re` itself,
character by character of the alphabet, so classes mean exactly what they mean there. Tokens may be longer than
one character. Left out, with an error: what is not regular or looks beyond the match (anchors, `\b`,
back-references, lookaround), flags, possessive and atomic groups.
"""

import re
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.exact.acceptors import Acceptor
from esscher.exact.products import closure
from esscher.space import Space

_WRAP = {"full": "{}", "search": ".*{}.*", "end": ".*{}"}
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[dDwWsSnrtfva]|[^a-zA-Z0-9])", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_REPEAT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_GROUP = re.compile(r"\(\?(?::|P<\w+>)|\((?!\?)")


def regular(pattern: str, symbols: Sequence[str], *, match: str = "full") -> Acceptor:
    """The token strings whose text matches: as a whole, somewhere (`search`), or up to the end (`end`, for counts).

    `symbols` is the text of each token of the vocabulary; a token without text (the end symbol) changes nothing.
    """
    from greenery import parse
    from greenery.parse import NoMatch

    if match not in _WRAP:
        raise ValueError(f"match is one of {sorted(_WRAP)}, not {match!r}.")
    characters = sorted(set("".join(symbols)))
    translated = _WRAP[match].format(f"({_translate(pattern, characters)})")
    try:
        machine = parse(translated).to_fsm()
    except NoMatch as error:
        raise ValueError(f"{pattern!r} repeats what is already repeated (`a++`); write a group, `(?:a+)+`.") from error
    states = [machine.initial, *sorted(set(machine.states) - {machine.initial})]
    number = {state: place for place, state in enumerate(states)}
    class_of = {char: next(some for some in machine.alphabet if some.accepts(char)) for char in characters}
    step = {char: [number[machine.map[state][class_of[char]]] for state in states] for char in characters}
    columns = []
    for symbol in symbols:
        column = list(range(len(states)))
        for char in symbol:
            column = [step[char][state] for state in column]
        columns.append(column)
    accepting = torch.tensor([state in machine.finals for state in states])
    return _trim(torch.tensor(columns, dtype=torch.long).T.contiguous(), accepting)


def alphabet_symbols(alphabet: Sequence[str], space: Space) -> list[str]:
    """The text of each token of a space whose end symbol, without text, is put in its place among the alphabet."""
    symbols = list(alphabet)
    if space.eos is not None:
        symbols.insert(space.eos, "")
    if len(symbols) != space.vocab_size:
        raise ValueError(f"{len(alphabet)} symbols do not name the tokens of {space}.")
    return symbols


def _translate(pattern: str, characters: list[str]) -> str:
    """The pattern with every set of characters written out; what is not regular is an error."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}. Nothing was compiled.") from error
    parts, place, repeatable = [], 0, False
    while place < len(pattern):
        piece, text = _next_piece(pattern, place, characters, repeatable)
        repeatable = text not in ("|", "(")
        place += len(piece)
        parts.append(text)
    return "".join(parts)


def _next_piece(pattern: str, place: int, characters: list[str], repeatable: bool) -> tuple[str, str]:
    """The piece of the pattern that begins here, and what it becomes."""
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
            return atom[0], _written_out(atom[0], characters)
    if char in "^$\\(":
        raise ValueError(
            f"{pattern!r} uses {pattern[place : place + 3]!r} at position {place}: anchors, flags, lookaround and "
            f"back-references are not compiled to automata. Nothing was compiled; say where the text matches with "
            f"match='full', 'search' or 'end', and combine acceptors with &, | and ~."
        )
    return char, _written_out(char if char == "." else re.escape(char), characters)


def _written_out(atom: str, characters: list[str]) -> str:
    """The class of the alphabet's characters that `re` lets this atom match; `[]` matches nothing."""
    matcher = re.compile(atom)
    return "[" + "".join(re.sub(r"([\\\[\]^-])", r"\\\1", char) for char in characters if matcher.fullmatch(char)) + "]"


def _trim(move: Int[Tensor, "S V"], accepting: Tensor) -> Acceptor:
    """Without the states that no token leads to."""
    known = closure(torch.tensor([0]), lambda states: move[states])
    number = torch.zeros(len(move), dtype=torch.long)
    number[known] = torch.arange(len(known))
    return Acceptor(number[move[known]], accepting[known])
