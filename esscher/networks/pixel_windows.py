"""Convolutions over what stands before a pixel, written once for whole images and for the current row alone.

A `Window` holds the weights of one convolution over some rows, the last of which is the pixel's own, and masks what must not
be seen. A network is a function of a `Look`: `Whole` reads all of many images in parallel, and learns; a `Strip` computes a
pixel, or a whole row at once, from the last rows of what each window read before, which it keeps and writes over. Both give
the same numbers: a network that is written for one steps by the other.

    all       the whole window
    above     all but the last row
    before    all that comes before the pixel in raster order, and of its own channels those before
    upto      the same, and the channel itself: for layers whose input has not seen it either

Letters beside those of `esscher.space`: H rows and W columns of a map, C its features, which come last; G groups of features,
one for each channel of the image; F features of an output.
"""

from collections.abc import Callable, Iterable
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, dropout, linear, pad

Sees = Literal["all", "above", "before", "upto"]
Map = Float[Tensor, "B _ _ _"]
"""Rows, columns and features of each image: B H W C."""
Maps = tuple[Map, ...]


class Window(nn.Module):
    """The weights of a convolution over `rows` rows, from `left` columns before the pixel to `right` after it.

    With `normed` each output has a length of its own beside a direction (weight norm), and `scale` is how large it is to begin
    with when data set it.
    """

    mask: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        rows: int = 1,
        left: int = 0,
        right: int = 0,
        sees: Sees = "all",
        *,
        groups: int = 1,
        normed: bool = False,
        scale: float = 1.0,
    ):
        super().__init__()
        self.rows, self.left, self.right, self.scale = rows, left, right, scale
        self.columns = left + 1 + right
        self.single = rows == self.columns == 1  # reads the pixel alone
        self.register_buffer("mask", mask_of(inputs, outputs, rows, left, right, sees, groups), persistent=False)
        bound = (self.mask.sum() / outputs).clamp(min=1.0).rsqrt()  # by what is seen of the inputs
        self.weight = nn.Parameter(bound * torch.empty_like(self.mask).uniform_(-1, 1))
        self.bias = nn.Parameter(bound * torch.empty(outputs).uniform_(-1, 1))
        self.length = nn.Parameter((self.weight * self.mask).detach().flatten(1).norm(dim=1)) if normed else None

    def kernel(self) -> Float[Tensor, "F C R K"]:
        """The weights in force."""
        weight = self.weight * self.mask
        if self.length is None:
            return weight
        norm = weight.flatten(1).norm(dim=1).clamp(min=torch.finfo(weight.dtype).tiny)
        return weight * (self.length / norm)[:, None, None, None]


