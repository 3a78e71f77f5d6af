"""Regularization in training: dropout masks that are fixed over time, word dropout, and penalties of activations. Letters: L
positions of a segment, D width of a vector."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import dropout

from esscher.core.space import Sequences
from esscher.heads.build import build_embedding
from esscher.heads.head import NetworkWithHead
from esscher.networks.network import Memory, prepend_bos
from esscher.networks.recurrent_config import RegularizedConfig

SegmentOutput = tuple[Float[Tensor, "B L D"], Memory]
"""The vector after each input of a segment, and the memory after all."""


class PenalizedTraining(NetworkWithHead):
    """Base class of networks whose training passes store a penalty."""

    _penalty: Tensor | None = None

    def penalty(self) -> Float[Tensor, ""] | None:
        """The penalty of the last training pass, returned once; None if there is none."""
        penalty, self._penalty = self._penalty, None
        return penalty

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have no penalty: it belongs to one pass of this network."""
        return {**self.__dict__, "_penalty": None}


class ActivationRegularized(PenalizedTraining, ABC):
    """Base class of networks with penalized outputs; rows and segments of streams share one `_pass`."""

    config: RegularizedConfig

    def __init__(self, config: RegularizedConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size, self.bos = config, vocab_size, vocab_size
        self.embedding = build_embedding(config, vocab_size, config.input_width)

    @abstractmethod
    def init_memory(self, rows: int) -> Memory:
        """The memory at the start of `rows` streams."""

    @abstractmethod
    def _pass(self, inputs: Int[Tensor, "B L"], memory: Memory, inside: Bool[Tensor, "B L"]) -> SegmentOutput:
        """The vector after each input, and the memory after all; only positions `inside` are penalized."""

    def hidden(self, x: Sequences) -> Float[Tensor, "B T D"]:
        return self._read(prepend_bos(x, self.bos)[:, :-1], self.init_memory(len(x)), x.inside)[0]

    def read(self, inputs: Int[Tensor, "B L"], memory: Memory) -> SegmentOutput:
        return self._read(inputs, memory, torch.ones_like(inputs, dtype=torch.bool))

    def _read(self, inputs: Int[Tensor, "B L"], memory: Memory, inside: Bool[Tensor, "B L"]) -> SegmentOutput:
        self._penalty = None
        if inputs.numel() == 0:
            return self._like.new_zeros(*inputs.shape, self.config.width), memory
        return self._pass(inputs, memory, inside)

    def _regularize(self, outputs: Float[Tensor, "B L D"], inside: Bool[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        """Apply output dropout; in training, store the penalty: `alpha` times the mean square of the outputs after dropout plus
        `beta` times that of the changes of the outputs before dropout."""
        config, dropped = self.config, variational_dropout(outputs, self.config.dropout, self.training)
        if self.training and torch.is_grad_enabled() and (config.alpha or config.beta):
            change = _mean_square(outputs[:, 1:] - outputs[:, :-1], inside[:, 1:])
            self._penalty = _mean_square(dropped, inside) * config.alpha + change * config.beta
        return dropped


def variational_dropout(vectors: Float[Tensor, "B L D"], rate: float, training: bool) -> Float[Tensor, "B L D"]:
    """Dropout in training, with one mask for all positions of a row."""
    if not training or not rate:
        return vectors
    return vectors * dropout(vectors.new_ones(len(vectors), 1, vectors.shape[2]), rate)


def word_dropout(
    vectors: Float[Tensor, "*S D"], words: Int[Tensor, "*S"], count: int, rate: float, training: bool
) -> Float[Tensor, "*S D"]:
    """In training, zero the vectors of a random share of the `count` words, wherever they occur."""
    if not training or not rate:
        return vectors
    return vectors * dropout(vectors.new_ones(count, 1), rate)[words]


def _mean_square(vectors: Float[Tensor, "B L D"], inside: Bool[Tensor, "B L"]) -> Float[Tensor, ""]:
    """The mean square of the vectors `inside`; 0 if there are none."""
    return vectors.square().mean(-1).mul(inside).sum() / inside.sum().clamp(min=1)
