"""Task heads on any encoder: scores of a sequence's class or value, of an answer within it, or of its relevance.

A head receives the encoder and the sequences and decides what is encoded: kernel pooling encodes prompt and point separately. A
frozen encoder is not trained and has no dropout. Heads compute in the dtype of their weights, under autocast too. Letters as in
`esscher.energies.encoders`; C scores, K kernels.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from esscher.core.space import Sequences
from esscher.energies.config import TaskHeadConfig, TaskPooling
from esscher.energies.encoders import Encoded, Encoder
from esscher.energies.network import last_prompt_tokens, pool_vectors
from esscher.heads.chunked_log_softmax import accumulation_dtype, no_autocast
from esscher.networks.transformer import INITIAL_STD

KERNEL_MEANS = (1.0, *(round(0.9 - 0.2 * step, 1) for step in range(10)))  # of cosine similarity; the first is for equal words
KERNEL_WIDTHS = (1e-3, *([0.1] * 10))
MIN_SOFT_COUNT, LOG_SCALE = 1e-10, 0.01  # as published

Encode = Callable[[Sequences], Encoded]


class TaskModel(nn.Module):
    """An encoder and a task head."""

    encoder: Any

    def __init__(self, encoder: Encoder, config: TaskHeadConfig):
        super().__init__()
        self.encoder, self.config = encoder, config
        self.head: SequenceHead | SpanHead | KernelPooling
        if config.kind == "kernels":
            self.head = KernelPooling()
        elif config.kind == "span":
            self.head = SpanHead(encoder.width, config.pooling, config.dropout)
        else:
            self.head = SequenceHead(encoder.width, config.outputs, config.pooling, config.dropout)
        if config.frozen:
            self.encoder.requires_grad_(False)

    def forward(self, x: Sequences) -> Tensor:
        scores = self.head(self._encode, x)
        return scores.to(accumulation_dtype(scores.dtype))

    def train(self, mode: bool = True) -> "TaskModel":
        super().train(mode)
        if self.config.frozen:
            self.encoder.eval()
        return self

    def _encode(self, x: Sequences) -> Encoded:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.frozen):
            encoded = self.encoder(x)
        return replace(encoded, vectors=encoded.vectors.to(self.head.score.weight.dtype))


class SequenceHead(nn.Module):
    """Scores of one pooled vector after a tanh layer (Yang et al. 2019: the vector of the summary symbol)."""

    def __init__(self, width: int, outputs: int, pooling: TaskPooling, dropout: float):
        super().__init__()
        self.pooling: TaskPooling = pooling
        self.dense, self.dropout, self.score = nn.Linear(width, width), nn.Dropout(dropout), _linear(width, outputs)

    def forward(self, encode: Encode, x: Sequences) -> Float[Tensor, "B C"]:
        return self.of(encode(x))

    def of(self, encoded: Encoded) -> Float[Tensor, "B C"]:
        pooled = pool_vectors(encoded, self.pooling).to(self.dense.weight.dtype)
        with no_autocast(pooled.device):
            return self.score(self.dropout(torch.tanh(self.dense(pooled))))


class SpanHead(nn.Module):
    """Scores of first and last token: column 0 for no answer, then the tokens of the prompt; -inf after its end."""

    def __init__(self, width: int, pooling: TaskPooling, dropout: float):
        super().__init__()
        self.none, self.dropout, self.score = SequenceHead(width, 2, pooling, dropout), nn.Dropout(dropout), _linear(width, 2)

    def forward(self, encode: Encode, x: Sequences) -> Float[Tensor, "B U 2"]:
        encoded = encode(x)
        column = torch.arange(int(x.start.max()) + 1, device=x.tokens.device)
        with no_autocast(column.device):
            scores = self.score(self.dropout(encoded.vectors[:, : len(column)]))
        scores = torch.where((column == 0)[None, :, None], self.none.of(encoded)[:, None], scores)
        return scores.masked_fill((column > x.start[:, None])[..., None], -torch.inf)


class KernelPooling(nn.Module):
    """Weighted sum of log soft counts of the point's words by similarity to the prompt's words (K-NRM, Xiong et al. 2017)."""

    kernel_means: Tensor
    kernel_widths: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel_means", torch.tensor(KERNEL_MEANS), persistent=False)
        self.register_buffer("kernel_widths", torch.tensor(KERNEL_WIDTHS), persistent=False)
        self.score = _linear(len(KERNEL_MEANS), 1)

    def forward(self, encode: Encode, x: Sequences) -> Float[Tensor, "B 1"]:
        query, document = encode(x.prompts()), encode(last_prompt_tokens(x, 0))
        with no_autocast(x.tokens.device):  # the similarity of equal words is 1 to three digits
            return torch.tanh(self.score(self.counts(query, document)))

    def counts(self, query: Encoded, document: Encoded) -> Float[Tensor, "B K"]:
        """The log soft counts of each row; the BOS column of a text is no word of it."""
        query_mask, document_mask = (encoded.whole[:, 1:] for encoded in (query, document))
        q, d = (normalize(encoded.vectors[:, 1:], dim=-1) for encoded in (query, document))
        similarity = (q @ d.transpose(1, 2))[..., None]
        soft = torch.exp(-((similarity - self.kernel_means) ** 2) / (2 * self.kernel_widths**2))
        count = torch.where(document_mask[:, None, :, None], soft, 0.0).sum(2)
        return torch.where(query_mask[..., None], count.clamp(min=MIN_SOFT_COUNT).log() * LOG_SCALE, 0.0).sum(1)


def layerwise_lr_decay(module: TaskModel, rate: float) -> dict[str, float]:
    """Factors of the learning rate by parameter prefix: 1 for the head and the encoder's last layer, `rate` times that of the
    layer above for each layer below, and once more for the parameters below all layers."""
    name, layers = max(_layer_stacks(module.encoder), key=lambda stack: len(stack[1]), default=("", ()))
    count = len(layers)
    factors = {f"encoder.{name}.{number}.": rate ** (count - 1 - number) for number in range(count)}
    return {"encoder.": rate**count, **factors}


def _layer_stacks(encoder: nn.Module) -> list[tuple[str, Sequence[nn.Module]]]:
    """The lists of layers by name: those that are not inside a layer themselves, and are no tables of embeddings."""
    lists = [(name, list(part)) for name, part in encoder.named_modules() if isinstance(part, nn.ModuleList)]
    outer = [(name, parts) for name, parts in lists if not any(name.startswith(f"{other}.") for other, _ in lists)]
    return [(name, parts) for name, parts in outer if not any(isinstance(part, nn.Embedding) for part in parts)]


def _linear(width: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(width, outputs)
    nn.init.normal_(layer.weight, std=INITIAL_STD)
    nn.init.zeros_(layer.bias)
    return layer
