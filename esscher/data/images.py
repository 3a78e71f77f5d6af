"""Image data: reading it, and the codec that converts pixel values (0 to 255) to tokens and back.

A source is `digits` (1,797 handwritten digits of 8 x 8 pixels, in scikit-learn), a path, or a name on the Hugging Face hub:

    idx files, gzipped or not     a file, or a folder with the files of MNIST under their usual names
    .npz                          arrays such as x_train, y_train, x_test, y_test, or images and labels
    .png                          sheets: each row of a sheet is an image, its pixels in raster order; all sheets of a folder
    a name on the hub             columns `image` or `img`, and `label`

A source may have test images of its own. Letters: N images, H rows, W columns, C channels.
"""

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from esscher.core.bounded_files import RefusedError, check_zip, read_bytes, refuse_expansion
from esscher.core.config import from_dict
from esscher.core.randomness import SeededRng
from esscher.core.reading import describing, read_json_object
from esscher.core.space import Sequences, Space
from esscher.data.config import DIGITS
from esscher.data.sources import hub_rows, split_index

CODEC = "codec.json"
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class ImageArray:
    """Pixel values of N images as N H W C, and the class of each, if it is known."""

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
        """The images with each square of this side averaged into one pixel."""
        count, rows, columns, channels = self.values.shape
        if rows % side or columns % side:
            raise ValueError(f"{self.source}: {rows} x {columns} pixels are no squares of side {side}. Nothing was read.")
        squares = self.values.reshape(count, rows // side, side, columns // side, side, channels)
        return replace(self, values=squares.mean((2, 4)).round().astype(np.uint8))


@dataclass(frozen=True)
class ImageCodec:
    """Converts images of one size to sequences of tokens; saved in the folder of the model. Each of the `quantization_levels`
    stands for equally many of the 256 values. With `binarize` there are two: "threshold" cuts in the middle; "random" draws
    each pixel once, white with the probability of its brightness, from a fixed seed. With `classes` the prompt is the class, a
    token after those of the levels."""

    rows: int
    columns: int
    channels: int
    quantization_levels: int
    classes: int = 0
    binarize: Literal["threshold", "random"] | None = None

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

    def encode(self, images: ImageArray) -> Sequences:
        """One sequence for each image, after its class if there are classes."""
        if images.values.shape[1:] != self.image:
            raise ValueError(f"The model has images of {self.image}, and {images.source} of {images.values.shape[1:]}.")
        values = torch.from_numpy(images.values.reshape(len(images), -1).astype(np.int64))
        if self.binarize == "random":
            tokens = SeededRng(0, "binarised").bernoulli((values.double() / 255).log()).long()
        else:
            tokens = values * self.quantization_levels // 256
        if self.classes:
            if images.labels is None or images.labels.max(initial=0) >= self.classes:
                stated = "none" if images.labels is None else f"one of {int(images.labels.max())}"
                raise ValueError(f"The model has {self.classes} classes, numbered from 0, and {images.source} states {stated}.")
            tokens = torch.cat([self.quantization_levels + torch.from_numpy(images.labels)[:, None], tokens], 1)
        start = torch.full((len(tokens),), min(1, self.classes))
        return Sequences(tokens, start, torch.full_like(start, tokens.shape[1]))

    def decode(self, x: Sequences) -> Bytes:
        """The images of sequences, pixels of their prompts included; missing pixels are grey."""
        first, size = min(1, self.classes), self.space.max_length
        tokens = torch.nn.functional.pad(x.tokens.cpu(), (0, max(0, first + size - x.tokens.shape[1])))[:, first : first + size]
        known = torch.arange(first, first + size) < x.stop.cpu()[:, None]
        values = torch.where(known, (tokens * 255 / (self.quantization_levels - 1)).round(), 128.0)
        return values.to(torch.uint8).view(len(x), *self.image).numpy()

    def files(self) -> dict[str, bytes]:
        """The name and content of its file in a model folder."""
        return {CODEC: (json.dumps(asdict(self), indent=2) + "\n").encode()}


def load_codec(folder: str | Path) -> ImageCodec | None:
    """The codec of a model folder; None if it holds no image model."""
    file = Path(folder) / CODEC
    if not file.is_file():
        return None
    values = read_json_object(file)
    with describing(file, "images"):
        return from_dict(ImageCodec, values)


def read_images(source: str) -> tuple[ImageArray, ImageArray | None]:
    """The images of a source, and its test images, if it has some."""
    path = Path(source).expanduser()
    if source == DIGITS:
        return _digits(), None
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return _arrays(path) if path.suffix == ".npz" else ((_sheets if path.suffix == ".png" else _idx_pair)([path]), None)
    try:
        test: ImageArray | None = _hub(source, "test")
    except FileNotFoundError:
        test = None
    return _hub(source, "train"), test


def split_images(images: ImageArray, *, held_out: float, test: bool) -> list[ImageArray]:
    """Images for training, validation and, if `test`, test, by the hash of each."""
    part = np.array([split_index(image.tobytes().hex(), held_out) for image in images.values])
    masks = [part == 0, part == 1, part == 2] if test else [part != 1, part == 1]
    if not all(mask.any() for mask in masks):
        raise ValueError(f"{images} are too few to hold out {held_out:.0%}. Give more, or a larger share.")
    return [images.rows(mask) for mask in masks]


def _digits() -> ImageArray:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("The digits are in scikit-learn. Nothing was read; pip install 'esscher[images]'.") from error
    digits = load_digits()
    return ImageArray((digits.images * 255 / 16).round().astype(np.uint8)[..., None], digits.target.astype(np.int64), DIGITS)


def _folder(path: Path) -> tuple[ImageArray, ImageArray | None]:
    """The sheets of a folder, the files of MNIST under their names, or one .npz file."""
    sheets = sorted(path.glob("*.png"))
    read, train, test = _sheets, [file for file in sheets if "test" not in file.name], [f for f in sheets if "test" in f.name]
    if not sheets:
        read, train, test = _idx_pair, *(sorted(path.glob(f"{name}*images*idx3*")) for name in ("train", "t10k"))
    if train:
        return read(train), read(test) if test else None
    arrays = sorted(path.glob("*.npz"))
    if len(arrays) != 1:
        raise FileNotFoundError(f"The folder {path} holds no idx files, no .npz and no .png. Nothing was read.")
    return _arrays(arrays[0])


def _idx_pair(files: list[Path]) -> ImageArray:
    """The images of the first file, and the labels in the file beside it."""
    file = files[0]
    beside = file.with_name(file.name.replace("images-idx3", "labels-idx1"))
    labels = _idx(beside).astype(np.int64) if beside != file and beside.is_file() else None
    return ImageArray(_channels(_idx(file), str(file)), labels, str(file))


def _idx(file: Path) -> Bytes:
    content = read_bytes(file)
    if content[:3] != b"\0\0\x08":
        raise ValueError(f"{file} is no idx file of bytes: it begins with {content[:4]!r}. Nothing was read.")
    dimensions = content[3] if len(content) > 3 else 0
    if not 1 <= dimensions <= 4 or len(content) < 4 + 4 * dimensions:
        raise ValueError(f"{file} is no idx file of bytes: it states {dimensions} dimensions. Nothing was read.")
    shape = tuple(map(int, np.frombuffer(content, ">u4", dimensions, 4)))
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    if values.size != math.prod(shape):
        raise ValueError(f"{file} holds {values.size:,} values, not {math.prod(shape):,}: it is cut off. Nothing was read.")
    return values.reshape(shape)


def _arrays(file: Path) -> tuple[ImageArray, ImageArray | None]:
    check_zip(file)
    try:
        with np.load(file, allow_pickle=False) as whole:
            arrays: dict[str, Any] = {name.lower(): whole[name] for name in whole.files if _fits(whole.zip, name)}
    except RefusedError:
        raise
    except Exception as error:  # a pickled object, a broken header, a wrong checksum
        raise ValueError(f"The file {file} has arrays that cannot be read: {error}. Nothing was read; restore it.") from error
    train = _of_arrays(arrays, "train", file) or _of_arrays(arrays, "", file)
    if train is None:
        raise ValueError(f"{file} has the arrays {', '.join(arrays)}, none of which is images. Nothing was read.")
    return train, _of_arrays(arrays, "test", file)


def _fits(archive: Any, name: str) -> bool:
    """True; an array that states a larger size than its file has is an error, before memory is taken for it."""
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as content:
        version = np.lib.format.read_magic(content)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(content)
    if math.prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"the array {name} states a shape of {shape} and has {member.file_size:,} bytes")
    return True


