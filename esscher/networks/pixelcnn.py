"""PixelCNN (van den Oord et al. 2016): masked convolutions and residual blocks.

Its blind spot: a window reads to the right of the pixel in the rows above, but each layer climbs a row for every `kernel // 2`
columns it goes to the right, and features to the right in the pixel's own row are never read. So what lies further to the right
than it lies above, in steps of the window, is not seen, with any number of layers.
"""

import torch
from torch import nn

from esscher.networks.output import build_head
from esscher.networks.pixel_config import PixelCnnConfig
from esscher.networks.pixel_network import Label, LabelBias, PixelNetwork
from esscher.networks.pixel_windows import Look, Map, Maps, Window


class Block(nn.Module):
    """A residual block, half as wide inside."""

    def __init__(self, config: PixelCnnConfig):
        super().__init__()
        width, groups, side = config.width * config.image[2], config.image[2], config.kernel // 2
        self.rate = config.dropout
        self.narrow = Window(width, width // 2, sees="upto", groups=groups)
        self.middle = Window(width // 2, width // 2, side + 1, side, side, "upto", groups=groups)
        self.widen = Window(width // 2, width, sees="upto", groups=groups)
        self.label = LabelBias(config.classes, width // 2)

    def forward(self, look: Look, x: Map, label: Label | None) -> Map:
        inner = self.label(look.conv(self.middle, look.conv(self.narrow, x.relu()).relu()), label)
        return x + look.conv(self.widen, look.dropped(inner.relu(), self.rate))


class PixelCnnNetwork(PixelNetwork):
    """One stack of masked convolutions."""

    config: PixelCnnConfig

    def __init__(self, config: PixelCnnConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        width, side = config.width * self.channels, config.first // 2
        self.first = Window(self.channels + 1, width, side + 1, side, side, "before", groups=self.channels)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.last = Window(width, width, sees="upto", groups=self.channels)
        self.head = build_head(config, vocab_size, config.width, None)

    def vertical(self, look: Look, label: Label | None) -> Maps:
        return ()

    def horizontal(self, look: Look, above: Maps, label: Label | None) -> Map:
        x = look.image(self.first)
        for block in self.blocks:
            x = block(look, x, label)
        return torch.relu(look.conv(self.last, x.relu()))