def mask_of(
    inputs: int, outputs: int, rows: int, left: int, right: int, sees: Sees, groups: int
) -> Float[Tensor, "{outputs} {inputs} {rows} K"]:
    """1 where a weight may be, 0 elsewhere; features belong to groups in equal blocks, one more to the first group."""
    mask = torch.ones(outputs, inputs, rows, left + 1 + right)
    if sees == "above":
        mask[:, :, -1] = 0
    elif sees in ("before", "upto"):
        mask[:, :, -1, left + 1 :] = 0
        own, other = (torch.arange(count) * groups // count for count in (outputs, inputs))
        seen = other < own[:, None] if sees == "before" else other <= own[:, None]
        mask[:, :, -1, left] = seen.to(mask.dtype)
    return mask


@runtime_checkable
class Look(Protocol):
    """How a network sees images."""

    def image(self, window: Window) -> Map:
        """A convolution of the images themselves."""
        ...

    def conv(self, window: Window, x: Map) -> Map:
        """A convolution of a map, of its size."""
        ...

    def coarser(self, window: Window, x: Map, deeper: "Callable[[Look, Map], Maps]") -> Maps:
        """What `deeper` makes of every second place of a convolution in both directions."""
        ...

    def finer(self, window: Window, x: Map) -> Map:
        """The map of twice the size, by four outputs for each place."""
        ...

    def here(self, above: Map) -> Map:
        """The places looked at, of a map of whole rows."""
        ...

    def dropped(self, x: Map, rate: float) -> Map:
        """Some features dropped, where it learns."""
        ...


class Whole:
    """All places of whole images at once; `canvas` are the images. Features are dropped while `learning`."""

    def __init__(self, canvas: Map, *, learning: bool):
        self.canvas, self.learning = canvas, learning

    def image(self, window: Window) -> Map:
        return self.conv(window, self.canvas)

    def conv(self, window: Window, x: Map) -> Map:
        return self._conv(window, x, 1)

    def coarser(self, window: Window, x: Map, deeper: Callable[[Look, Map], Maps]) -> Maps:
        return deeper(self, self._conv(window, x, 2))

    def finer(self, window: Window, x: Map) -> Map:
        rows, height, width, _ = x.shape
        four = self.conv(window, x)
        fine = four.view(rows, height, width, 2, 2, four.shape[3] // 4)
        return fine.transpose(2, 3).reshape(rows, 2 * height, 2 * width, fine.shape[5])

    def here(self, above: Map) -> Map:
        return above

    def dropped(self, x: Map, rate: float) -> Map:
        return dropout(x, rate, self.learning)

    def _conv(self, window: Window, x: Map, stride: int) -> Map:
        if window.single:
            return linear(x, window.kernel()[:, :, 0, 0], window.bias)
        wide = pad(x, (0, 0, window.left, window.right, window.rows - 1, 0))
        return conv2d(wide.permute(0, 3, 1, 2), window.kernel(), window.bias, stride).permute(0, 2, 3, 1)


class Settling(Whole):
    """A look that sets the lengths and biases of normed windows so that on these images every output has mean 0 and its
    scale for a standard deviation (Salimans and Kingma 2016)."""

    @torch.no_grad()
    def _conv(self, window: Window, x: Map, stride: int) -> Map:
        found = super()._conv(window, x, stride)
        if window.length is None:
            return found
        flat = found.flatten(0, 2)
        mean, factor = flat.mean(0), window.scale / flat.std(0).clamp(min=1e-10)
        window.length.mul_(factor)
        window.bias.sub_(mean).mul_(factor)
        return (found - mean) * factor


class Kept:
    """What steps keep of their rows: the images, the last rows that each window read, and what was made at other places.

    `kernels` are the weights as a step wants them, which belong to the network as it was: a weight in rows by order of window
    row, column and feature, and a bias. Images stand on the canvas with `margin` rows above and columns beside them.
    """

    def __init__(self, canvas: Map, kernels: dict[Window, tuple[Tensor, Tensor]], margin: int):
        self.canvas, self.kernels, self.margin = canvas, kernels, margin
        self.read: dict[Window, Map] = {}
        self.made: dict[Window, Maps] = {}

    def select(self, index: Tensor) -> "Kept":
        """The chosen rows, copied."""
        chosen = Kept(self.canvas.index_select(0, index), self.kernels, self.margin)
        chosen.read = {window: rows.index_select(0, index) for window, rows in self.read.items()}
        chosen.made = {window: tuple(one.index_select(0, index) for one in maps) for window, maps in self.made.items()}
        return chosen


def margin_of(windows: Iterable[Window]) -> int:
    """Rows above and columns beside an image that windows on it may read."""
    return max(max(one.rows - 1, one.left, one.right) for one in windows)


def kernels_of(network: nn.Module) -> dict[Window, tuple[Tensor, Tensor]]:
    """The weights of all windows of a network, for steps."""
    windows = [one for one in network.modules() if isinstance(one, Window)]
    return {one: (one.kernel().permute(2, 3, 1, 0).flatten(0, 2).contiguous(), one.bias) for one in windows}


class Strip:
    """`count` columns of one row, from column `first` on: a pixel, or a whole row. `width` are the columns of the map.

    `begins` where it is the first look at the row, which moves all that was read up by a row.
    """

    def __init__(self, kept: Kept, row: int, first: int, count: int, width: int, *, begins: bool):
        self.kept, self.row, self.first, self.count, self.width, self.begins = kept, row, first, count, width, begins

    def image(self, window: Window) -> Map:
        margin = self.kept.margin
        top, left = margin + self.row - window.rows + 1, margin + self.first - window.left
        return self._product(self.kept.canvas, window, top, left, 1)

    def conv(self, window: Window, x: Map) -> Map:
        if window.single:
            weight, bias = self.kept.kernels[window]
            rows, _, count, features = x.shape
            return torch.addmm(bias, x.reshape(rows * count, features), weight).view(rows, 1, count, len(bias))
        return self._product(self._write(window, x), window, 0, self.first, 1)

    def coarser(self, window: Window, x: Map, deeper: Callable[[Look, Map], Maps]) -> Maps:
        read = self._write(window, x)
        whole, place = self.count == self.width, self.first // 2
        if self.row % 2 == 0 and self.first % 2 == 0:
            count = self.count // 2 if whole else 1
            coarse = Strip(self.kept, self.row // 2, place, count, self.width // 2, begins=self.begins)
            found = deeper(coarse, self._product(read, window, 0, self.first, 2))
            self.kept.made[window] = found if whole else self._placed(window, place, found)
        made = self.kept.made[window]
        return made if whole else tuple(one[:, :, place : place + 1] for one in made)

    def finer(self, window: Window, x: Map) -> Map:
        weight, bias = self.kept.kernels[window]
        columns = slice(self.first % 2, self.first % 2 + 1) if self.count == 1 else slice(None)
        own, shift = (one.view(*one.shape[:-1], 2, 2, -1)[..., self.row % 2, columns, :] for one in (weight, bias))
        found = torch.addmm(shift.flatten(), x.flatten(0, 2), own.flatten(1))
        return found.view(len(x), 1, self.count, -1)

    def here(self, above: Map) -> Map:
        return above[:, :, self.first : self.first + self.count]

    def dropped(self, x: Map, rate: float) -> Map:
        return x

    def _placed(self, window: Window, place: int, found: Maps) -> Maps:
        """The coarser row with what was found at one place of it, which the next row reads again."""
        rows = self.kept.made.get(window)
        if rows is None:
            rows = tuple(one.new_zeros(len(one), 1, self.width // 2, one.shape[3]) for one in found)
        for row, one in zip(rows, found, strict=True):
            row[:, :, place] = one[:, :, 0]
        return rows

    def _write(self, window: Window, x: Map) -> Map:
        """Put the strip where the window reads it."""
        read = self.kept.read.get(window)
        if read is None:
            wide = window.left + self.width + window.right
            read = self.kept.read[window] = x.new_zeros(len(x), window.rows, wide, x.shape[3])
        elif self.begins and window.rows > 1:
            read[:, :-1] = read[:, 1:].clone()
        read.select(1, window.rows - 1).narrow(1, window.left + self.first, self.count).copy_(x.select(1, 0))
        return read

    def _product(self, read: Map, window: Window, top: int, left: int, stride: int) -> Map:
        """The convolution of what lies under the window at each place, its corner at (top, left) for the first of them."""
        weight, bias = self.kept.kernels[window]
        count, (rows, height, wide, features) = -(-self.count // stride), read.shape
        view = read.as_strided(
            (rows, count, window.rows, window.columns, features),
            (height * wide * features, stride * features, wide * features, features, 1),
            read.storage_offset() + (top * wide + left) * features,
        )
        return torch.addmm(bias, view.reshape(rows * count, -1), weight).view(rows, 1, count, len(bias))
