"""PixelCNN++ (Salimans et al. 2017): two streams of gated residual blocks, of the rows above and of all pixels before, that go
down to coarser scales and up again with a short cut from each block to its mirror; a mixture of discretised logistics.

The channels of a pixel share one mixture: a logistic of green moves with the red value, one of blue with both, by coefficients
in (-1, 1). As distributions of one channel after the other, the shares of a channel's logistics are those of the pixel after
the values before it. Weights are normed; `settle` sets them by images (`esscher.networks.pixel_windows.Settling`).

Where the published network enlarges the stream of rows by a convolution of 2 x 3, each place here becomes four in both streams.
Letters as in `esscher.networks.pixel_network`, and K logistics.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import elu, linear

from esscher.heads.logistics import LogisticsHead, log_bins
from esscher.networks.pixel_config import PixelCnnPlusPlusConfig
from esscher.networks.pixel_network import Label, LabelBias, PixelNetwork
from esscher.networks.pixel_windows import Look, Map, Maps, Settling, Window
from esscher.space import Sequences


def both_signs(x: Map) -> Map:
    """The features and their negatives, each through an exponential linear unit."""
    return elu(torch.cat([x, -x], -1))


class Residual(nn.Module):
    """A gated residual block; `more` times as many features come in from elsewhere."""

    def __init__(self, config: PixelCnnPlusPlusConfig, right: int, more: int):
        super().__init__()
        width = config.width
        self.rate = config.dropout
        self.enter = Window(2 * width, width, 2, 1, right, normed=True)
        self.more = Window(2 * more * width, width, normed=True) if more else None
        self.leave = Window(2 * width, 2 * width, 2, 1, right, normed=True, scale=0.1)
        self.label = LabelBias(config.classes, 2 * width)

    def forward(self, look: Look, x: Map, label: Label | None, *more: Map) -> Map:
        inner = look.conv(self.enter, both_signs(x))
        if self.more is not None:
            inner = inner + look.conv(self.more, both_signs(torch.cat(more, -1)))
        show, gate = self.label(look.conv(self.leave, look.dropped(both_signs(inner), self.rate)), label).chunk(2, -1)
        return x + show * gate.sigmoid()


class Level(nn.Module):
    """The blocks of one stream at one scale; `right` columns after its own are seen, and `beside` streams feed it."""

    def __init__(self, config: PixelCnnPlusPlusConfig, right: int, beside: int, *, last: bool):
        super().__init__()
        width, layers = config.width, config.layers
        self.downward = nn.ModuleList(Residual(config, right, beside) for _ in range(layers))
        self.upward = nn.ModuleList(Residual(config, right, 1 + beside) for _ in range(layers if last else layers + 1))
        self.shrink = None if last else Window(width, width, 2, 1, right, normed=True)
        self.grow = None if last else Window(width, 4 * width, normed=True)


class PixelCnnPlusPlusNetwork(PixelNetwork):
    """Two streams over several scales, and a mixture of logistics."""

    masked = False
    config: PixelCnnPlusPlusConfig

    def __init__(self, config: PixelCnnPlusPlusConfig, vocab_size: int):
        super().__init__(config, vocab_size)
        inputs, width, channels = self.channels + 1, config.width, self.channels
        self.first_above = Window(inputs, width, 3, 1, 1, "above", normed=True)
        self.first = Window(inputs, width, 2, 1, 1, "before", groups=1, normed=True)
        lasts = [number + 1 == config.scales for number in range(config.scales)]
        self.rows = nn.ModuleList(Level(config, 1, 0, last=last) for last in lasts)
        self.pixels = nn.ModuleList(Level(config, 0, 1, last=last) for last in lasts)
        coefficients = channels * (channels - 1) // 2
        self.parts = [1, channels, channels, coefficients]
        self.last = Window(width, sum(self.parts) * config.mixtures, normed=True)
        self.head = LogisticsHead(vocab_size)

    @torch.no_grad()
    def settle(self, x: Sequences) -> None:
        """Set lengths and biases by some images, so that training begins with features of one size."""
        canvas, label = self._drawn(x, self.height)
        look = Settling(canvas, learning=False)
        look.conv(self.last, elu(self._seen(look, label)))

    def vertical(self, look: Look, label: Label | None) -> Maps:
        return self._rows_at(look, 0, look.image(self.first_above), label)

    def horizontal(self, look: Look, above: Maps, label: Label | None) -> Map:
        return self._pixels_at(look, 0, look.image(self.first), above, label)[0]

    def _rows_at(self, look: Look, scale: int, x: Map, label: Label | None) -> Maps:
        """Of the stream of rows: what each block of this scale gives, in order, then those of coarser scales."""
        level: Level = self.rows[scale]  # type: ignore[assignment]
        ways: list[Map] = [x]
        below: Maps = ()
        for block in level.downward:
            ways.append(block(look, ways[-1], label))
        given = ways[1:]
        if level.shrink is not None and level.grow is not None:
            below = look.coarser(level.shrink, ways[-1], lambda coarse, y: self._rows_at(coarse, scale + 1, y, label))
            x = look.finer(level.grow, below[self._blocks(scale + 1) - 1])
        else:
            x = ways.pop()
        for block in level.upward:
            x = block(look, x, label, ways.pop())
            given.append(x)
        return (*given, *below)

    def _pixels_at(self, look: Look, scale: int, x: Map, above: Maps, label: Label | None) -> Maps:
        """The stream of pixels at this scale and coarser ones, beside that of rows."""
        level: Level = self.pixels[scale]  # type: ignore[assignment]
        ways, blocks = [x], self._blocks(scale)
        beside = [look.here(one) for one in above[:blocks]]
        for block, other in zip(level.downward, beside, strict=False):
            ways.append(block(look, ways[-1], label, other))
        if level.shrink is not None and level.grow is not None:
            rest = above[blocks:]
            below = look.coarser(level.shrink, ways[-1], lambda coarse, y: self._pixels_at(coarse, scale + 1, y, rest, label))
            x = look.finer(level.grow, below[0])
        else:
            x = ways.pop()
        for block, other in zip(level.upward, beside[len(level.downward) :], strict=True):
            x = block(look, x, label, other, ways.pop())
        return (x,)

    def _blocks(self, scale: int) -> int:
        level = self.rows[scale]
        return len(level.downward) + len(level.upward)  # type: ignore[arg-type]

    def emitted(self, features: Map, values: Map) -> Float[Tensor, "B H W N D"]:
        kernel = self.last.kernel()[:, :, 0, 0]
        told = linear(elu(features), kernel, self.last.bias).view(*features.shape[:3], sum(self.parts), self.config.mixtures)
        share, means, scales, coefficients = torch.split(told, self.parts, -2)
        means = _moved(means, coefficients.tanh(), values)
        shares = [share[..., 0, :]]
        tokens = ((values + 1) / 2 * (self.vocab_size - 1)).round().long()
        for channel in range(self.channels - 1):
            found = log_bins(tokens[..., channel, None], means[..., channel, :], scales[..., channel, :], self.vocab_size)
            shares.append((shares[-1] + found).log_softmax(-1) + share[..., 0, :].logsumexp(-1, keepdim=True))
        return torch.cat([torch.stack(shares, -2), means, scales], -1)

    def _fitting(self, rows: int) -> int:
        side = self.config.coarsest
        return math.ceil(rows / side) * side


def _moved(means: Tensor, coefficients: Tensor, values: Map) -> Tensor:
    """The means of each channel's logistics after the values of the channels before."""
    found: list[Tensor] = []
    for channel in range(means.shape[-2]):
        first = channel * (channel - 1) // 2
        moved = means[..., channel, :]
        for earlier in range(channel):
            moved = moved + coefficients[..., first + earlier, :] * values[..., earlier, None]
        found.append(moved)
    return torch.stack(found, -2)