def _of_arrays(arrays: Mapping[str, Any], part: str, file: Path) -> ImageArray | None:
    """The arrays of images and labels whose names contain the part."""

    def find(*names: str) -> Any:
        spellings = [s for name in names for s in (name, f"{name}_{part}", f"{part}_{name}") if part in s]
        return next((arrays[spelling] for spelling in spellings if spelling in arrays), None)

    values, labels = find("images", "image", "x", "data"), find("labels", "label", "y")
    if values is None:
        return None
    labels = None if labels is None else np.asarray(labels, np.int64).reshape(-1)
    return ImageArray(_channels(values, str(file)), labels, f"{file} ({part})" if part else str(file))


def _sheets(files: list[Path]) -> ImageArray:
    """Each row of a sheet is a square image."""
    from PIL import Image

    rows = []
    for file in files:
        try:
            with warnings.catch_warnings(action="ignore"), Image.open(file) as sheet:  # the bound is ours
                refuse_expansion(file, math.prod(sheet.size) * len(sheet.getbands()))
                values = np.asarray(sheet if sheet.mode in ("L", "RGB") else sheet.convert("RGB"), np.uint8)
        except RefusedError:
            raise
        except Exception as error:  # too many pixels, or no image at all
            raise ValueError(f"The file {file} is no image that can be read: {error}. Nothing was read; restore it.") from error
        side = math.isqrt(values.shape[1])
        if side * side != values.shape[1]:
            raise ValueError(f"{file}: rows of {values.shape[1]} pixels are no square images. Nothing was read.")
        rows.append(values.reshape(len(values), side, side, -1))
    return ImageArray(np.concatenate(rows), None, str(files[0].parent if len(files) > 1 else files[0]))


def _hub(name: str, split: str) -> ImageArray:
    values, labels = [], []
    for row in hub_rows(name, split):
        column = next((column for column in ("image", "img") if column in row), None)
        if column is None:
            raise ValueError(f"{name} has no column image or img; its columns are {', '.join(row)}. Nothing was read.")
        values.append(np.asarray(row[column], np.uint8))
        labels.append(row.get("label"))
    known = None if None in labels else np.array(labels, np.int64)
    return ImageArray(_channels(np.stack(values), name), known, f"{name} ({split})")


def _channels(values: Any, where: str) -> Bytes:
    """The values as N H W C bytes."""
    values = np.asarray(values)
    if values.dtype != np.uint8 or values.ndim not in (3, 4):
        raise ValueError(f"{where} holds {values.dtype} of {values.ndim} dimensions, not images of bytes. Nothing was read.")
    return values if values.ndim == 4 else values[..., None]
