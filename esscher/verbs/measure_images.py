"""Measuring a model of images: bits per dimension and nats per image, of base and tilted model, with intervals."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from esscher.data.images import Codec, Pictures, read_images
from esscher.estimators.measured import Measured
from esscher.space import Sequences
from esscher.verbs.measure import Measuring, amounts, measure_points
from esscher.verbs.models import Model
from esscher.verbs.run_folder import settings_of
from esscher.verbs.subsets import evenly
from esscher.verbs.training_images import image_units, in_bits, read_image_sets


@dataclass(frozen=True)
class MeasuredImages:
    """What was found, and on which images."""

    pictures: Pictures
    used: int
    found: Measured

    @property
    def measured_on(self) -> str:
        """The images in words."""
        return str(self.pictures) + (f", {self.used:,} of them" if self.used < len(self.pictures) else "")

    def rows(self) -> list[dict[str, Any]]:
        """A row for each model."""
        return image_rows(self.found)


def image_rows(found: Measured) -> list[dict[str, Any]]:
    """Bits per dimension and nats per image of each model."""
    models = {"base": found.base, "tilted": found.tilted}
    return [{"model": name, **in_bits(nats)} for name, nats in models.items() if nats is not None]


def measure_images(
    model: Model, source: str, settings: Measuring, *, say: Callable[[str], None] = lambda text: None
) -> MeasuredImages:
    """The model on the test images of a source."""
    pictures = judged_images(model, source)
    whole = points_of(model.pictures, pictures)
    most, draws = amounts(model, whole, settings)
    x = evenly(whole, most)
    return MeasuredImages(pictures, len(x), measure_points(model, x, draws, image_units(x), settings, say=say))


def judged_images(model: Model, source: str) -> Pictures:
    """What to judge by: of the source that the model learnt from, what was held out; of others their test images, or all."""
    learnt = settings_of(model.folder)
    if learnt is not None and learnt.data.source == source:
        return read_image_sets(learnt.data, learnt.images)[2]
    whole, test = read_images(source)
    return whole if test is None else test


def points_of(codec: Codec, pictures: Pictures) -> Sequences:
    """Images as points of a model, made smaller if they are so many times as large."""
    side = pictures.values.shape[1] // codec.rows
    return codec.encode(pictures.shrunk(side) if side > 1 else pictures)
