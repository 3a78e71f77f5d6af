"""PixelCNN++ (Salimans et al. 2017): gated residual blocks over several scales, and a mixture of discretized logistics.

One stream reads the rows above, the other all earlier pixels; skip connections link blocks on the way down and up.

The channels of a pixel share one mixture: the mean of green depends linearly on the value of red, that of blue on both, with
coefficients in (-1, 1). As a distribution of one channel after the other, the mixture weights of a channel are the posterior
given the values of the channels before. Weights are normalized; `data_dependent_init` sets them from images.

Where the published network upsamples the stream of rows by a convolution of 2 x 3, each position here becomes four in both
streams. Shape letters as in `esscher.networks.pixel_network`, and K logistics.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import elu, linear

from esscher.core.space import Sequences
from esscher.heads.mixture import DiscretizedLogisticHead, log_bin_probs
from esscher.networks.masked_convolution import ConvEvaluator, DataDependentInitPass, FeatureMap, FeatureMaps, MaskedConv2d
from esscher.networks.pixel_network import ClassBias, Label, PixelNetwork
from esscher.networks.pixelcnn_config import PixelCnnPlusPlusConfig


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
        self.upsample = None if last else MaskedConv2d(width, 4 * width, weight_norm=True)


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
        return self._rows_at(evaluator, 0, evaluator.image(self.first_above), label)

    def horizontal(self, evaluator: ConvEvaluator, above: FeatureMaps, label: Label | None) -> FeatureMap:
        return self._pixels_at(evaluator, 0, evaluator.image(self.first), above, label)[0]

    def _rows_at(self, evaluator: ConvEvaluator, scale: int, x: FeatureMap, label: Label | None) -> FeatureMaps:
        """The stream of rows: the outputs of all blocks of this scale, in order, then those of coarser scales."""
        blocks: ScaleBlocks = self.rows[scale]  # type: ignore[assignment]
        skips: list[FeatureMap] = [x]
        below: FeatureMaps = ()
        for block in blocks.downward:
            skips.append(block(evaluator, skips[-1], label))
        outputs = skips[1:]
        if blocks.downsample is not None and blocks.upsample is not None:
            below = evaluator.coarser(
                blocks.downsample, skips[-1], lambda coarse, y: self._rows_at(coarse, scale + 1, y, label)
            )
            x = evaluator.finer(blocks.upsample, below[self._block_count(scale + 1) - 1])
        else:
            x = skips.pop()
        for block in blocks.upward:
            x = block(evaluator, x, label, skips.pop())
            outputs.append(x)
        return (*outputs, *below)

    def _pixels_at(
        self, evaluator: ConvEvaluator, scale: int, x: FeatureMap, above: FeatureMaps, label: Label | None
    ) -> FeatureMaps:
        """The stream of pixels at this scale and coarser ones, which reads the stream of rows."""
        blocks: ScaleBlocks = self.pixels[scale]  # type: ignore[assignment]
        skips, count = [x], self._block_count(scale)
        beside, rest = [evaluator.here(rows) for rows in above[:count]], above[count:]

        def deeper(coarse: ConvEvaluator, y: FeatureMap) -> FeatureMaps:
            return self._pixels_at(coarse, scale + 1, y, rest, label)

        for block, rows in zip(blocks.downward, beside, strict=False):
            skips.append(block(evaluator, skips[-1], label, rows))
        if blocks.downsample is not None and blocks.upsample is not None:
            x = evaluator.finer(blocks.upsample, evaluator.coarser(blocks.downsample, skips[-1], deeper)[0])
        else:
            x = skips.pop()
        for block, rows in zip(blocks.upward, beside[len(blocks.downward) :], strict=True):
            x = block(evaluator, x, label, rows, skips.pop())
        return (x,)

    def _block_count(self, scale: int) -> int:
        blocks: ScaleBlocks = self.rows[scale]  # type: ignore[assignment]
        return len(blocks.downward) + len(blocks.upward)

    def channel_hidden(self, features: FeatureMap, values: FeatureMap) -> Float[Tensor, "B H W N D"]:
        kernel = self.final_conv.kernel()[:, :, 0, 0]
        parameters = linear(elu(features), kernel, self.final_conv.bias)
        parameters = parameters.view(*features.shape[:3], sum(self.parts), self.config.mixtures)
        share, means, scales, coefficients = torch.split(parameters, self.parts, -2)
        means = _conditional_means(means, coefficients.tanh(), values)
        shares = [share[..., 0, :]]
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


def _conditional_means(means: Tensor, coefficients: Tensor, values: FeatureMap) -> Tensor:
    """The means of the logistics of each channel, given the values of the channels before."""
    conditional: list[Tensor] = []
    for channel in range(means.shape[-2]):
        first = channel * (channel - 1) // 2
        mean = means[..., channel, :]
        for earlier in range(channel):
            mean = mean + coefficients[..., first + earlier, :] * values[..., earlier, None]
        conditional.append(mean)
    return torch.stack(conditional, -2)
