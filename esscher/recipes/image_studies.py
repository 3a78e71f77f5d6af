"""What the recipe on images studies, by scale: which images, which networks, and what they are trained to minimise.

Weights of E-Forcing decay from position to position so that those of all positions sum to about 3, as in the other recipes;
without the likelihood of prefixes (tokens counted once, not at `small`) they are ten times as large. It begins late, because it
draws whole images at every update; likelihood is given as many updates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from esscher.recipes.eforcing_studies import FORCED, ONCE, PLAIN
from esscher.recipes.sources import MNIST, cifar, mnist, not_here
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig
from esscher.settings.images import ImageConfig
from esscher.settings.objective import ObjectiveConfig
from esscher.settings.train import TrainRun
from esscher.settings.training import TrainingConfig

DIGITS = DataConfig("digits", held_out=0.1)
PIXELCNN, GATED, PLUS = "PixelCNN", "Gated PixelCNN", "PixelCNN++"
SUM, MORE = 3.0, 10.0


@dataclass(frozen=True)
class ImageStudy:
    """Images, and models of them; a model is named by its network and its objective, likelihood being what the others are
    compared with. `shown` draws are in its grid; `most` images are judged by, the first ones. The first seed is that of all
    models, the others leave the second form of E-Forcing out."""

    name: str
    models: Mapping[str, TrainRun]
    shown: int = 64
    most: int | None = None

    def of_seed(self, seed: int) -> tuple[str, ...]:
        """The models that are trained with a seed."""
        return tuple(model for model in self.models if not (seed and model.endswith(ONCE)))

    def against(self, model: str) -> str:
        """The model of the same network that learns by likelihood."""
        return f"{model.partition(', ')[0]}, {PLAIN}"


def image_studies(scale: str) -> tuple[list[ImageStudy], list[str]]:
    """The studies of a scale, and what is left out because its images are not here."""
    if scale == "smoke":
        return [_smoke()], []
    if scale == "paper":
        return _published(), []
    made = [_digits()]
    if not MNIST.exists():
        return made, [not_here(MNIST)]
    return [*made, _mnist_levels(), _mnist_binarised()], []


def forcing(decay: float, *, after: int) -> ObjectiveConfig:
    """E-Forcing whose weights sum to `SUM` over endless positions."""
    return ObjectiveConfig("eforcing", after_steps=after, weight=round(SUM * (1 - decay), 6), decay=decay)


def objectives(name: str, run: TrainRun, forced: ObjectiveConfig, *, once: bool = True) -> dict[str, TrainRun]:
    """A network by likelihood, and by E-Forcing, in both forms unless not `once`."""
    runs = {PLAIN: run, FORCED: replace(run, objective=forced)}
    if once:
        runs[ONCE] = replace(run, objective=replace(forced, weight=round(MORE * forced.weight, 6), counts="once"))
    return {f"{name}, {objective}": one for objective, one in runs.items()}


def _digits() -> ImageStudy:
    """8 x 8 pixels of 16 levels, about 1,440 to learn from."""
    training = TrainingConfig(
        steps=2_400, batch_size=32, learning_rate=2e-3, warmup=50, evaluate_every=200, average=0.5, log_every=100
    )
    run = TrainRun("", DIGITS, training=training, images=ImageConfig(16))
    bases = {
        PIXELCNN: BaseChoice("pixelcnn", width=32, layers=4, dropout=0.2, first=5),
        GATED: BaseChoice("gated-pixelcnn", width=24, layers=4, dropout=0.2, first=5),
        PLUS: BaseChoice("pixelcnn++", width=24, layers=1, dropout=0.2, scales=2, mixtures=5),
    }
    forced = forcing(0.97, after=1_600)
    models = [objectives(name, replace(run, base=base), forced, once=False) for name, base in bases.items()]
    return ImageStudy("digits, 16 levels", _joined(models))


def _mnist_levels() -> ImageStudy:
    """14 x 14 pixels of 4 levels, about one epoch."""
    training = TrainingConfig(
        steps=2_000, batch_size=32, learning_rate=2e-3, warmup=100, evaluate_every=500, average=0.8, log_every=100
    )
    run = TrainRun("", DataConfig(str(MNIST)), training=training, images=ImageConfig(4, shrink=2))
    small = BaseChoice("pixelcnn", width=32, layers=5)
    gated = BaseChoice("gated-pixelcnn", width=16, layers=5, first=5)
    plus = BaseChoice("pixelcnn++", width=16, layers=1, dropout=0.0, scales=2, mixtures=5)
    shorter = replace(run, base=plus, training=replace(training, steps=1_200, evaluate_every=300))
    models = [
        objectives(PIXELCNN, replace(run, base=small), forcing(0.99, after=1_750), once=False),
        objectives(GATED, replace(run, base=gated), forcing(0.99, after=1_750), once=False),
        objectives(PLUS, shorter, forcing(0.99, after=1_050), once=False),
    ]
    return ImageStudy("MNIST, 14 x 14, 4 levels", _joined(models))


def _mnist_binarised() -> ImageStudy:
    """28 x 28 pixels, black or white, drawn once by their brightness."""
    training = TrainingConfig(
        steps=2_600, batch_size=16, learning_rate=2e-3, warmup=100, evaluate_every=650, average=0.8, log_every=50
    )
    run = TrainRun("", DataConfig(str(MNIST)), training=training, images=ImageConfig(binarised="random"))
    bases = {
        PIXELCNN: BaseChoice("pixelcnn", width=32, layers=5),
        GATED: BaseChoice("gated-pixelcnn", width=16, layers=5),
    }
    forced = forcing(0.9975, after=2_450)
    models = [objectives(name, replace(run, base=base), forced, once=False) for name, base in bases.items()]
    return ImageStudy("MNIST, binarised", _joined(models))


def _smoke() -> ImageStudy:
    training = TrainingConfig(steps=10, batch_size=16, learning_rate=1e-2, evaluate_every=5, log_every=5)
    run = TrainRun("", DIGITS, training=training, images=ImageConfig(binarised="threshold", most=400))
    bases = {
        PIXELCNN: BaseChoice("pixelcnn", width=8, layers=1, first=3),
        GATED: BaseChoice("gated-pixelcnn", width=8, layers=1, first=3),
        PLUS: BaseChoice("pixelcnn++", width=4, layers=1, dropout=0.0, scales=2, mixtures=2),
    }
    models = [objectives(name, replace(run, base=base), forcing(0.97, after=5)) for name, base in bases.items()]
    return ImageStudy("digits, binarised", _joined(models), shown=9, most=40)


def _published() -> list[ImageStudy]:
    """MNIST and CIFAR-10 with 256 levels: batches of 4,096 values, Adam, 20 evaluations of patience, as the paper on E-Forcing
    tells; networks as those who made them tell, whose sizes on MNIST nobody does."""
    training = TrainingConfig(epochs=200, batch_tokens=4_096, optimiser="adam", learning_rate=1e-3, clip=None, patience=20)
    plus = TrainingConfig(epochs=200, batch_size=16, optimiser="adam", learning_rate=1e-3, clip=None, average=0.9)
    small = {
        PIXELCNN: BaseChoice("pixelcnn", width=128, layers=7),
        GATED: BaseChoice("gated-pixelcnn", width=64, layers=7),
    }
    large = {
        PIXELCNN: BaseChoice("pixelcnn", width=86, layers=15),  # 256 features in all, as good as
        GATED: BaseChoice("gated-pixelcnn", width=128, layers=15, kernel=5),
    }
    studies = []
    for name, source, bases, size in (("MNIST", mnist(), small, 784), ("CIFAR-10", cifar(), large, 3_072)):
        decay = round(1 - 2 / size, 5)
        forced = replace(forcing(decay, after=0), after_steps=None, after_epochs=15)
        run = TrainRun("", DataConfig(source), training=training, images=ImageConfig(256))
        models = [objectives(one, replace(run, base=base), forced) for one, base in bases.items()]
        if name == "CIFAR-10":
            models.append(objectives(PLUS, replace(run, base=BaseChoice("pixelcnn++"), training=plus), forced))
        studies.append(ImageStudy(name, _joined(models)))
    return studies


def _joined(models: list[dict[str, TrainRun]]) -> dict[str, TrainRun]:
    return {name: run for some in models for name, run in some.items()}
