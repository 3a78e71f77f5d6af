"""PixelCNN and Gated PixelCNN (van den Oord et al. 2016).

PixelCNN is a stack of masked convolutions with residual blocks. It has a blind spot: a kernel reads to the right of the pixel
in the rows above, but each layer climbs a row for every `kernel_size // 2` columns it goes to the right, and never reads to the
right in the row of the pixel. So pixels further to the right than above are not seen, with any number of layers.

Gated PixelCNN has a vertical stack for the rows above and a horizontal stack for the pixels to the left, which also reads the
vertical one; together they see every pixel before, without a blind spot. Each layer is tanh(a) sigmoid(b); the horizontal stack
is residual. A class adds a bias to the gates of both.
"""

import torch
from torch import nn

from esscher.heads.build import build_head
from esscher.networks.masked_convolution import ConvEvaluator, FeatureMap, FeatureMaps, MaskedConv2d
from esscher.networks.pixel_network import ClassBias, Label, PixelNetwork
from esscher.networks.pixelcnn_config import GatedPixelCnnConfig, PixelCnnConfig


class PixelCnnBlock(nn.Module):
    """A residual block, half as wide inside."""

    def __init__(self, config: PixelCnnConfig):
        super().__init__()
        width, groups, side = config.width * config.image[2], config.image[2], config.kernel_size // 2
        self.rate = config.dropout
        self.reduce_conv = MaskedConv2d(width, width // 2, mask_kind="upto", groups=groups)
        self.masked_conv = MaskedConv2d(width // 2, width // 2, side + 1, side, side, "upto", groups=groups)
        self.expand_conv = MaskedConv2d(width // 2, width, mask_kind="upto", groups=groups)
        self.label = ClassBias(config.classes, width // 2)

    def forward(self, evaluator: ConvEvaluator, x: FeatureMap, label: Label | None) -> FeatureMap:
        inner = self.label(evaluator.conv(self.masked_conv, evaluator.conv(self.reduce_conv, x.relu()).relu()), label)
        return x + evaluator.conv(self.expand_conv, evaluator.apply_dropout(inner.relu(), self.rate))


class PixelCnnNetwork(PixelNetwork):
    """PixelCNN."""

    config: PixelCnnConfig

    def __init__(self, config: PixelCnnConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        width, side = config.width * self.channels, config.first_kernel_size // 2
        self.first = MaskedConv2d(self.channels + 1, width, side + 1, side, side, "before", groups=self.channels)
        self.blocks = nn.ModuleList(PixelCnnBlock(config) for _ in range(config.layers))
        self.final_conv = MaskedConv2d(width, width, mask_kind="upto", groups=self.channels)
        self.head = build_head(config, vocab_size, config.width, None)

    def vertical(self, evaluator: ConvEvaluator, label: Label | None) -> FeatureMaps:
        return ()

    def horizontal(self, evaluator: ConvEvaluator, above: FeatureMaps, label: Label | None) -> FeatureMap:
        x = evaluator.image(self.first)
        for block in self.blocks:
            x = block(evaluator, x, label)
        return torch.relu(evaluator.conv(self.final_conv, x.relu()))


class GatedPixelCnnLayer(nn.Module):
    """A layer of both stacks; the `first` layer reads the images."""

    def __init__(self, config: GatedPixelCnnConfig, *, first: bool):
        super().__init__()
        channels, width = config.image[2], config.width * config.image[2]
        side, inputs = (config.first_kernel_size // 2, channels + 1) if first else (config.kernel_size // 2, width)
        self.first, self.channels, self.rate = first, channels, config.dropout
        self.vertical = MaskedConv2d(inputs, 2 * width, side + 1, side, side, "above" if first else "all")
        self.across = MaskedConv2d(2 * width, 2 * width)
        self.horizontal = MaskedConv2d(inputs, 2 * width, 1, side, 0, "before" if first else "upto", groups=channels)
        self.out_conv = MaskedConv2d(width, width, mask_kind="upto", groups=channels)
        self.labels = nn.ModuleList(ClassBias(config.classes, 2 * width) for _ in range(2))

    def above(self, evaluator: ConvEvaluator, x: FeatureMap | None, label: Label | None) -> tuple[FeatureMap, FeatureMap]:
        """The output of the vertical stack, and the gates it adds to the horizontal one."""
        gates = evaluator.image(self.vertical) if x is None else evaluator.conv(self.vertical, x)
        return self._gated(self.labels[0](gates, label)), evaluator.conv(self.across, gates)

    def left(self, evaluator: ConvEvaluator, x: FeatureMap | None, across: FeatureMap, label: Label | None) -> FeatureMap:
        """The output of the horizontal stack."""
        gates = (evaluator.image(self.horizontal) if x is None else evaluator.conv(self.horizontal, x)) + evaluator.here(across)
        residual = evaluator.conv(self.out_conv, evaluator.apply_dropout(self._gated(self.labels[1](gates, label)), self.rate))
        return residual if x is None else x + residual

    def _gated(self, gates: FeatureMap) -> FeatureMap:
        """Half as many features: in each channel, tanh of the first half times sigmoid of the second."""
        value, gate = gates.view(*gates.shape[:3], self.channels, 2, gates.shape[3] // (2 * self.channels)).unbind(4)
        return (value.tanh() * gate.sigmoid()).flatten(3)


class GatedPixelCnnNetwork(PixelNetwork):
    """Gated PixelCNN."""

    config: GatedPixelCnnConfig

    def __init__(self, config: GatedPixelCnnConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        width = config.width * self.channels
        self.layers = nn.ModuleList(GatedPixelCnnLayer(config, first=not number) for number in range(config.layers + 1))
        self.final_conv = MaskedConv2d(width, width, mask_kind="upto", groups=self.channels)
        self.head = build_head(config, vocab_size, config.width, None)

    def vertical(self, evaluator: ConvEvaluator, label: Label | None) -> FeatureMaps:
        x, every_across = None, []
        for layer in self.layers:
            x, across = layer.above(evaluator, x, label)  # type: ignore[operator]
            every_across.append(across)
        return tuple(every_across)

    def horizontal(self, evaluator: ConvEvaluator, above: FeatureMaps, label: Label | None) -> FeatureMap:
        x: FeatureMap | None = None
        for layer, across in zip(self.layers, above, strict=True):
            x = layer.left(evaluator, x, across, label)  # type: ignore[operator]
        assert x is not None
        return torch.relu(evaluator.conv(self.final_conv, x.relu()))
