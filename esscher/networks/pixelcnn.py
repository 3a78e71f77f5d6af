"""PixelCNN and Gated PixelCNN (van den Oord et al. 2016), and PixelCNN++ (Salimans et al. 2017).

PixelCNN is a stack of masked convolutions with residual blocks. It has a blind spot: each layer climbs a row for every
`kernel_size // 2` columns to the right, so no number of layers sees pixels that are further to the right than above.

Gated PixelCNN has a vertical stack for the rows above and a residual, horizontal stack for the pixels to the left, which also
reads the vertical one; together they see every pixel before. Each layer is tanh(a) sigmoid(b).

PixelCNN++ has the same two streams, of gated residual blocks over several scales, with skip connections on the way down and up.
The channels of a pixel share one mixture of discretized logistics: the mean of green depends linearly on the value of red, that
of blue on both, with coefficients in (-1, 1); the mixture weights of a channel are the posterior given the channels before.
Each position of a coarser scale becomes four; with `upsampling` 2x3, as published, those in the second column of the stream of
rows also read the position to their right.

A class adds a bias to the gates. Shape letters as in `esscher.networks.pixel_network`, and K logistics.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import elu, linear

from esscher.core.space import Sequences
from esscher.heads.build import build_head
from esscher.heads.mixture import DiscretizedLogisticHead, log_bin_probs
from esscher.networks.masked_convolution import ConvEvaluator, DataDependentInitPass, FeatureMap, FeatureMaps, MaskedConv2d
from esscher.networks.pixel_network import ClassBias, Label, PixelNetwork
from esscher.networks.pixelcnn_config import GatedPixelCnnConfig, PixelCnnConfig, PixelCnnPlusPlusConfig


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


def concat_elu(x: FeatureMap) -> FeatureMap:
    """elu of the features and their negatives."""
    return elu(torch.cat([x, -x], -1))


class GatedResidualBlock(nn.Module):
    """A gated residual block with `more` further inputs."""

    def __init__(self, config: PixelCnnPlusPlusConfig, right: int, more: int):
        super().__init__()
        width = config.width
        self.rate = config.dropout
        self.conv_in = MaskedConv2d(2 * width, width, 2, 1, right, weight_norm=True)
        self.more = MaskedConv2d(2 * more * width, width, weight_norm=True) if more else None
        self.conv_out = MaskedConv2d(2 * width, 2 * width, 2, 1, right, weight_norm=True, scale=0.1)
        self.label = ClassBias(config.classes, 2 * width)

    def forward(self, evaluator: ConvEvaluator, x: FeatureMap, label: Label | None, *more: FeatureMap) -> FeatureMap:
        inner = evaluator.conv(self.conv_in, concat_elu(x))
        if self.more is not None:
            inner = inner + evaluator.conv(self.more, concat_elu(torch.cat(more, -1)))
        gates = evaluator.conv(self.conv_out, evaluator.apply_dropout(concat_elu(inner), self.rate))
        value, gate = self.label(gates, label).chunk(2, -1)
        return x + value * gate.sigmoid()


class ScaleBlocks(nn.Module):
    """The blocks of one stream at one scale; kernels see `right` columns after their own, `beside` streams feed it."""

    def __init__(self, config: PixelCnnPlusPlusConfig, right: int, beside: int, *, last: bool):
        super().__init__()
        width, layers = config.width, config.layers
        self.downward = nn.ModuleList(GatedResidualBlock(config, right, beside) for _ in range(layers))
        self.upward = nn.ModuleList(
            GatedResidualBlock(config, right, 1 + beside) for _ in range(layers if last else layers + 1)
        )
        self.downsample = None if last else MaskedConv2d(width, width, 2, 1, right, weight_norm=True)
        beyond = right if config.upsampling == "2x3" else 0
        self.upsample = None if last else MaskedConv2d(width, 4 * width, 1, 0, beyond, "upsampling", weight_norm=True)
        self.count = len(self.downward) + len(self.upward)


class PixelCnnPlusPlusNetwork(PixelNetwork):
    """PixelCNN++."""

    masked = False
    config: PixelCnnPlusPlusConfig

    def __init__(self, config: PixelCnnPlusPlusConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        inputs, width, channels = self.channels + 1, config.width, self.channels
        self.first_above = MaskedConv2d(inputs, width, 3, 1, 1, "above", weight_norm=True)
        self.first = MaskedConv2d(inputs, width, 2, 1, 1, "before", groups=1, weight_norm=True)
        lasts = [number + 1 == config.scales for number in range(config.scales)]
        self.rows = nn.ModuleList(ScaleBlocks(config, 1, 0, last=last) for last in lasts)
        self.pixels = nn.ModuleList(ScaleBlocks(config, 0, 1, last=last) for last in lasts)
        coefficients = channels * (channels - 1) // 2
        self.parts = [1, channels, channels, coefficients]
        self.final_conv = MaskedConv2d(width, sum(self.parts) * config.mixtures, weight_norm=True)
        self.head = DiscretizedLogisticHead(vocab_size)

    @torch.no_grad()
    def data_dependent_init(self, x: Sequences) -> None:
        """Set norms and biases from images, so that training begins with features of unit scale."""
        canvas, label = self._canvas_and_label(x, self.height)
        evaluator = DataDependentInitPass(canvas, training=False)
        evaluator.conv(self.final_conv, elu(self._features(evaluator, label)))

    def vertical(self, evaluator: ConvEvaluator, label: Label | None) -> FeatureMaps:
        return self._stream(evaluator, list(self.rows), evaluator.image(self.first_above), (), label)

    def horizontal(self, evaluator: ConvEvaluator, above: FeatureMaps, label: Label | None) -> FeatureMap:
        return self._stream(evaluator, list(self.pixels), evaluator.image(self.first), above, label)[0]

    def _stream(
        self, evaluator: ConvEvaluator, scales: Sequence[nn.Module], x: FeatureMap, above: FeatureMaps, label: Label | None
    ) -> FeatureMaps:
        """The stream of rows: the outputs of all blocks of the first scale, in order, then those of coarser scales. Or the
        stream of pixels, which reads these as `above`: its last output."""
        blocks, *coarser = (cast(ScaleBlocks, scale) for scale in scales)
        below: FeatureMaps = ()
        beside: list[FeatureMaps] = [(evaluator.here(rows),) for rows in above[: blocks.count]] or [()] * blocks.count
        skips = [x]

        def deeper(coarse: ConvEvaluator, y: FeatureMap) -> FeatureMaps:
            return self._stream(coarse, coarser, y, above[blocks.count :], label)

        for block, rows in zip(blocks.downward, beside, strict=False):
            skips.append(block(evaluator, skips[-1], label, *rows))
        outputs = skips[1:]
        if blocks.downsample is not None and blocks.upsample is not None:
            below = evaluator.coarser(blocks.downsample, skips[-1], deeper)
            x = evaluator.finer(blocks.upsample, below[0 if above else coarser[0].count - 1])
        else:
            x = skips.pop()
        for block, rows in zip(blocks.upward, beside[len(blocks.downward) :], strict=True):
            x = block(evaluator, x, label, *rows, skips.pop())
            outputs.append(x)
        return (x,) if above else (*outputs, *below)

    def channel_hidden(self, features: FeatureMap, values: FeatureMap) -> Float[Tensor, "B H W N D"]:
        kernel = self.final_conv.kernel()[:, :, 0, 0]
        parameters = linear(elu(features), kernel, self.final_conv.bias)
        parameters = parameters.view(*features.shape[:3], sum(self.parts), self.config.mixtures)
        share, means, scales, coefficients = torch.split(parameters, self.parts, -2)
        coefficients, conditional = coefficients.tanh(), list[Tensor]()
        for channel in range(self.channels):
            mean, first = means[..., channel, :], channel * (channel - 1) // 2
            for earlier in range(channel):
                mean = mean + coefficients[..., first + earlier, :] * values[..., earlier, None]
            conditional.append(mean)
        means, shares = torch.stack(conditional, -2), [share[..., 0, :]]
        tokens = ((values + 1) / 2 * (self.vocab_size - 1)).round().long()
        for channel in range(self.channels - 1):
            log_bins = log_bin_probs(
                tokens[..., channel, None], means[..., channel, :], scales[..., channel, :], self.vocab_size
            )
            shares.append((shares[-1] + log_bins).log_softmax(-1) + share[..., 0, :].logsumexp(-1, keepdim=True))
        return torch.cat([torch.stack(shares, -2), means, scales], -1)

    def _padded_height(self, rows: int) -> int:
        side = self.config.downsampling_factor
        return math.ceil(rows / side) * side
