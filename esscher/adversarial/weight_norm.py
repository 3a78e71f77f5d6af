"""Layers whose weights have a direction and a length for each output, and the pass over data that sets both biases and lengths.

    weight = length * direction / sqrt(|direction|^2 + 1e-6)

The lengths stay as data set them, unless they are said to learn (the released code of Dai et al. 2017b; all of them learn in
Salimans and Kingma 2016). `settle` is one pass after which every output of every such layer has mean 0 and a chosen deviation.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from esscher.randomness import Seeded

DEVIATION, LEAST = 0.05, 1e-6
Layer = nn.Linear | nn.Conv2d | nn.ConvTranspose2d


class Normed(nn.Module):
    """A linear layer or convolution with normed weights; on the data that settle it its outputs deviate by `spread`."""

    def __init__(self, layer: Layer, *, spread: float = 1.0, learns: bool = False):
        super().__init__()
        self.layer, self.spread = layer, spread
        self.axis = 1 if isinstance(layer, nn.ConvTranspose2d) else 0
        nn.init.normal_(layer.weight, std=DEVIATION)
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)
        self.length = nn.Parameter(torch.ones_like(layer.bias), requires_grad=learns)

    def weight(self) -> Tensor:
        """The weights in force."""
        direction = self.layer.weight
        others = [axis for axis in range(direction.ndim) if axis != self.axis]
        norm = (direction.square().sum(others, keepdim=True) + LEAST).sqrt()
        return direction * (self.length.view_as(norm) / norm)

    def forward(self, x: Tensor) -> Tensor:
        return functional_call(self.layer, {"weight": self.weight()}, (x,))

    @torch.no_grad()
    def settle(self, x: Tensor) -> None:
        """Set lengths and biases by what the layer makes of these inputs."""
        found = self.forward(x).transpose(0, 1).flatten(1)
        mean, factor = found.mean(1), self.spread / found.std(1).clamp(min=1e-10)
        self.length.mul_(factor)
        assert self.layer.bias is not None
        self.layer.bias.sub_(mean).mul_(factor)


@torch.no_grad()
def settle(network: nn.Module, x: Tensor, *, rng: Seeded) -> None:
    """Set every normed layer of a network, first to last, in one pass; noise and dropout act as in training."""

    def before(layer: nn.Module, given: tuple[Any, ...]) -> None:
        assert isinstance(layer, Normed)
        layer.settle(given[0])

    hooks = [layer.register_forward_pre_hook(before) for layer in network.modules() if isinstance(layer, Normed)]
    try:
        with rng.governs_torch():
            network.train()(x)
    finally:
        for hook in hooks:
            hook.remove()
