"""What a run on images learns from: the images of its settings as points, and the base that fits them."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from esscher.bases.config import PIXELS
from esscher.data.images import Codec, Pictures, load_codec, read_images, split_images
from esscher.data.sources import NAMES
from esscher.estimate import Estimate
from esscher.estimators.perplexity import as_bits
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig
from esscher.settings.images import ImageConfig
from esscher.settings.train import TrainRun
from esscher.space import Sequences
from esscher.verbs.training_data import Material

DIMENSION, IMAGE = "dimension", "image"


def prepare_images(run: TrainRun) -> Material:
    """The images of a run; of one that starts from a folder, as that folder says."""
    sets = read_image_sets(run.data, run.images)
    codec = None if run.start is None else load_codec(run.start)
    codec = codec_of(sets[0], run.images) if codec is None else codec
    train, validation, test = (codec.encode(one) for one in sets)
    lines = [f"- {name}: {one}" for name, one in zip(NAMES, sets, strict=True)]
    lines.append(f"- {codec.levels} levels" + (f", binarised by {codec.binarised}" if codec.binarised else ""))
    return Material(codec.space, train, validation, test, image_units(test), None, "\n".join(lines), codec=codec)


def read_image_sets(data: DataConfig, images: ImageConfig) -> list[Pictures]:
    """Images to learn from, to choose by and to judge by; those of the source for test, where it has some."""
    whole, test = read_images(data.source)
    if data.validation is not None and data.test is not None:
        sets = [whole, *(read_images(one)[0] for one in (data.validation, data.test))]
    else:
        sets = split_images(whole, held_out=data.held_out, test=test is None) + ([] if test is None else [test])
    sets[0] = sets[0].rows(slice(None, images.most))
    return [one.shrunk(images.shrink) if images.shrink > 1 else one for one in sets]


def codec_of(pictures: Pictures, images: ImageConfig) -> Codec:
    """The codec for these images."""
    if images.classes and pictures.labels is None:
        raise ValueError(f"{pictures.source} states no classes. Nothing was trained; leave images.classes out.")
    classes = 1 + int(pictures.labels.max()) if images.classes and pictures.labels is not None else 0
    rows, columns, channels = pictures.values.shape[1:]
    return Codec(rows, columns, channels, 2 if images.binarised else images.levels, classes, images.binarised)


def image_units(x: Sequences) -> dict[str, torch.Tensor]:
    """How many values and images each row is."""
    return {DIMENSION: x.lengths, IMAGE: torch.ones_like(x.lengths)}


def in_bits(nats: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Cross-entropies as they are told of images: bits per dimension, and nats per image."""
    return {f"bits per {DIMENSION}": as_bits(nats)[DIMENSION], f"nats per {IMAGE}": nats[IMAGE]}


def fitted(base: BaseChoice, codec: Codec) -> BaseChoice:
    """The base with the size of the images and their classes, which are not chosen but found in the data."""
    if base.kind not in PIXELS:
        if codec.classes:
            raise ValueError(
                f"A base of kind {base.kind} knows no classes. Nothing was trained; choose from {', '.join(PIXELS)}."
            )
        return base
    for name, found in (("image", codec.image), ("classes", codec.classes)):
        told = getattr(base, name)
        if told is not None and told != found:
            raise ValueError(f"The data have {name} = {found}, not {told}. Nothing was trained; leave base.{name} out.")
    return replace(base, image=codec.image, classes=codec.classes)
