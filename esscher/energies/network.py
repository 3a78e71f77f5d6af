"""Energies that are networks: a reader, a pooling of what it read, a head that gives one number.

    E(x) = head(pooled vectors)          or, with a bound b,  b tanh(head(pooled vectors) / b)

The head begins at 0, so that training begins at the base itself, where log Z = 0. With a linear head, `mean` and `sum` are
the mean and the sum of a score for each token of the point. With a window only the end of the prompt is read, which is as
much cheaper as it is shorter. Dropout acts in training mode. Built by `building.build_energy`.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.energies.config import EnergyConfig, Pooling
from esscher.energies.readers import Read, Reader
from esscher.space import Sequences


class NetworkEnergy(nn.Module):
    """The energy that a reader and a head give to whole sequences; with the vocabulary of the reader, if it states one."""

    reader: Any
    vocab_size: int

    def __init__(self, reader: Reader, config: EnergyConfig):
        super().__init__()
        self.reader, self.config = reader, config
        if config.hidden is None:
            self.head: nn.Module = nn.Linear(reader.width, 1)
            last = self.head
        else:
            last = nn.Linear(config.hidden, 1)
            self.head = nn.Sequential(nn.Linear(reader.width, config.hidden), nn.GELU(), last)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        reads = getattr(reader, "vocab_size", None)
        if isinstance(reads, int):
            self.vocab_size = reads

    def forward(self, x: Sequences) -> Float[Tensor, "B"]:
        if len(x) == 0:
            return torch.zeros(0, device=x.tokens.device)
        if self.config.window is not None:
            x = windowed(x, self.config.window)
        found = self.head(pooled(self.reader(x), self.config.pooling))[:, 0]
        bound = self.config.bound
        return found if bound is None else bound * torch.tanh(found / bound)


def windowed(x: Sequences, window: int) -> Sequences:
    """The rows with only the last `window` tokens of their prompts."""
    dropped = (x.start - window).clamp(min=0)
    start, stop = x.start - dropped, x.stop - dropped
    column = torch.arange(int(stop.max()), device=x.tokens.device)
    inside = column < stop[:, None]
    kept = x.tokens.gather(1, torch.where(inside, column + dropped[:, None], 0))
    return Sequences(torch.where(inside, kept, 0), start, stop)


def pooled(read: Read, how: Pooling) -> Float[Tensor, "B W"]:
    """One vector a row."""
    if how == "first":
        return read.vectors[:, 0]
    if how == "last":
        column = torch.arange(read.whole.shape[1], device=read.whole.device)
        last = torch.where(read.whole, column, 0).amax(-1)
        return read.vectors[torch.arange(len(last), device=last.device), last]
    columns = read.whole if how == "whole" else read.point
    total = torch.where(columns[..., None], read.vectors, 0.0).sum(1)
    return total if how == "sum" else total / columns.sum(-1, keepdim=True)
