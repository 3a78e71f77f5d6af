"""Scores of what is said of a sequence, by a head on any reader: its class, a number, an answer within it, how well it ranks.

    SequenceHead     a vector of the whole (Yang et al. 2019: that of the summary symbol), a layer with tanh, scores
    SpanHead         scores of the first and of the last token of an answer within the prompt, and of there being none
    KernelPooling    how alike the words of prompt and point are, counted softly at several levels (K-NRM, Xiong et al. 2017)

A head is given the reader and the sequences, and decides what is read: kernel pooling reads prompt and point apart. A reader
that is frozen does not learn, and drops nothing. Letters as in `esscher.energies.readers`; C scores, Q columns of a prompt, D
of a point, K kernels.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from esscher.energies.labeller_config import LabellerConfig, Summary
from esscher.energies.network import pooled, windowed
from esscher.energies.readers import Read, Reader
from esscher.networks.blocks import INITIAL_STD
from esscher.space import Sequences

LEVELS = (1.0, *(round(0.9 - 0.2 * step, 1) for step in range(10)))  # of likeness, the first for equal words
WIDTHS = (1e-3, *([0.1] * 10))
LEAST, SCALE = 1e-10, 0.01  # of a soft count, and of its logarithm, as published

Reads = Callable[[Sequences], Read]


class Labeller(nn.Module):
    """A reader and a head."""

    reader: Any

    def __init__(self, reader: Reader, config: LabellerConfig):
        super().__init__()
        self.reader, self.config = reader, config
        self.head = _head(config, reader.width)
        if config.frozen:
            self.reader.requires_grad_(False)

    def forward(self, x: Sequences) -> Tensor:
        return self.head(self._read, x)

    def train(self, mode: bool = True) -> "Labeller":
        super().train(mode)
        if self.config.frozen:
            self.reader.eval()
        return self

    def _read(self, x: Sequences) -> Read:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.frozen):
            return self.reader(x)


class SequenceHead(nn.Module):
    """Scores of the whole sequence."""

    def __init__(self, width: int, outputs: int, pooling: Summary, dropout: float):
        super().__init__()
        self.pooling: Summary = pooling
        self.dense, self.dropout, self.score = nn.Linear(width, width), nn.Dropout(dropout), _linear(width, outputs)

    def forward(self, reads: Reads, x: Sequences) -> Float[Tensor, "B C"]:
        return self.of(reads(x))

    def of(self, read: Read) -> Float[Tensor, "B C"]:
        """The scores of what was read."""
        return self.score(self.dropout(torch.tanh(self.dense(pooled(read, self.pooling)))))


class SpanHead(nn.Module):
    """Scores of first and last token: column 0 for no answer, then those of the prompt; -inf after its end."""

    def __init__(self, width: int, pooling: Summary, dropout: float):
        super().__init__()
        self.none, self.dropout, self.score = SequenceHead(width, 2, pooling, dropout), nn.Dropout(dropout), _linear(width, 2)

    def forward(self, reads: Reads, x: Sequences) -> Float[Tensor, "B U 2"]:
        read = reads(x)
        columns = int(x.start.max()) + 1
        place = torch.arange(columns, device=x.tokens.device)
        scores = self.score(self.dropout(read.vectors[:, :columns]))
        scores = torch.where((place == 0)[None, :, None], self.none.of(read)[:, None], scores)
        return scores.masked_fill((place > x.start[:, None])[..., None], -torch.inf)


class KernelPooling(nn.Module):
    """One score: a weighed sum of logarithms of soft counts of the point's words at each level of likeness to a prompt's."""

    levels: Tensor
    widths: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("levels", torch.tensor(LEVELS), persistent=False)
        self.register_buffer("widths", torch.tensor(WIDTHS), persistent=False)
        self.score = _linear(len(LEVELS), 1)

    def forward(self, reads: Reads, x: Sequences) -> Float[Tensor, "B 1"]:
        prompts, points = x.prompts(), windowed(x, 0)
        return torch.tanh(self.score(self.counts(reads(prompts), reads(points))))

    def counts(self, query: Read, document: Read) -> Float[Tensor, "B K"]:
        """The features of each row; what stands before a text is no word of it."""
        asked, told = (read.whole[:, 1:] for read in (query, document))
        q, d = (normalize(read.vectors[:, 1:], dim=-1) for read in (query, document))
        alike = (q @ d.transpose(1, 2))[..., None]
        soft = torch.exp(-((alike - self.levels) ** 2) / (2 * self.widths**2))
        count = torch.where(told[:, None, :, None], soft, 0.0).sum(2)
        return torch.where(asked[..., None], count.clamp(min=LEAST).log() * SCALE, 0.0).sum(1)


def _head(config: LabellerConfig, width: int) -> SequenceHead | SpanHead | KernelPooling:
    if config.kind == "kernels":
        return KernelPooling()
    if config.kind == "span":
        return SpanHead(width, config.pooling, config.dropout)
    return SequenceHead(width, config.outputs, config.pooling, config.dropout)


def layer_shares(module: Labeller, rate: float) -> dict[str, float]:
    """Shares of the learning rate by the beginning of a weight's name: the head and the reader's last layer 1, each layer below
    it `rate` times that of the one above, and what is below all layers once more."""
    stacks = [(name, one) for name, one in module.reader.named_modules() if isinstance(one, nn.ModuleList)]
    name, layers = max(stacks, key=lambda one: len(one[1]), default=("", ()))
    count = len(layers)
    own = {f"reader.{name}.{number}.": rate ** (count - 1 - number) for number in range(count)}
    return {"reader.": rate**count, **own}


def _linear(width: int, outputs: int) -> nn.Linear:
    made = nn.Linear(width, outputs)
    nn.init.normal_(made.weight, std=INITIAL_STD)
    nn.init.zeros_(made.bias)
    return made
