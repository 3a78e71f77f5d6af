"""Images as points: where they come from, and the codec that turns pixel values into tokens and back.

A source is `digits` (1,797 handwritten digits of 8 x 8 pixels, in scikit-learn), a path, or a name on the Hugging Face hub:

    idx files, packed or not      a file, or a folder with those of MNIST by their usual names
    .npz                          arrays such as x_train, y_train, x_test, y_test, or images and labels
    .png                          sheets: each row of a sheet is an image, its pixels in raster order; all sheets of a folder
    a name on the hub             columns `image` or `img`, and `label`

Values are 0 to 255 here, whatever the source has. A source may hold test images of its own.
Letters: N images, H rows, W columns, C channels.
"""

import gzip
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space
from esscher.data.sources import hub_rows, refuse_absent, split_index

DIGITS = "digits"
CODEC = "codec.json"
Bytes = NDArray[np.uint8]
Binarization = Literal["threshold", "random"]
NAMES = {"x": ("images", "image", "x", "data"), "y": ("labels", "label", "y")}


@dataclass(frozen=True)
class ImageArray:
    """Images as N H W C values, and the class of each, if it is known."""

    values: Bytes
    labels: NDArray[np.int64] | None
    source: str

    def __len__(self) -> int:
        return len(self.values)

    def __str__(self) -> str:
        rows, columns, channels = self.values.shape[1:]
        return f"{self.source}: {len(self):,} images of {rows} x {columns} pixels, {channels} channel{'s' * (channels > 1)}"

    def rows(self, chosen: Any) -> "ImageArray":
        return replace(self, values=self.values[chosen], labels=None if self.labels is None else self.labels[chosen])

    def shrunk(self, side: int) -> "ImageArray":
        """Squares of this side as one pixel each, by their mean."""
        count, rows, columns, channels = self.values.shape
        if rows % side or columns % side:
            raise ValueError(f"{self.source}: {rows} x {columns} pixels are no squares of side {side}. Nothing was read.")
        squares = self.values.reshape(count, rows // side, side, columns // side, side, channels)
        return replace(self, values=squares.mean((2, 4)).round().astype(np.uint8))


@dataclass(frozen=True)
class ImageCodec:
    """How images become points, which a model's folder remembers: their size, the levels of a value, how it is binarised.

    Of `levels` each holds as many of the 256 values. With `binarised` there are two: "threshold" cuts in the middle; "random"
    draws each value once, with its brightness for the probability of white, from a seed that is always the same. With
    `classes` a prompt begins with the class, a symbol after the levels.
    """

    rows: int
    columns: int
    channels: int
    quantization_levels: int
    classes: int = 0
    binarize: Binarization | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.quantization_levels <= 256:
            raise ValueError(f"A value has 2 to 256 levels, not {self.quantization_levels}.")
        if self.binarize not in ("threshold", "random", None) or (self.binarize is not None and self.quantization_levels != 2):
            raise ValueError(
                f"Values are binarised by threshold or random, into 2 levels: {self.binarize}, {self.quantization_levels}."
            )

    @property
    def image(self) -> tuple[int, int, int]:
        return self.rows, self.columns, self.channels

    @property
    def space(self) -> Space:
        return Space(self.quantization_levels, self.rows * self.columns * self.channels)

    @property
    def vocab_size(self) -> int:
        return self.quantization_levels

    def encode(self, pictures: ImageArray) -> Sequences:
        """Each image as one point, after its class if there are classes."""
        if pictures.values.shape[1:] != self.image:
            raise ValueError(f"The model has images of {self.image}, and {pictures.source} of {pictures.values.shape[1:]}.")
        values = torch.from_numpy(pictures.values.reshape(len(pictures), -1).astype(np.int64))
        if self.binarize == "random":
            tokens = SeededRng(0, "binarised").bernoulli((values.double() / 255).log()).long()
        else:
            tokens = values * self.quantization_levels // 256
        if self.classes:
            tokens = torch.cat([self.quantization_levels + self._labels(pictures)[:, None], tokens], 1)
        start = torch.full((len(tokens),), min(1, self.classes))
        return Sequences(tokens, start, torch.full_like(start, tokens.shape[1]))

    def decode(self, x: Sequences) -> Bytes:
        """The images of rows, given pixels and drawn ones; what is not there yet is grey."""
        first, size = min(1, self.classes), self.space.max_length
        tokens = torch.nn.functional.pad(x.tokens.cpu(), (0, max(0, first + size - x.tokens.shape[1])))[:, first : first + size]
        known = torch.arange(first, first + size) < x.stop.cpu()[:, None]
        values = torch.where(known, (tokens * 255 / (self.quantization_levels - 1)).round(), 128.0)
        return values.to(torch.uint8).view(len(x), *self.image).numpy()

    def files(self) -> dict[str, bytes]:
        """What a model's folder keeps of it."""
        return {CODEC: (json.dumps(asdict(self), indent=2) + "\n").encode()}

    def _labels(self, pictures: ImageArray) -> torch.Tensor:
        if pictures.labels is None or pictures.labels.max(initial=0) >= self.classes:
            told = "none" if pictures.labels is None else f"one of {int(pictures.labels.max())}"
            raise ValueError(f"The model knows {self.classes} classes, 0 and up, and {pictures.source} states {told}.")
        return torch.from_numpy(pictures.labels)


def load_codec(folder: str | Path) -> ImageCodec | None:
    """The codec of a model's folder; None where it is no model of images."""
    file = Path(folder) / CODEC
    if not file.is_file():
        return None
    try:
        return ImageCodec(**json.loads(file.read_text(encoding="utf8")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file} does not describe images: {error}. Nothing was loaded; restore the file.") from error


def read_images(source: str) -> tuple[ImageArray, ImageArray | None]:
    """The images of a source, and its own test images, if it has some."""
    path = Path(source).expanduser()
    if source == DIGITS:
        return _digits(), None
    if path.is_dir():
        return _folder(path)
    if path.suffix == ".npz" and path.is_file():
        return _arrays(path)
    if path.is_file():
        return (_sheets([path]) if path.suffix == ".png" else _idx_pair(path)), None
    refuse_absent(source)
    try:
        test: ImageArray | None = _hub(source, "test")
    except FileNotFoundError:
        test = None
    return _hub(source, "train"), test


def split_images(pictures: ImageArray, *, held_out: float, test: bool) -> list[ImageArray]:
    """Images to learn from, to choose by and, if `test`, to judge by: the hash of each decides."""
    parts = np.array([split_index(one.tobytes().hex(), held_out) for one in pictures.values])
    places = [(parts != 1) & ((parts != 2) | (not test)), parts == 1, *([parts == 2] if test else [])]
    if not all(place.any() for place in places):
        raise ValueError(f"{pictures} are too few to hold out {held_out:.0%}. Give more, or a larger share.")
    return [pictures.rows(place) for place in places]


def _digits() -> ImageArray:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("The digits are in scikit-learn. Nothing was read; pip install 'esscher[images]'.") from error
    found = load_digits()
    return ImageArray((found.images * 255 / 16).round().astype(np.uint8)[..., None], found.target.astype(np.int64), DIGITS)


def _folder(path: Path) -> tuple[ImageArray, ImageArray | None]:
    """The files of MNIST by their names, or sheets."""
    sheets = sorted(path.glob("*.png"))
    if sheets:
        tests = [sheet for sheet in sheets if "test" in sheet.name]
        return _sheets([sheet for sheet in sheets if sheet not in tests]), _sheets(tests) if tests else None
    files = {name: sorted(path.glob(f"{name}*images*idx3*")) for name in ("train", "t10k")}
    if not files["train"]:
        arrays = sorted(path.glob("*.npz"))
        if len(arrays) == 1:
            return _arrays(arrays[0])
        raise FileNotFoundError(f"The folder {path} holds no idx files, no .npz and no .png. Nothing was read.")
    return _idx_pair(files["train"][0]), _idx_pair(files["t10k"][0]) if files["t10k"] else None


def _idx_pair(file: Path) -> ImageArray:
    """Images, and the labels in the file beside them."""
    labels = file.with_name(file.name.replace("images-idx3", "labels-idx1"))
    told = _idx(labels).astype(np.int64) if labels != file and labels.is_file() else None
    return ImageArray(_channels(_idx(file), str(file)), told, str(file))


def _idx(file: Path) -> Bytes:
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    if content[:3] != b"\0\0\x08":
        raise ValueError(f"{file} is no idx file of bytes: it begins with {content[:4]!r}. Nothing was read.")
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", dimensions, 4).astype(int)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    if values.size != math.prod(shape):
        raise ValueError(f"{file} holds {values.size:,} values, not {math.prod(shape):,}: it is cut off. Nothing was read.")
    return values.reshape(shape)


def _arrays(file: Path) -> tuple[ImageArray, ImageArray | None]:
    with np.load(file, allow_pickle=False) as whole:
        arrays: dict[str, Any] = {name.lower(): whole[name] for name in whole.files}
    train = _of_arrays(arrays, "train", file) or _of_arrays(arrays, "", file)
    if train is None:
        raise ValueError(f"{file} has the arrays {', '.join(arrays)}, none of which is images. Nothing was read.")
    return train, _of_arrays(arrays, "test", file)


def _of_arrays(arrays: Mapping[str, Any], part: str, file: Path) -> ImageArray | None:
    """The arrays whose names hold the part."""
    found = {}
    for kind, names in NAMES.items():
        spelt = [name for one in names for name in (one, f"{one}_{part}", f"{part}_{one}") if (part in name)]
        found[kind] = next((arrays[name] for name in spelt if name in arrays), None)
    if found["x"] is None:
        return None
    labels = None if found["y"] is None else np.asarray(found["y"], np.int64).reshape(-1)
    return ImageArray(_channels(found["x"], str(file)), labels, f"{file} ({part})" if part else str(file))


def _sheets(files: list[Path]) -> ImageArray:
    """Each row of a sheet is a square image."""
    from PIL import Image

    rows = []
    for file in files:
        with Image.open(file) as sheet:
            values = np.asarray(sheet if sheet.mode in ("L", "RGB") else sheet.convert("RGB"), np.uint8)
        side = math.isqrt(values.shape[1])
        if side * side != values.shape[1]:
            raise ValueError(f"{file}: rows of {values.shape[1]} pixels are no square images. Nothing was read.")
        rows.append(values.reshape(len(values), side, side, -1))
    return ImageArray(np.concatenate(rows), None, str(files[0].parent if len(files) > 1 else files[0]))


def _hub(name: str, split: str) -> ImageArray:
    values, labels = [], []
    for row in _image_rows(name, split):
        values.append(row[0])
        labels.append(row[1])
    told = None if any(label is None for label in labels) else np.array(labels, np.int64)
    return ImageArray(_channels(np.stack(values), name), told, f"{name} ({split})")


def _image_rows(name: str, split: str) -> Iterator[tuple[Bytes, int | None]]:
    for row in hub_rows(name, split):
        column = next((one for one in ("image", "img") if one in row), None)
        if column is None:
            raise ValueError(f"{name} has no column image or img; its columns are {', '.join(row)}. Nothing was read.")
        yield np.asarray(row[column], np.uint8), row.get("label")


def _channels(values: Any, where: str) -> Bytes:
    """N H W C values of a byte each."""
    values = np.asarray(values)
    if values.dtype != np.uint8 or values.ndim not in (3, 4):
        raise ValueError(f"{where} holds {values.dtype} of {values.ndim} dimensions, not images of bytes. Nothing was read.")
    return values if values.ndim == 4 else values[..., None]
