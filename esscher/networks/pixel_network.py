"""The base class of networks of images: tokens are pixel values in raster order, channels of a pixel in order.

A network defines the features of the rows above (`vertical`), of those and the pixels to the left (`horizontal`), and the
hidden vector of each channel (`channel_hidden`). A step evaluates `vertical` at the start of a row, and `horizontal` for one
pixel; rows of a batch at one pixel step together. Value v of V is read as 2 v / (V - 1) - 1, after a first feature that is 1
inside the image and 0 around it. With classes, a prompt begins with the number V + class. What it leaves out: reading a prompt
in parallel. Shape letters as in `esscher.networks.masked_convolution`, and N channels of the image.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from esscher.core.space import Sequences
from esscher.heads.head import LogitsFn, NetworkWithHead
from esscher.networks.masked_convolution import (
    ConvCache,
    ConvEvaluator,
    FeatureMap,
    FeatureMaps,
    FullImage,
    IncrementalRow,
    step_kernels,
)
from esscher.networks.pixelcnn_config import PixelConfig

Label = Int[Tensor, "B"]


@dataclass(frozen=True)
class PixelGroup:
    """Rows at one pixel: their indices, their cache, and how many values they have."""

    rows: Int[Tensor, "K"]
    cache: ConvCache
    label: Label | None
    position: int = 0
    above: FeatureMaps = ()
    features: FeatureMap | None = None

    def select(self, rows: Int[Tensor, "K"], index: Int[Tensor, "K"]) -> "PixelGroup":
        """A copy of the rows `index` of a group, with the new row numbers `rows`."""
        label = None if self.label is None else self.label[index]
        features = None if self.features is None else self.features.index_select(0, index)
        above = tuple(part.index_select(0, index) for part in self.above)
        return PixelGroup(rows, self.cache.select(index), label, self.position, above, features)


@dataclass(frozen=True)
class PixelState:
    """Groups of rows by their pixel, and the head."""

    groups: tuple[PixelGroup, ...]
    logits: LogitsFn

    def __len__(self) -> int:
        return sum(len(group.rows) for group in self.groups)


class PixelNetwork(NetworkWithHead, ABC):
    """Base class of networks of images; with `masked`, features depend on earlier channels of the pixel."""

    masked = True
    reads_bos = False  # nothing is before the first pixel

    def __init__(self, config: PixelConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.height, self.columns, self.channels = config.image

    @abstractmethod
    def vertical(self, evaluator: ConvEvaluator, label: Label | None) -> FeatureMaps:
        """Features of the rows above each pixel, if there are any."""

    @abstractmethod
    def horizontal(self, evaluator: ConvEvaluator, above: FeatureMaps, label: Label | None) -> FeatureMap:
        """The features of each pixel, from all pixels before it."""

    def channel_hidden(self, features: FeatureMap, values: FeatureMap) -> Float[Tensor, "B H W N D"]:
        """The hidden vector of each channel of pixels with these values."""
        return features.view(*features.shape[:3], self.channels, self.config.width)

    @property
    def max_positions(self) -> int:
        return self.height * self.columns * self.channels + self.prompt_length

    @property
    def prompt_length(self) -> int:
        """The number of symbols before the first pixel: 1 with classes, else 0."""
        return min(1, self.config.classes)

    @property
    def prompt_vocab_size(self) -> int:
        return self.vocab_size + self.config.classes

    def hidden(self, x: Sequences) -> Float[Tensor, "B T D"]:
        length = x.tokens.shape[1]
        rows = max(1, -(-(length - self.prompt_length) // (self.columns * self.channels)))
        canvas, label = self._canvas_and_label(x, self._padded_height(rows))
        features = self._features(FullImage(canvas, training=self.training), label)
        hidden = self.channel_hidden(features, canvas[..., 1:]).flatten(1, 3)
        return pad(hidden, (0, 0, self.prompt_length, 0))[:, :length]

    def encode(self, x: Sequences) -> Float[Tensor, "B U D"]:
        """Bidirectional vectors: the sum of features read from the first and from the last pixel on."""
        canvas, label = self._canvas_and_label(x, self.height)
        forward, backward = (
            self._features(FullImage(images, training=self.training), label) for images in (canvas, canvas.flip(1, 2))
        )
        both = forward + backward.flip(1, 2)
        both = both.view(*canvas.shape[:3], both.shape[3] // self.config.width, self.config.width)
        each = both.expand(-1, -1, -1, self.channels, -1).flatten(1, 3)
        return pad(each, (0, 0, self.prompt_length + 1, 0))[:, : x.tokens.shape[1] + 1]

    def interpolated_log_probs(self, pixel_values: Float[Tensor, "B H W N"]) -> Float[Tensor, "B H W N"]:
        """Log-probabilities of real-valued images: of each value, given those before it, linearly interpolated between its two
        neighbouring integers. Differentiable in the values; for networks without classes."""
        values = pixel_values * (2 / max(1, self.vocab_size - 1)) - 1
        features = self._features(FullImage(pad(values, (1, 0), value=1.0), training=False), None)
        hidden = self.channel_hidden(features, values)
        below = pixel_values.detach().floor().clamp(0, max(0, self.vocab_size - 2)).long()
        above = (below + 1).clamp(max=self.vocab_size - 1)
        share = pixel_values - below
        return (1 - share) * self.log_probs(hidden, below) + share * self.log_probs(hidden, above)

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], PixelState]:
        label, kernels = self._label(prompts), step_kernels(self)
        margin, groups = max(max(conv.rows - 1, conv.left, conv.right) for conv in kernels), []
        for length in sorted(set(prompts.start.tolist())):
            rows = (prompts.start == length).nonzero()[:, 0]
            shape = (len(rows), self.height + margin, self.columns + 2 * margin, self.channels + 1)
            cache = ConvCache(self._like.new_zeros(shape), kernels, margin)
            cache.canvas[:, margin:, margin : margin + self.columns, 0] = 1  # inside the image
            group = self._compute_features(PixelGroup(rows, cache, None if label is None else label[rows]))
            for column in range(self.prompt_length, length):
                group = self._compute_features(self._write_value(group, prompts.tokens[rows, column]))
            groups.append(group)
        return self._next_logits(state := PixelState(tuple(groups), self.head.logits_fn(max_new_tokens))), state

    def advance(self, state: PixelState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], PixelState]:
        groups = tuple(self._compute_features(self._write_value(group, token[group.rows])) for group in state.groups)
        return self._next_logits(state := replace(state, groups=groups)), state

    def select(self, state: PixelState, index: Int[Tensor, "K"]) -> PixelState:
        groups = []
        for group in state.groups:
            number_in_group = index.new_full((len(state),), -1)
            number_in_group[group.rows] = torch.arange(len(group.rows), device=index.device)
            within = number_in_group[index]
            rows = (within >= 0).nonzero()[:, 0]
            if len(rows):
                groups.append(group.select(rows, within[rows]))
        return replace(state, groups=tuple(groups))

    def _features(self, evaluator: ConvEvaluator, label: Label | None) -> FeatureMap:
        return self.horizontal(evaluator, self.vertical(evaluator, label), label)

    def _padded_height(self, rows: int) -> int:
        """The number of rows of a pass that needs `rows` rows."""
        return rows

    def _next_logits(self, state: PixelState) -> Float[Tensor, "B V"]:
        """The logits of the next value of each row; 0 for finished images."""
        logits = self._like.new_zeros(len(state), self.vocab_size)
        for group in state.groups:
            if group.features is not None:
                row, column = self._pixel(group)
                values = group.cache.canvas[:, row, column, 1:]
                hidden = self.channel_hidden(group.features, values[:, None, None])[:, 0, 0, group.position % self.channels]
                logits[group.rows] = state.logits(hidden).to(logits.dtype)
        return logits

    def _compute_features(self, group: PixelGroup) -> PixelGroup:
        """The group with the features of its pixel."""
        if group.position >= self.height * self.columns * self.channels:
            return replace(group, features=None)
        if group.position % self.channels and not self.masked:
            return group
        row, start = divmod(group.position, self.columns * self.channels)
        above = group.above
        if start == 0:
            whole = IncrementalRow(group.cache, row, 0, self.columns, self.columns, begins=True)
            above = self.vertical(whole, group.label)
        evaluator = IncrementalRow(group.cache, row, start // self.channels, 1, self.columns, begins=start == 0)
        return replace(group, above=above, features=self.horizontal(evaluator, above, group.label))

    def _write_value(self, group: PixelGroup, token: Int[Tensor, "K"]) -> PixelGroup:
        """The group with one more value."""
        row, column = self._pixel(group)
        group.cache.canvas[:, row, column, 1 + group.position % self.channels] = self._value(token)
        return replace(group, position=group.position + 1)

    def _pixel(self, group: PixelGroup) -> tuple[int, int]:
        """Row and column of the pixel of a group on the canvas."""
        row, column = divmod(group.position // self.channels, self.columns)
        return row + group.cache.margin, column + group.cache.margin

    def _canvas_and_label(self, x: Sequences, height: int) -> tuple[FeatureMap, Label | None]:
        """The first `height` rows of the images, 0 where a value is missing, and their classes."""
        label, size = self._label(x), height * self.columns * self.channels
        tokens = x.tokens[:, self.prompt_length : self.prompt_length + size]
        inside = torch.arange(self.prompt_length, self.prompt_length + tokens.shape[1], device=tokens.device) < x.stop[:, None]
        values = pad(torch.where(inside, self._value(tokens), 0.0), (0, size - tokens.shape[1]))
        return pad(values.view(len(x), height, self.columns, self.channels), (1, 0), value=1.0), label

    def _value(self, token: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return token.to(self._like.dtype) * (2 / max(1, self.vocab_size - 1)) - 1

    def _label(self, x: Sequences) -> Label | None:
        """The class of each row; refuses rows without one."""
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


class ClassBias(nn.Module):
    """A bias of the features for each class; the identity without classes."""

    def __init__(self, classes: int, width: int):
        super().__init__()
        self.table = nn.Embedding(classes, width) if classes else None
        if self.table is not None:
            nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, x: FeatureMap, label: Label | None) -> FeatureMap:
        return x if self.table is None else x + self.table(label)[:, None, None]
