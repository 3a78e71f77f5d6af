"""Grids of images, as PNG files and as figures of a report.

Letters: N images, H rows, W columns, C channels of each.
"""

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from esscher.storage import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP, FRAME = 1, 96  # pixels between images, and their grey
SMALLEST = 560  # pixels of a file's longer side, at least


def grid(images: NDArray[np.uint8], columns: int | None = None) -> NDArray[np.uint8]:
    """N H W C images beside and below each other, in rows of so many; by default about a square."""
    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count)) if columns is None else columns
    rows = math.ceil(count / columns)
    whole = np.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, channels), FRAME, np.uint8)
    for number, image in enumerate(images):
        top, left = (GAP + place * (size + GAP) for place, size in zip(divmod(number, columns), (height, width), strict=True))
        whole[top : top + height, left : left + width] = image
    return whole


def save_grid(path: Path, images: NDArray[np.uint8], columns: int | None = None) -> Path:
    """Write the grid as a PNG, each pixel as a square large enough to be seen."""
    from PIL import Image

    whole = grid(images, columns)
    side = max(1, SMALLEST // max(whole.shape[:2]))
    large = whole.repeat(side, 0).repeat(side, 1)
    buffer = io.BytesIO()
    Image.fromarray(large[..., 0] if large.shape[2] == 1 else large).save(buffer, format="PNG", optimize=True)
    write_file(path, buffer.getvalue())
    return path


def file_figure(path: Path) -> "Figure":
    """A grid that was saved, as a figure."""
    from matplotlib.figure import Figure
    from PIL import Image

    with Image.open(path) as picture:
        whole = np.asarray(picture)
    figure = Figure(figsize=(4.8, 4.8 * whole.shape[0] / whole.shape[1]))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(whole, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_axis_off()
    return figure
