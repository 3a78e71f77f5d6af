"""What a network reads: its opening symbol, then the tokens, so that column t stands before token t.

One that reads a source and writes a target reads them apart: the prompt, and the point after an opening symbol of its own.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.space import Sequences


def opened(x: Sequences, opening: int) -> Int[Tensor, "B U"]:
    """The opening symbol and the tokens of each row; padding becomes token 0, whatever it held."""
    return torch.nn.functional.pad(torch.where(x.inside, x.tokens, 0), (1, 0), value=opening)


def answered(x: Sequences, opening: int) -> Int[Tensor, "B L"]:
    """The opening symbol and the tokens of each point but its last; what follows the end of a point becomes token 0."""
    longest = int(x.lengths.max()) if len(x) else 0
    position = torch.arange(max(0, longest - 1), device=x.tokens.device)
    column = (x.start[:, None] + position).clamp(max=max(0, x.tokens.shape[1] - 1))
    inside = position < x.lengths[:, None]
    tokens = torch.where(inside, x.tokens.gather(1, column), 0)
    return torch.nn.functional.pad(tokens, (1, 0), value=opening)[:, :longest]
