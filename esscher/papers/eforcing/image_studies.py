"""Settings of the recipe on images at each scale: images, networks and objectives.

The weights of E-Forcing decay from position to position so that they sum to about 3, as in the other recipes; without the
likelihood of prefixes (tokens counted once, not at `small`) they are ten times as large. E-Forcing begins late, because it
draws whole images at every update; likelihood gets as many updates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from esscher.data.config import DataConfig, ImageConfig
from esscher.networks.pixelcnn_config import GatedPixelCnnConfig, PixelCnnConfig, PixelCnnPlusPlusConfig
from esscher.networks.registry import NetworkConfig
from esscher.objectives.config import EForcingConfig, ObjectiveConfig
from esscher.papers.eforcing.language_studies import FORCED, ONCE, PLAIN
from esscher.papers.sources import CIFAR, MNIST, local_or_hub, missing_message
from esscher.papers.study import Study
from esscher.training.config import TrainingConfig
from esscher.workflow.config.train import TrainRun

DIGITS = DataConfig("digits", held_out=0.1)
PIXELCNN, GATED, PLUS = "PixelCNN", "Gated PixelCNN", "PixelCNN++"
WEIGHT_SUM, ONCE_WEIGHT_FACTOR = 3.0, 10.0


@dataclass(frozen=True, kw_only=True)
class ImageStudy(Study[TrainRun]):
    """Images and models of them, named "network, objective"; seeds after the first leave out the second form of E-Forcing."""

    grid_images: int = 64  # samples in the grid of a model
    test_limit: int | None = None  # test images, the first ones; None is all

    def names_for_seed(self, seed: int) -> tuple[str, ...]:
        """The models that are trained with a seed."""
        return tuple(model for model in self.models if not (seed and model.endswith(ONCE)))

    def baseline_of(self, model: str) -> str:
        """The model of the same network that is trained by likelihood."""
        return f"{model.partition(', ')[0]}, {PLAIN}"


def image_studies(scale: str) -> tuple[list[ImageStudy], list[str]]:
    """The studies of a scale, and a message if MNIST was not found."""
    if scale == "smoke":
        return [_smoke()], []
    if scale == "paper":
        return _published(), []
    if not MNIST.exists():
        return [_digits()], [missing_message(MNIST)]
    return [_digits(), _mnist_levels(), _mnist_binarised()], []


def forcing(decay: float, *, after: int) -> EForcingConfig:
    """E-Forcing whose weights sum to `WEIGHT_SUM` over infinitely many positions."""
    return EForcingConfig(after_steps=after, weight=round(WEIGHT_SUM * (1 - decay), 6), decay=decay)


def with_objectives(
    run: TrainRun, bases: Mapping[str, NetworkConfig], forced: EForcingConfig, *, once: bool = False
) -> dict[str, TrainRun]:
    """Every network by likelihood and by E-Forcing; with `once` also by E-Forcing with tokens counted once."""
    objectives: dict[str, ObjectiveConfig] = {PLAIN: run.objective, FORCED: forced}
    if once:
        objectives[ONCE] = replace(forced, weight=round(ONCE_WEIGHT_FACTOR * forced.weight, 6), counts="once")
    return {
        f"{name}, {objective}": replace(run, base=base, objective=config)
        for name, base in bases.items()
        for objective, config in objectives.items()
    }


def _image_run(data: DataConfig, training: TrainingConfig, images: ImageConfig) -> TrainRun:
    return TrainRun("", data=data, training=training, images=images)


def _digits() -> ImageStudy:
    """8 x 8 pixels of 16 levels, about 1,440 training images."""
    training = TrainingConfig(
        steps=2_400, batch_size=32, learning_rate=2e-3, warmup_steps=50, evaluate_every=200, swa_start=0.5, log_every=100
    )
    bases: dict[str, NetworkConfig] = {
        PIXELCNN: PixelCnnConfig(width=32, layers=4, dropout=0.2, first_kernel_size=5),
        GATED: GatedPixelCnnConfig(width=24, layers=4, dropout=0.2, first_kernel_size=5),
        PLUS: PixelCnnPlusPlusConfig(width=24, layers=1, dropout=0.2, scales=2, mixtures=5),
    }
    models = with_objectives(_image_run(DIGITS, training, ImageConfig(16)), bases, forcing(0.97, after=1_600))
    return ImageStudy(name="digits, 16 levels", models=models)


def _mnist_levels() -> ImageStudy:
    """14 x 14 pixels of 4 levels, about one epoch."""
    training = TrainingConfig(
        steps=2_000, batch_size=32, learning_rate=2e-3, warmup_steps=100, evaluate_every=500, swa_start=0.8, log_every=100
    )
    run = _image_run(DataConfig(str(MNIST)), training, ImageConfig(4, shrink=2))
    bases: dict[str, NetworkConfig] = {
        PIXELCNN: PixelCnnConfig(width=32, layers=5),
        GATED: GatedPixelCnnConfig(width=16, layers=5, first_kernel_size=5),
    }
    plus = {PLUS: PixelCnnPlusPlusConfig(width=16, layers=1, dropout=0.0, scales=2, mixtures=5)}
    shorter = replace(run, training=replace(training, steps=1_200, evaluate_every=300))
    models = {
        **with_objectives(run, bases, forcing(0.99, after=1_750)),
        **with_objectives(shorter, plus, forcing(0.99, after=1_050)),
    }
    return ImageStudy(name="MNIST, 14 x 14, 4 levels", models=models)


def _mnist_binarised() -> ImageStudy:
    """28 x 28 pixels, black or white, drawn once by their brightness."""
    training = TrainingConfig(
        steps=2_600, batch_size=16, learning_rate=2e-3, warmup_steps=100, evaluate_every=650, swa_start=0.8, log_every=50
    )
    run = _image_run(DataConfig(str(MNIST)), training, ImageConfig(binarize="random"))
    bases: dict[str, NetworkConfig] = {
        PIXELCNN: PixelCnnConfig(width=32, layers=5),
        GATED: GatedPixelCnnConfig(width=16, layers=5),
    }
    return ImageStudy(name="MNIST, binarised", models=with_objectives(run, bases, forcing(0.9975, after=2_450)))


def _smoke() -> ImageStudy:
    training = TrainingConfig(steps=10, batch_size=16, learning_rate=1e-2, evaluate_every=5, log_every=5)
    run = _image_run(DIGITS, training, ImageConfig(binarize="threshold", most=400))
    bases: dict[str, NetworkConfig] = {
        PIXELCNN: PixelCnnConfig(width=8, layers=1, first_kernel_size=3),
        GATED: GatedPixelCnnConfig(width=8, layers=1, first_kernel_size=3),
        PLUS: PixelCnnPlusPlusConfig(width=4, layers=1, dropout=0.0, scales=2, mixtures=2),
    }
    models = with_objectives(run, bases, forcing(0.97, after=5), once=True)
    return ImageStudy(name="digits, binarised", models=models, grid_images=9, test_limit=40)


def _published() -> list[ImageStudy]:
    """MNIST and CIFAR-10 with 256 levels.

    Batches of 4,096 values, Adam and a patience of 20 evaluations are those of the paper on E-Forcing; networks are those of
    their own papers, whose sizes on MNIST were not published.
    """
    training = TrainingConfig(
        epochs=200, batch_tokens=4_096, optimizer="adam", learning_rate=1e-3, max_grad_norm=None, patience=20
    )
    plus = TrainingConfig(epochs=200, batch_size=16, optimizer="adam", learning_rate=1e-3, max_grad_norm=None, swa_start=0.9)
    small = {
        PIXELCNN: PixelCnnConfig(width=128, layers=7),
        GATED: GatedPixelCnnConfig(width=64, layers=7),
    }
    large = {
        PIXELCNN: PixelCnnConfig(width=86, layers=15),  # about 256 features in all
        GATED: GatedPixelCnnConfig(width=128, layers=15, kernel_size=5),
    }
    studies = []
    for name, source, bases, size in (
        ("MNIST", local_or_hub(MNIST), small, 784),
        ("CIFAR-10", local_or_hub(CIFAR), large, 3_072),
    ):
        forced = replace(forcing(round(1 - 2 / size, 5), after=0), after_steps=None, after_epochs=15)
        run = _image_run(DataConfig(source), training, ImageConfig(256))
        models = with_objectives(run, bases, forced, once=True)
        if name == "CIFAR-10":
            models |= with_objectives(replace(run, training=plus), {PLUS: PixelCnnPlusPlusConfig()}, forced, once=True)
        studies.append(ImageStudy(name=name, models=models))
    return studies
