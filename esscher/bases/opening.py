"""What a network reads: its opening symbol, then the tokens, so that column t stands before token t."""

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.space import Sequences


def opened(x: Sequences, opening: int) -> Int[Tensor, "B U"]:
    """The opening symbol and the tokens of each row; padding becomes token 0, whatever it held."""
    inside = torch.arange(x.tokens.shape[1], device=x.tokens.device) < x.stop[:, None]
    return torch.nn.functional.pad(torch.where(inside, x.tokens, 0), (1, 0), value=opening)
