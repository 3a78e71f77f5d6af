"""LightConv and DynamicConv (Wu et al. 2019) as mixers: each head weighs the last positions by a kernel that sums to 1.

The kernel of LightConv is learnt, that of DynamicConv made from the position itself: the terms of a relative score that see
places, and nothing of the content. Positions before the first one count as zeros and keep their weight.

Letters as in `esscher.networks.mixers`; J taps of the kernel, the last of which is the position itself (in an
encoder the middle).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, glu, pad, softmax

from esscher.networks.mixers import Places, Sight
from esscher.networks.stepping import MixerStep, Place
from esscher.networks.transformer_config import TransformerXLConfig

LEAST_CHUNK = 32  # positions whose kernels are applied in one product


class Convolution(nn.Module):
    """A gated input, one kernel for each head, and a mix of the heads; `dynamic` kernels are made from each position."""

    def __init__(self, config: TransformerXLConfig, taps: int, *, dynamic: bool):
        super().__init__()
        self.config, self.taps, self.heads = config, taps, config.heads
        self.enter = nn.Linear(config.width, 2 * config.width)
        self.mix = nn.Linear(config.width, config.width)
        if dynamic:
            self.predict: nn.Linear | None = nn.Linear(config.width, config.heads * taps, bias=False)
        else:
            self.predict, self.kernel = None, nn.Parameter(torch.empty(config.heads, taps))

    def keeps(self, *, learning: bool) -> int | None:
        return self.taps - 1

    def known(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "1 H B T D"]:
        return glu(self.enter(x)).view(*x.shape[:2], self.heads, -1).permute(2, 0, 1, 3)[None]

    def forward(
        self, x: Float[Tensor, "B T W"], known: Float[Tensor, "1 H B K D"], biases: Tensor, sight: Sight
    ) -> Float[Tensor, "B T W"]:
        length, past = x.shape[1], known.shape[3] - x.shape[1]
        value = known[0] if sight.inside is None else known[0] * sight.inside[:, :, None]
        kernel = self._kernels(known[0, :, :, past:])
        kernel = dropout(kernel, self.config.attention_dropout, sight.learning)  # of what is normalised already
        after = 0 if sight.causal else self.taps // 2
        seen = slide(kernel, pad(value, (0, 0, self.taps - 1 - after - past, after)), length)
        return self.mix(seen.permute(1, 2, 0, 3).flatten(2))

    def step(self, slots: int, steps: int, biases: Tensor, places: Places) -> MixerStep:
        return self._step

    def _step(
        self, x: Float[Tensor, "B W"], cache: Float[Tensor, "1 H B S D"], place: Place, onto: Float[Tensor, "B W"]
    ) -> Float[Tensor, "B W"]:
        place.write(cache, self.known(x[:, None])[:, :, :, 0])
        if place.slot is None:
            value = cache[0, :, :, max(0, place.filled - self.taps) : place.filled]
        else:
            value = _chosen(cache[0], place.slot[:, None] + torch.arange(1 - self.taps, 1, device=x.device))
        kernel = self._kernels(value[:, :, -1:])[..., self.taps - value.shape[2] :]
        return onto + self.mix((kernel @ value)[:, :, 0].transpose(0, 1).flatten(1))

    def _kernels(self, value: Float[Tensor, "H B T D"]) -> Float[Tensor, "H B T J"]:
        """The kernel of each position."""
        rows, length = value.shape[1:3]
        if self.predict is None:
            return softmax(self.kernel, -1)[:, None, None].expand(-1, rows, length, -1)
        logits = self.predict(value.permute(1, 2, 0, 3).flatten(2))
        return softmax(logits.view(rows, length, self.heads, -1), -1).permute(2, 0, 1, 3)


def slide(kernel: Float[Tensor, "H B T J"], value: Float[Tensor, "H B X D"], length: int) -> Float[Tensor, "H B T D"]:
    """Each position's kernel times the values from its own on, of which there are J - 1 more than positions.

    Kernels of neighbours become one matrix with a slanted band, so that a chunk is one product: linear in the length.
    """
    taps = kernel.shape[3]
    chunk = min(max(taps, LEAST_CHUNK), max(1, length))
    chunks = -(-length // chunk)
    heads, rows = kernel.shape[:2]
    kernel = pad(kernel, (0, chunk, 0, chunks * chunk - length)).view(heads, rows, chunks, -1)
    band = kernel[..., : chunk * (chunk + taps - 1)].view(heads, rows, chunks, chunk, -1)
    value = pad(value, (0, 0, 0, chunks * chunk - length)).unfold(2, chunk + taps - 1, chunk).movedim(-1, -2)
    return (band @ value).flatten(2, 3)[:, :, :length]


def _chosen(cache: Float[Tensor, "H B S D"], slots: Int[Tensor, "B J"]) -> Float[Tensor, "H B J D"]:
    """The values of each row's own slots; zeros for slots before the first."""
    index = slots.clamp(min=0)[None, :, :, None].expand(cache.shape[0], -1, -1, cache.shape[3])
    return cache.gather(2, index).masked_fill((slots < 0)[None, :, :, None], 0.0)
