"""What all networks of images share: pixel values in raster order as tokens, channels of a pixel in order.

A network says what it makes of the rows above (`vertical`), of those and the pixels to the left (`horizontal`), and how
features become a hidden vector for each channel (`emitted`). Everything else is here: a whole pass is both of whole images;
a step computes the rows above when a row begins, and one pixel (see `esscher.networks.pixel_windows`).

Rows whose prompts have different lengths stand at different pixels: those at one pixel step together. Levels v of L are read
as 2 v / (L - 1) - 1, after a first feature that is 1 inside the image and 0 around it. Where there are classes, a prompt begins
with `levels + class`. What it leaves out: reading a prompt in parallel; a step reads each of its pixels.

Letters as in `esscher.networks.pixel_windows`, and N channels of the image.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from esscher.heads.head import Headed, Logits
from esscher.networks.pixel_config import GatedPixelCnnConfig, PixelCnnConfig, PixelCnnPlusPlusConfig
from esscher.networks.pixel_windows import Kept, Look, Map, Maps, Strip, Whole, kernels_of, margin_of
from esscher.space import Sequences

PixelConfig = PixelCnnConfig | GatedPixelCnnConfig | PixelCnnPlusPlusConfig
Label = Int[Tensor, "B"]


@dataclass(frozen=True)
class Together:
    """Rows that stand at one pixel: which they are, what was kept of them, and how many values they have."""

    rows: Int[Tensor, "K"]
    kept: Kept
    label: Label | None
    place: int = 0
    above: Maps = ()
    features: Map | None = None


@dataclass(frozen=True)
class PixelState:
    """Rows by the pixel they stand at, and the head as it was."""

    parts: tuple[Together, ...]
    logits: Logits


class PixelNetwork(Headed):
    """A network of images; `masked` tells whether masks keep the channels of a pixel apart, so that each needs a pass."""

    masked = True
    reads_opening = False  # nothing stands before the first pixel

    def __init__(self, config: PixelConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.height, self.columns, self.channels = config.image

    def vertical(self, look: Look, label: Label | None) -> Maps:
        """What is made of the rows above each pixel, if anything."""
        raise NotImplementedError

    def horizontal(self, look: Look, above: Maps, label: Label | None) -> Map:
        """The features of each pixel, from all pixels before it."""
        raise NotImplementedError

    def emitted(self, features: Map, values: Map) -> Float[Tensor, "B H W N D"]:
        """The hidden vector of each channel of a pixel with these values."""
        return features.view(*features.shape[:3], self.channels, self.config.width)

    @property
    def max_positions(self) -> int:
        return self.height * self.columns * self.channels + self.given

    @property
    def given(self) -> int:
        """Symbols that stand before the first pixel: the class, if there are some."""
        return min(1, self.config.classes)

    def hidden(self, x: Sequences) -> Float[Tensor, "B T D"]:
        length = x.tokens.shape[1]
        rows = max(1, -(-(length - self.given) // (self.columns * self.channels)))
        canvas, label = self._drawn(x, self._fitting(rows))
        features = self._seen(Whole(canvas, learning=self.training), label)
        found = self.emitted(features, canvas[..., 1:]).flatten(1, 3)
        return pad(found, (0, 0, self.given, 0))[:, :length]

    def surveyed(self, x: Sequences) -> Float[Tensor, "B U D"]:
        """Features of each value when the image is read from its first pixel and from its last: their sum sees everything."""
        canvas, label = self._drawn(x, self.height)
        ways = [self._seen(Whole(one, learning=self.training), label) for one in (canvas, canvas.flip(1, 2))]
        both = ways[0] + ways[1].flip(1, 2)
        both = both.view(*canvas.shape[:3], both.shape[3] // self.config.width, self.config.width)
        each = both.expand(-1, -1, -1, self.channels, -1).flatten(1, 3)
        return pad(each, (0, 0, self.given + 1, 0))[:, : x.tokens.shape[1] + 1]

    def interpolated(self, levels: Float[Tensor, "B H W N"]) -> Float[Tensor, "B H W N"]:
        """The log-probability of each value of images whose levels are any numbers: between those of the two levels next to it,
        after the numbers before it. Differentiable by them; for networks without classes."""
        values = levels * (2 / max(1, self.vocab_size - 1)) - 1
        features = self._seen(Whole(pad(values, (1, 0), value=1.0), learning=False), None)
        hidden, below = self.emitted(features, values), levels.detach().floor().clamp(0, max(0, self.vocab_size - 2)).long()
        above = (below + 1).clamp(max=self.vocab_size - 1)
        share = levels - below
        return (1 - share) * self.score(hidden, below) + share * self.score(hidden, above)

    def begin(self, prompts: Sequences, room: int) -> tuple[Float[Tensor, "B V"], PixelState]:
        label, kernels = self._label(prompts), kernels_of(self)
        margin, parts = margin_of(kernels), []
        for length in sorted(set(prompts.start.tolist())):
            rows = (prompts.start == length).nonzero()[:, 0]
            kept = Kept(self._empty(len(rows), margin), kernels, margin)
            part = self._looked(Together(rows, kept, None if label is None else label[rows]))
            for column in range(self.given, length):
                part = self._looked(self._written(part, prompts.tokens[rows, column]))
            parts.append(part)
        return self._told(state := PixelState(tuple(parts), self.head.prepared(room))), state

    def advance(self, state: PixelState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], PixelState]:
        parts = tuple(self._looked(self._written(part, token[part.rows])) for part in state.parts)
        return self._told(state := replace(state, parts=parts)), state

    def select(self, state: PixelState, index: Int[Tensor, "K"]) -> PixelState:
        parts = []
        for part in state.parts:
            own = index.new_full((self._rows(state),), -1)
            own[part.rows] = torch.arange(len(part.rows), device=index.device)
            within = own[index]
            rows = (within >= 0).nonzero()[:, 0]
            if len(rows):
                parts.append(_chosen(part, rows, within[rows]))
        return replace(state, parts=tuple(parts))

    def _rows(self, state: PixelState) -> int:
        return sum(len(part.rows) for part in state.parts)

    def _seen(self, look: Look, label: Label | None) -> Map:
        return self.horizontal(look, self.vertical(look, label), label)

    def _fitting(self, rows: int) -> int:
        """How many rows a pass has that needs so many."""
        return rows

    def _told(self, state: PixelState) -> Float[Tensor, "B V"]:
        """The logits of the next value of each row; of a finished image they say nothing."""
        found = self._like.new_zeros(self._rows(state), self.vocab_size)
        for part in state.parts:
            if part.features is not None:
                pixel = self._pixel(part)
                values = part.kept.canvas[:, pixel[0], pixel[1], 1:]
                hidden = self.emitted(part.features, values[:, None, None])[:, 0, 0, part.place % self.channels]
                found[part.rows] = state.logits(hidden).to(found.dtype)
        return found

    def _looked(self, part: Together) -> Together:
        """The features of the pixel at which the rows stand."""
        if part.place >= self.height * self.columns * self.channels:
            return replace(part, features=None)
        if part.place % self.channels and not self.masked:
            return part
        place, channel = divmod(part.place, self.channels)
        row, column = divmod(place, self.columns)
        above = part.above
        if column == channel == 0:
            whole = Strip(part.kept, row, 0, self.columns, self.columns, begins=True)
            above = self.vertical(whole, part.label)
        look = Strip(part.kept, row, column, 1, self.columns, begins=column == channel == 0)
        return replace(part, above=above, features=self.horizontal(look, above, part.label))

    def _written(self, part: Together, token: Int[Tensor, "K"]) -> Together:
        """The rows with one value more."""
        row, column = self._pixel(part)
        part.kept.canvas[:, row, column, 1 + part.place % self.channels] = self._value(token)
        return replace(part, place=part.place + 1)

    def _pixel(self, part: Together) -> tuple[int, int]:
        """Where on the canvas the rows stand."""
        row, column = divmod(part.place // self.channels, self.columns)
        return row + part.kept.margin, column + part.kept.margin

    def _empty(self, rows: int, margin: int) -> Map:
        """Canvases for steps: nothing but the feature that is 1 inside the image."""
        shape = (rows, self.height + margin, self.columns + 2 * margin, self.channels + 1)
        canvas = self._like.new_zeros(shape)
        canvas[:, margin:, margin : margin + self.columns, 0] = 1
        return canvas

    def _drawn(self, x: Sequences, height: int) -> tuple[Map, Label | None]:
        """So many rows of the images, 0 where a value is not known, and their classes."""
        label, size = self._label(x), height * self.columns * self.channels
        tokens = x.tokens[:, self.given : self.given + size]
        inside = torch.arange(self.given, self.given + tokens.shape[1], device=tokens.device) < x.stop[:, None]
        values = pad(torch.where(inside, self._value(tokens), 0.0), (0, size - tokens.shape[1]))
        return pad(values.view(len(x), height, self.columns, self.channels), (1, 0), value=1.0), label

    def _value(self, token: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return token.to(self._like.dtype) * (2 / max(1, self.vocab_size - 1)) - 1

    def _label(self, x: Sequences) -> Label | None:
        """The class of each row; refuses one without."""
        if not self.config.classes:
            return None
        label = x.tokens[:, 0] - self.vocab_size if x.tokens.shape[1] else x.start - self.vocab_size - 1
        wrong = (label < 0) | (label >= self.config.classes) | (x.start < 1)
        if bool(wrong.any()):
            row, first = int(wrong.nonzero()[0, 0]), self.vocab_size
            raise ValueError(
                f"A prompt of this base begins with the class of the image, {first} to {first + self.config.classes - 1}, and "
                f"row {row} does not. Nothing was computed."
            )
        return label

    @property
    def _like(self) -> Tensor:
        """A parameter, for its dtype and device."""
        return next(self.parameters())


def _chosen(part: Together, rows: Int[Tensor, "K"], index: Int[Tensor, "K"]) -> Together:
    """The rows of a part by their number in it, under their new numbers."""
    label = None if part.label is None else part.label[index]
    features = None if part.features is None else part.features.index_select(0, index)
    above = tuple(one.index_select(0, index) for one in part.above)
    return Together(rows, part.kept.select(index), label, part.place, above, features)


class LabelBias(nn.Module):
    """A bias for each class, added to features; nothing where there are no classes."""

    def __init__(self, classes: int, width: int):
        super().__init__()
        self.table = nn.Embedding(classes, width) if classes else None
        if self.table is not None:
            nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, x: Map, label: Label | None) -> Map:
        return x if self.table is None else x + self.table(label)[:, None, None]
