"""Draws of a model of images as pictures: from nothing, of classes, and what was left out of given images."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from esscher.bases.network import NetworkBase, with_given
from esscher.data.images import Pictures
from esscher.draws import Draws, Sampler
from esscher.randomness import Rng
from esscher.space import Sequences, empty_prompts, prompts_of
from esscher.target import Tilted
from esscher.verbs.measure_images import judged_images, points_of
from esscher.verbs.models import Model


def prompts_of_classes(model: Model, classes: Sequence[int] = ()) -> Sequences:
    """A prompt for each class, all of them by default; of a model without classes one of nothing."""
    codec = model.pictures
    wrong = [one for one in classes if not 0 <= one < codec.classes]
    if wrong:
        raise ValueError(f"The model knows {codec.classes} classes, 0 and up, and not {wrong[0]}. Nothing was drawn.")
    if not codec.classes:
        return empty_prompts(1)
    return prompts_of([[codec.levels + one] for one in classes or range(codec.classes)])


def drawn_images(
    model: Model, target: Tilted, sampler: Sampler, prompts: Sequences, draws: int, *, rng: Rng
) -> tuple[NDArray[np.uint8], Draws]:
    """Draws after prompts, as images too."""
    found = sampler(target, prompts, draws, rng=rng)
    return model.pictures.decode(found.x), found


def paint(
    model: Model, target: Tilted, sampler: Sampler, source: str, rows: int | None, images: int, draws: int, *, rng: Rng
) -> tuple[NDArray[np.uint8], Draws]:
    """For each of the first images of a source: the image, what is given of it, and what was drawn after that."""
    pictures = judged_images(model, source).rows(slice(0, images))
    return paint_images(model, target, sampler, pictures, rows, draws, rng=rng)


def paint_images(
    model: Model, target: Tilted, sampler: Sampler, pictures: Pictures, rows: int | None, draws: int, *, rng: Rng
) -> tuple[NDArray[np.uint8], Draws]:
    """The same of images at hand; the given pixels are a prompt, so they stay as they are."""
    codec, base = model.pictures, target.base
    rows = codec.rows // 2 if rows is None else rows
    if not 0 <= rows < codec.rows:
        raise ValueError(f"Of {codec.rows} rows 0 to {codec.rows - 1} may be given, not {rows}. Nothing was drawn.")
    x = points_of(codec, pictures)
    given = rows * codec.columns * codec.channels
    prompts = replace(x, start=x.start + given).prompts()
    if not isinstance(base, NetworkBase):
        raise ValueError("Images are completed by a network as it is. Nothing was drawn; leave truncations out.")
    left = Tilted(with_given(base, given), target.energy)
    shown, found = drawn_images(model, left, sampler, prompts, draws, rng=rng)
    before = np.stack([codec.decode(x), codec.decode(prompts)], 1)
    every = np.concatenate([before, shown.reshape(len(x), draws, *codec.image)], 1)
    return every.reshape(-1, *codec.image), found
