"""Gated PixelCNN (van den Oord et al. 2016): a vertical stack reads the rows above, a horizontal one what is to the left of the
pixel in its row and, by a product, the vertical stack; together they see every pixel before, so there is no blind spot.

Each layer is tanh(a) sigmoid(b); the horizontal stack is residual. A class adds a bias to the gates of both.
"""

import torch
from torch import nn

from esscher.networks.output import build_head
from esscher.networks.pixel_config import GatedPixelCnnConfig
from esscher.networks.pixel_network import Label, LabelBias, PixelNetwork
from esscher.networks.pixel_windows import Look, Map, Maps, Window


class Layer(nn.Module):
    """A layer of both stacks; the `first` one reads the images."""

    def __init__(self, config: GatedPixelCnnConfig, *, first: bool):
        super().__init__()
        channels, width = config.image[2], config.width * config.image[2]
        side, inputs = (config.first // 2, channels + 1) if first else (config.kernel // 2, width)
        self.first, self.channels, self.rate = first, channels, config.dropout
        self.vertical = Window(inputs, 2 * width, side + 1, side, side, "above" if first else "all")
        self.across = Window(2 * width, 2 * width)
        self.horizontal = Window(inputs, 2 * width, 1, side, 0, "before" if first else "upto", groups=channels)
        self.mix = Window(width, width, sees="upto", groups=channels)
        self.labels = nn.ModuleList(LabelBias(config.classes, 2 * width) for _ in range(2))

    def above(self, look: Look, x: Map | None, label: Label | None) -> tuple[Map, Map]:
        """The vertical stack after this layer, and what it tells the horizontal one."""
        gates = look.image(self.vertical) if x is None else look.conv(self.vertical, x)
        return self._gated(self.labels[0](gates, label)), look.conv(self.across, gates)

    def left(self, look: Look, x: Map | None, told: Map, label: Label | None) -> Map:
        """The horizontal stack after this layer."""
        gates = (look.image(self.horizontal) if x is None else look.conv(self.horizontal, x)) + look.here(told)
        found = look.conv(self.mix, look.dropped(self._gated(self.labels[1](gates, label)), self.rate))
        return found if x is None else x + found

    def _gated(self, gates: Map) -> Map:
        """Half as many features: of each channel, the first half of its own are shown as far as the second half say."""
        show, gate = gates.view(*gates.shape[:3], self.channels, 2, gates.shape[3] // (2 * self.channels)).unbind(4)
        return (show.tanh() * gate.sigmoid()).flatten(3)


class GatedPixelCnnNetwork(PixelNetwork):
    """Two stacks of gated convolutions."""

    config: GatedPixelCnnConfig

    def __init__(self, config: GatedPixelCnnConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        width = config.width * self.channels
        self.layers = nn.ModuleList(Layer(config, first=not number) for number in range(config.layers + 1))
        self.last = Window(width, width, sees="upto", groups=self.channels)
        self.head = build_head(config, vocab_size, config.width, None)

    def vertical(self, look: Look, label: Label | None) -> Maps:
        x, told = None, []
        for layer in self.layers:
            x, one = layer.above(look, x, label)  # type: ignore[operator]
            told.append(one)
        return tuple(told)

    def horizontal(self, look: Look, above: Maps, label: Label | None) -> Map:
        x: Map | None = None
        for layer, told in zip(self.layers, above, strict=True):
            x = layer.left(look, x, told, label)  # type: ignore[operator]
        assert x is not None
        return torch.relu(look.conv(self.last, x.relu()))
