"""What networks do to their activations in training: dropout that stays over time, and a price of large and changing outputs.

Letters beside those of `esscher.space`: L positions of a segment, D width of a vector.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import dropout

from esscher.heads.head import Headed
from esscher.networks.opening import opened
from esscher.networks.recurrent_config import AwdLstmConfig, EnasConfig, TrellisNetConfig
from esscher.space import Sequences


class PenalisedReader(Headed):
    """What networks share whose outputs are penalised: rows and segments of streams are one `_pass`, which notes its price."""

    config: AwdLstmConfig | EnasConfig | TrellisNetConfig
    opening: int
    _penalty: Tensor | None = None

    def open(self, rows: int) -> tuple[Tensor, ...]:
        """The memory of so many streams of which nothing was read."""
        raise NotImplementedError

    def _pass(
        self, inputs: Int[Tensor, "B L"], memory: tuple[Tensor, ...], inside: Bool[Tensor, "B L"]
    ) -> tuple[Float[Tensor, "B L D"], tuple[Tensor, ...]]:
        """The vector after each input, and the memory after all; padding, which is not `inside`, is not penalised."""
        raise NotImplementedError

    def hidden(self, x: Sequences) -> Float[Tensor, "B T D"]:
        return self._pass(opened(x, self.opening)[:, :-1], self.open(len(x)), x.inside)[0]

    def read(self, inputs: Int[Tensor, "B L"], memory: tuple[Tensor, ...]) -> tuple[Float[Tensor, "B L D"], tuple[Tensor, ...]]:
        return self._pass(inputs, memory, torch.ones_like(inputs, dtype=torch.bool))

    def penalty(self) -> Float[Tensor, ""] | None:
        """What the last training pass costs beside its likelihood: large outputs and their changes."""
        found, self._penalty = self._penalty, None
        return found

    def _dropped(self, outputs: Float[Tensor, "B L D"], inside: Bool[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        """The outputs of a pass, in training with some dropped, and their price noted: `alpha` times the mean square of what is
        inside, as dropped, and `beta` times that of changes."""
        config, dropped = self.config, locked(outputs, self.config.dropout, self.training)
        if self.training and torch.is_grad_enabled() and (config.alpha or config.beta):
            change = _mean_square(outputs[:, 1:] - outputs[:, :-1], inside[:, 1:])
            self._penalty = _mean_square(dropped, inside) * config.alpha + change * config.beta
        return dropped

    def __getstate__(self) -> dict[str, Any]:
        """Without the penalty, which belongs to one pass of this very network."""
        return {**self.__dict__, "_penalty": None}


def locked(vectors: Float[Tensor, "B L D"], rate: float, training: bool) -> Float[Tensor, "B L D"]:
    """In training, the same of all positions of a row is dropped."""
    if not training or not rate:
        return vectors
    return vectors * dropout(vectors.new_ones(len(vectors), 1, vectors.shape[2]), rate)


def _mean_square(vectors: Float[Tensor, "B L D"], inside: Bool[Tensor, "B L"]) -> Float[Tensor, ""]:
    """Over what is inside; 0 where nothing is."""
    return vectors.square().mean(-1).mul(inside).sum() / inside.sum().clamp(min=1)
