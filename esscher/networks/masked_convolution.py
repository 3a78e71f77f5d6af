"""Masked convolutions over the pixels before a pixel, for whole images and for single pixels.

A network is a function of a `ConvEvaluator`: `FullImage` evaluates all positions of many images, with gradients,
`IncrementalRow` one pixel or one row from a `ConvCache`, with the same numbers. Masks of a `MaskedConv2d`:

    all         no mask
    above       all but the last row, that of the pixel
    before      everything before the pixel in raster order, and the channels before its own
    upto        the same, and the channel itself: for layers whose input does not contain it either
    upsampling  of the 2 x 2 outputs that a position becomes, the left ones do not see the columns after it

Letters: H rows, W columns and C features (last) of a map; G groups of features, one per image channel; F output features.
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, dropout, linear, pad

MaskKind = Literal["all", "above", "before", "upto", "upsampling"]
FeatureMap = Float[Tensor, "B _ _ _"]
"""Features of images: B H W C."""
FeatureMaps = tuple[FeatureMap, ...]


class MaskedConv2d(nn.Module):
    """The weights of a convolution over `rows` rows, from `left` columns before the pixel to `right` after it. With
    `weight_norm` outputs have a norm (`length`), a direction, and the standard deviation `scale` after
    `DataDependentInitPass`."""

    mask: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        rows: int = 1,
        left: int = 0,
        right: int = 0,
        mask_kind: MaskKind = "all",
        *,
        groups: int = 1,
        weight_norm: bool = False,
        scale: float = 1.0,
    ):
        super().__init__()
        self.rows, self.left, self.right, self.scale = rows, left, right, scale
        self.columns = left + 1 + right
        self.single = rows == self.columns == 1  # a 1 x 1 convolution
        self.register_buffer("mask", convolution_mask(inputs, outputs, rows, left, right, mask_kind, groups), persistent=False)
        bound = (self.mask.sum() / outputs).clamp(min=1.0).rsqrt()  # the number of visible inputs
        self.weight = nn.Parameter(bound * torch.empty_like(self.mask).uniform_(-1, 1))
        self.bias = nn.Parameter(bound * torch.empty(outputs).uniform_(-1, 1))
        self.length = nn.Parameter((self.weight * self.mask).detach().flatten(1).norm(dim=1)) if weight_norm else None

    def kernel(self) -> Float[Tensor, "F C R K"]:
        """The masked and normalized weights."""
        weight = self.weight * self.mask
        if self.length is None:
            return weight
        norm = weight.flatten(1).norm(dim=1).clamp(min=torch.finfo(weight.dtype).tiny)
        return weight * (self.length / norm)[:, None, None, None]


def convolution_mask(
    inputs: int, outputs: int, rows: int, left: int, right: int, mask_kind: MaskKind, groups: int
) -> Float[Tensor, "{outputs} {inputs} {rows} K"]:
    """1 where a weight is allowed, 0 elsewhere; features belong to groups in equal blocks, an extra one to the first group."""
    mask = torch.ones(outputs, inputs, rows, left + 1 + right)
    if mask_kind == "above":
        mask[:, :, -1] = 0
    elif mask_kind == "upsampling":
        mask.view(2, 2, outputs // 4, *mask.shape[1:])[:, 0, ..., left + 1 :] = 0
    elif mask_kind in ("before", "upto"):
        mask[:, :, -1, left + 1 :] = 0
        output_group, input_group = (torch.arange(count) * groups // count for count in (outputs, inputs))
        visible = input_group < output_group[:, None] if mask_kind == "before" else input_group <= output_group[:, None]
        mask[:, :, -1, left] = visible.to(mask.dtype)
    return mask


class FullImage:
    """All positions of whole images; `canvas` are the images."""

    def __init__(self, canvas: FeatureMap, *, training: bool):
        self.canvas, self.training = canvas, training

    def image(self, window: MaskedConv2d) -> FeatureMap:
        """A convolution of the images."""
        return self.conv(window, self.canvas)

    def conv(self, window: MaskedConv2d, x: FeatureMap, stride: int = 1) -> FeatureMap:
        """A convolution of a feature map; with stride 1 the size stays."""
        if window.single:
            return linear(x, window.kernel()[:, :, 0, 0], window.bias)
        wide = pad(x, (0, 0, window.left, window.right, window.rows - 1, 0))
        return conv2d(wide.permute(0, 3, 1, 2), window.kernel(), window.bias, stride).permute(0, 2, 3, 1)

    def coarser(self, window: MaskedConv2d, x: FeatureMap, deeper: "CoarseFn") -> FeatureMaps:
        """`deeper` applied to a convolution of stride 2."""
        return deeper(self, self.conv(window, x, 2))

    def finer(self, window: MaskedConv2d, x: FeatureMap) -> FeatureMap:
        """A map of twice the size, from four outputs for each position, 2 x 2 in raster order. Windows that see columns after a
        position are for maps of whole rows."""
        rows, height, width, _ = x.shape
        four = self.conv(window, x)
        fine = four.view(rows, height, width, 2, 2, four.shape[3] // 4)
        return fine.transpose(2, 3).reshape(rows, 2 * height, 2 * width, fine.shape[5])

    def here(self, above: FeatureMap) -> FeatureMap:
        """The evaluated positions of a map of whole rows."""
        return above

    def apply_dropout(self, x: FeatureMap, rate: float) -> FeatureMap:
        """Dropout in training."""
        return dropout(x, rate, self.training)


class DataDependentInitPass(FullImage):
    """A pass that sets norms and biases of weight-normalized convolutions so that on these images every output has mean 0 and
    standard deviation `scale` (Salimans and Kingma 2016)."""

    @torch.no_grad()
    def conv(self, window: MaskedConv2d, x: FeatureMap, stride: int = 1) -> FeatureMap:
        output = super().conv(window, x, stride)
        if window.length is None:
            return output
        flat = output.flatten(0, 2)
        mean, factor = flat.mean(0), window.scale / flat.std(0).clamp(min=1e-10)
        window.length.mul_(factor)
        window.bias.sub_(mean).mul_(factor)
        return (output - mean) * factor


class ConvCache:
    """The images so far, the last rows that each convolution read (`read`), and the rows of coarser scales (`coarse_rows`).
    `kernels` are weight and bias of each convolution for steps: rows of the weight are ordered by row, column and feature of
    the kernel. On the canvas, `margin` rows and columns surround the images."""

    def __init__(self, canvas: FeatureMap, kernels: dict[MaskedConv2d, tuple[Tensor, Tensor]], margin: int):
        self.canvas, self.kernels, self.margin = canvas, kernels, margin
        self.read: dict[MaskedConv2d, FeatureMap] = {}
        self.coarse_rows: dict[MaskedConv2d, FeatureMaps] = {}

    def select(self, index: Tensor) -> "ConvCache":
        chosen = ConvCache(self.canvas.index_select(0, index), self.kernels, self.margin)
        chosen.read = {window: rows.index_select(0, index) for window, rows in self.read.items()}
        for window, maps in self.coarse_rows.items():
            chosen.coarse_rows[window] = tuple(row.index_select(0, index) for row in maps)
        return chosen


def step_kernels(network: nn.Module) -> dict[MaskedConv2d, tuple[Tensor, Tensor]]:
    """Weight and bias of all convolutions of a network, laid out for steps."""
    convolutions = [part for part in network.modules() if isinstance(part, MaskedConv2d)]
    return {conv: (conv.kernel().permute(2, 3, 1, 0).flatten(0, 2).contiguous(), conv.bias) for conv in convolutions}


class IncrementalRow:
    """`count` of the `width` columns of one row, from column `first` on; methods as in `FullImage`. With `begins` it is the
    first evaluation in this row, which shifts the cached rows up by one."""

    def __init__(self, cache: ConvCache, row: int, first: int, count: int, width: int, *, begins: bool):
        self.cache, self.row, self.first, self.count, self.width, self.begins = cache, row, first, count, width, begins

    def image(self, window: MaskedConv2d) -> FeatureMap:
        margin = self.cache.margin
        top, left = margin + self.row - window.rows + 1, margin + self.first - window.left
        return self._product(self.cache.canvas, window, top, left, 1)

    def conv(self, window: MaskedConv2d, x: FeatureMap) -> FeatureMap:
        if window.single:
            weight, bias = self.cache.kernels[window]
            rows, _, count, features = x.shape
            return torch.addmm(bias, x.reshape(rows * count, features), weight).view(rows, 1, count, len(bias))
        return self._product(self._write(window, x), window, 0, self.first, 1)

    def coarser(self, window: MaskedConv2d, x: FeatureMap, deeper: "CoarseFn") -> FeatureMaps:
        read = self._write(window, x)
        whole, column = self.count == self.width, self.first // 2
        if self.row % 2 == 0 and self.first % 2 == 0:
            count = self.count // 2 if whole else 1
            coarse = IncrementalRow(self.cache, self.row // 2, column, count, self.width // 2, begins=self.begins)
            maps = deeper(coarse, self._product(read, window, 0, self.first, 2))
            self.cache.coarse_rows[window] = maps if whole else self._write_coarse(window, column, maps)
        rows = self.cache.coarse_rows[window]
        return rows if whole else tuple(row[:, :, column : column + 1] for row in rows)

    def finer(self, window: MaskedConv2d, x: FeatureMap) -> FeatureMap:
        weight, bias = self.cache.kernels[window]
        x = torch.cat([x, pad(x, (0, 0, -1, 1))], -1) if window.right else x  # each position and the one to its right
        columns = slice(self.first % 2, self.first % 2 + 1) if self.count == 1 else slice(None)
        weight, bias = (part.view(*part.shape[:-1], 2, 2, -1)[..., self.row % 2, columns, :] for part in (weight, bias))
        return torch.addmm(bias.flatten(), x.flatten(0, 2), weight.flatten(1)).view(len(x), 1, self.count, -1)

    def here(self, above: FeatureMap) -> FeatureMap:
        return above[:, :, self.first : self.first + self.count]

    def apply_dropout(self, x: FeatureMap, rate: float) -> FeatureMap:
        return x

    def _write_coarse(self, window: MaskedConv2d, column: int, maps: FeatureMaps) -> FeatureMaps:
        """The coarser row with one column written, which the next fine row reads again."""
        rows = self.cache.coarse_rows.get(window)
        if rows is None:
            rows = tuple(new.new_zeros(len(new), 1, self.width // 2, new.shape[3]) for new in maps)
        for row, new in zip(rows, maps, strict=True):
            row[:, :, column] = new[:, :, 0]
        return rows

    def _write(self, window: MaskedConv2d, x: FeatureMap) -> FeatureMap:
        """The cached rows that a convolution reads, with these columns written to the last one."""
        read = self.cache.read.get(window)
        if read is None:
            wide = window.left + self.width + window.right
            read = self.cache.read[window] = x.new_zeros(len(x), window.rows, wide, x.shape[3])
        elif self.begins and window.rows > 1:
            read[:, :-1] = read[:, 1:].clone()
        read.select(1, window.rows - 1).narrow(1, window.left + self.first, self.count).copy_(x.select(1, 0))
        return read

    def _product(self, read: FeatureMap, window: MaskedConv2d, top: int, left: int, stride: int) -> FeatureMap:
        """The convolution at each position; the corner of the first window is at (top, left)."""
        weight, bias = self.cache.kernels[window]
        count, (rows, height, wide, features) = -(-self.count // stride), read.shape
        view = read.as_strided(
            (rows, count, window.rows, window.columns, features),
            (height * wide * features, stride * features, wide * features, features, 1),
            read.storage_offset() + (top * wide + left) * features,
        )
        return torch.addmm(bias, view.reshape(rows * count, -1), weight).view(rows, 1, count, len(bias))


ConvEvaluator = FullImage | IncrementalRow
CoarseFn = Callable[[ConvEvaluator, FeatureMap], FeatureMaps]
