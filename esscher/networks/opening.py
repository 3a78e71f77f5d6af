"""What a network reads: its opening symbol, then the tokens, so that column t stands before token t.

One that reads a source and writes a target reads them apart: the prompt, and the point after an opening symbol of its own.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.space import Sequences, by_position


def opened(x: Sequences, opening: int) -> Int[Tensor, "B U"]:
    """The opening symbol and the tokens of each row; padding becomes token 0, whatever it held."""
    return torch.nn.functional.pad(torch.where(x.inside, x.tokens, 0), (1, 0), value=opening)


def answered(x: Sequences, opening: int) -> Int[Tensor, "B L"]:
    """The opening symbol and the tokens of each point but its last; what follows the end of a point becomes token 0."""
    longest = int(x.lengths.max()) if len(x) else 0
    tokens = by_position(x, x.tokens, max(0, longest - 1))
    return torch.nn.functional.pad(tokens, (1, 0), value=opening)[:, :longest]
