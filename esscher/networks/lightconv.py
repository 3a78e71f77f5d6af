"""LightConv and DynamicConv (Wu et al. 2019) as token mixers: each head weighs the last positions by a kernel that sums to 1.

The kernel of LightConv is a parameter, that of DynamicConv is computed from the position itself. Positions before the first one
count as zeros and keep their weight.

Shape letters as in `esscher.networks.relative_attention`; J taps of the kernel, the last of which is the position itself (the
middle one if not causal).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import dropout, glu, pad, softmax

from esscher.networks.incremental_decoding import CachePosition, StepVectors, TokenMixerStep, Vectors
from esscher.networks.relative_attention import AttentionContext, SinusoidFn
from esscher.networks.transformer_config import TransformerXLConfig

MIN_CHUNK = 32  # positions of one product


class LightConv(nn.Module):
    """A gated linear unit, one kernel per head, and an output projection; `dynamic` kernels depend on the position."""

    def __init__(self, config: TransformerXLConfig, kernel_size: int, *, dynamic: bool):
        super().__init__()
        self.config, self.kernel_size, self.heads = config, kernel_size, config.heads
        self.glu_proj = nn.Linear(config.width, 2 * config.width)
        self.o_proj = nn.Linear(config.width, config.width)
        if dynamic:
            self.kernel_proj: nn.Linear | None = nn.Linear(config.width, config.heads * kernel_size, bias=False)
        else:
            self.kernel_proj, self.kernel = None, nn.Parameter(torch.empty(config.heads, kernel_size))

    def memory_length(self, *, training: bool) -> int | None:
        return self.kernel_size - 1

    def kv(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "1 H B T D"]:
        return glu(self.glu_proj(x)).view(*x.shape[:2], self.heads, -1).permute(2, 0, 1, 3)[None]

    def forward(self, x: Vectors, kv: Float[Tensor, "1 H B K D"], biases: Tensor, context: AttentionContext) -> Vectors:
        length, past = x.shape[1], kv.shape[3] - x.shape[1]
        value = kv[0] if context.inside is None else kv[0] * context.inside[:, :, None]
        kernel = self._kernels(kv[0, :, :, past:])
        kernel = dropout(kernel, self.config.attention_dropout, context.training)  # of normalized kernels, as published
        after = 0 if context.causal else self.kernel_size // 2
        mixed = banded_convolution(kernel, pad(value, (0, 0, self.kernel_size - 1 - after - past, after)), length)
        return self.o_proj(mixed.permute(1, 2, 0, 3).flatten(2))

    def step(self, slots: int, steps: int, biases: Tensor, sinusoids: SinusoidFn) -> TokenMixerStep:
        return self._step

    def _step(
        self, x: StepVectors, cache: Float[Tensor, "1 H B S D"], position: CachePosition, residual: StepVectors
    ) -> StepVectors:
        position.write_stacked(cache, self.kv(x[:, None])[:, :, :, 0])
        if position.slot is None:
            value = cache[0, :, :, max(0, position.filled - self.kernel_size) : position.filled]
        else:
            slots = position.slot[:, None] + torch.arange(1 - self.kernel_size, 1, device=x.device)
            index = slots.clamp(min=0)[None, :, :, None].expand(len(cache[0]), -1, -1, cache.shape[4])
            value = cache[0].gather(2, index).masked_fill((slots < 0)[None, :, :, None], 0.0)
        kernel = self._kernels(value[:, :, -1:])[..., self.kernel_size - value.shape[2] :]
        return residual + self.o_proj((kernel @ value)[:, :, 0].transpose(0, 1).flatten(1))

    def _kernels(self, value: Float[Tensor, "H B T D"]) -> Float[Tensor, "H B T J"]:
        """The kernel of each position."""
        rows, length = value.shape[1:3]
        if self.kernel_proj is None:
            return softmax(self.kernel, -1)[:, None, None].expand(-1, rows, length, -1)
        logits = self.kernel_proj(value.permute(1, 2, 0, 3).flatten(2))
        return softmax(logits.view(rows, length, self.heads, -1), -1).permute(2, 0, 1, 3)


def banded_convolution(
    kernel: Float[Tensor, "H B T J"], value: Float[Tensor, "H B X D"], length: int
) -> Float[Tensor, "H B T D"]:
    """Position t of the output is kernel t times values t to t + J - 1.

    The kernels of a chunk of positions form one banded matrix, so that a chunk is one product: linear in the length.
    """
    kernel_size = kernel.shape[3]
    chunk = min(max(kernel_size, MIN_CHUNK), max(1, length))
    chunks = -(-length // chunk)
    heads, rows = kernel.shape[:2]
    kernel = pad(kernel, (0, chunk, 0, chunks * chunk - length)).view(heads, rows, chunks, -1)
    band = kernel[..., : chunk * (chunk + kernel_size - 1)].view(heads, rows, chunks, chunk, -1)
    value = pad(value, (0, 0, 0, chunks * chunk - length)).unfold(2, chunk + kernel_size - 1, chunk).movedim(-1, -2)
    return (band @ value).flatten(2, 3)[:, :, :length]
