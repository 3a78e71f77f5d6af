"""Products: automata that run side by side on the same tokens, and the weights they give together.

A product has only the states that tokens can lead to from the start; they are found in breadth-first waves,
vectorised over states and tokens.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.exact.automaton import FiniteState, Weighted


class Product(NamedTuple):
    """The states of a product: which state of each part, and where tokens of the point and of the prompt lead."""

    parts: Int[Tensor, "S K"]
    move: Int[Tensor, "S V"]
    read: Int[Tensor, "S V"]


def product(moves: Sequence[Int[Tensor, "_ V"]], reads: Sequence[Int[Tensor, "_ V"]], *, eos: int | None) -> Product:
    """Run tables side by side from their states 0.

    A point's end symbol leads nowhere, so it stays in its state. States that only a point leads to read no prompt,
    so there a token of the prompt stays too.
    """
    sizes = [len(move) for move in moves]
    if math.prod(sizes) >= 2**62:
        raise ValueError(f"A product of automata with {sizes} states has too many states to number; use fewer or smaller ones.")
    stride = torch.tensor([math.prod(sizes[place + 1 :]) for place in range(len(sizes))])
    size = torch.tensor(sizes)

    def step(tables: Sequence[Tensor], code: Tensor) -> Tensor:
        parts = code[:, None] // stride % size
        return sum((table[parts[:, k]] * stride[k] for k, table in enumerate(tables)), torch.tensor(0))

    def move_on(code: Tensor) -> Tensor:
        moved = step(moves, code)
        if eos is not None:
            moved[:, eos] = code
        return moved

    begun = closure(torch.tensor([0]), lambda code: step(reads, code))
    known = closure(begun, move_on)
    order = known.argsort()
    moved, read = (order[torch.searchsorted(known[order], table)] for table in (move_on(known), step(reads, begun)))
    stay = torch.arange(len(begun), len(known))[:, None].expand(-1, moved.shape[1])
    return Product(known[:, None] // stride % size, moved, torch.cat([read, stay]))


def closure(known: Int[Tensor, "K"], step: Callable[[Tensor], Tensor]) -> Int[Tensor, "S"]:
    """All that steps lead to, what was known first."""
    wave = known
    while len(wave):
        reached = torch.unique(step(wave))
        wave = reached[~torch.isin(reached, known)]
        known = torch.cat([known, wave])
    return known


def intersect(*processes: FiniteState) -> Weighted:
    """The weights of all multiplied; acceptors take part as `acceptor.weighted(space)`.

    Prompts are read by each as it reads them: two bases, or a base and the acceptor of its whole strings.
    """
    parts = [process.weighted() for process in processes]
    space = parts[0].space
    for other in parts[1:]:
        if other.space != space:
            raise ValueError(f"Automata over different spaces cannot run side by side: {space} and {other.space}.")
    states = product([part.move for part in parts], [part.reading for part in parts], eos=space.eos)
    zeros = torch.zeros(states.move.shape, dtype=torch.float64)
    emit = sum((part.emit[states.parts[:, k]] for k, part in enumerate(parts)), zeros)
    final = sum((part.cut[states.parts[:, k]] for k, part in enumerate(parts)), zeros[:, 0])
    return Weighted(emit, states.move, space, final, states.read)
