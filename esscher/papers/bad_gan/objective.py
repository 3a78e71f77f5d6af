"""Classification from few labels beside a generator of what lies between the classes (Dai et al. 2017b).

The discriminator has K logits and a further class, "generated", whose logit is 0. With l the logsumexp of the logits it
minimises

    cross-entropy of labelled points + E_data[softplus(-l)] + E_gen[softplus(l)] + weight * E_data[entropy of the class]

and the generator the distance of mean features (FM), and optionally the pull-away term (PT), a bound of minus its entropy (VI)
and the density above a threshold (LD). Letters: N points, F features, K classes; C channels, H rows, W columns of an image.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import avg_pool2d, cross_entropy, normalize, softplus

from esscher.bases.network import NetworkBase
from esscher.core.objective import Loss
from esscher.core.randomness import SeededRng
from esscher.networks.pixel_network import PixelNetwork
from esscher.papers.games.calibration import VariationalEntropy
from esscher.papers.games.networks import Game
from esscher.papers.games.points import Points

BATCH_SIZE = 100  # images whose density is computed together


@dataclass(frozen=True, eq=False)
class ImageDensity:
    """The log-density of continuous images, with pixels from `pixel_min` to 1, under a base of discrete images, which is
    frozen.

    Between two levels the log-probability of a pixel is interpolated, and later pixels are conditioned on its exact value
    (`PixelNetwork.interpolated_log_probs`), so there is a gradient everywhere. Images larger than the base's by a whole factor
    are average-pooled.
    """

    base: NetworkBase
    pixel_min: float = 0.0

    def __post_init__(self) -> None:
        network = self.base.network
        if not isinstance(network, PixelNetwork) or network.prompt_length:
            raise ValueError(
                f"A density of images needs a base of images without classes, and {type(network).__name__} is not one. "
                f"Nothing was computed; train a pixelcnn, gated-pixelcnn or pixelcnn++ without images.classes."
            )
        self.base.eval().requires_grad_(False)

    def __call__(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N"]:
        network = self.base.network
        assert isinstance(network, PixelNetwork)
        side = images.shape[2] // network.height
        if tuple(images.shape[1:]) != (network.channels, side * network.height, side * network.columns):
            raise ValueError(
                f"The base has images of shape {network.channels, network.height, network.columns}, and these have shape "
                f"{tuple(images.shape[1:])}, which is no multiple of it. Nothing was computed."
            )
        small = avg_pool2d(images, side) if side > 1 else images
        levels = (small - self.pixel_min) / (1 - self.pixel_min) * (network.vocab_size - 1)
        return network.interpolated_log_probs(levels.permute(0, 2, 3, 1)).double().sum((1, 2, 3))

    def quantile(self, images: Float[Tensor, "N C H W"], share: float) -> float:
        """The log-density below which this share of the images lies."""
        return float(torch.quantile(log_densities(self, images), share))


@torch.no_grad()
def log_densities(log_density: Callable[[Tensor], Tensor], points: Float[Tensor, "N *S"]) -> Float[Tensor, "N"]:
    """The log-density of many points, a batch at a time."""
    return torch.cat([log_density(part) for part in torch.split(points, BATCH_SIZE)])


Matching = Literal["squared", "mean-square", "absolute"]
Density = tuple[Callable[[Tensor], Tensor], float]
"""A fixed, differentiable log-density of points, and the threshold above which LD penalises it."""


@dataclass(frozen=True)
class LowDensity:
    """LD penalises generated points of a log-density above the threshold: the mean excess over the points that exceed it
    ("exceeding", as released), or over all points ("all", (C.3), where few points that exceed count little). The threshold is
    the `quantile` of the log-density of real points (published: 0.1; 0.02, 0.2 and 1 in Table C.2). LD counts from `start_step`
    on, with a `probability` in each step, for `max_points` points; in the paper always, for all."""

    weight: float = 1.0
    start_step: int = 0
    probability: float = 1.0
    max_points: int | None = None
    mean_over: Literal["exceeding", "all"] = "exceeding"
    quantile: float = 0.1

    def __call__(self, generated: Float[Tensor, "N *S"], density: Density, *, rng: SeededRng, step: int) -> Tensor:
        chosen = rng.bernoulli(torch.tensor([self.probability], dtype=torch.float64).log())
        if step < self.start_step or not bool(chosen):
            return generated.new_zeros(())
        log_density, threshold = density
        excess = (log_density(generated[: self.max_points]) - threshold).clamp(min=0)
        counted = excess > 0 if self.mean_over == "exceeding" else torch.ones_like(excess, dtype=torch.bool)
        return self.weight * (excess.sum() / counted.sum().clamp(min=1)).to(generated.dtype)


@dataclass(frozen=True, eq=False)
class UniformComplement:
    """A fixed generator: uniform points of a box, without those whose log-density is above the threshold (thesis, C.4)."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    density: Density

    def draw(self, count: int, *, rng: SeededRng) -> Float[Tensor, "N D"]:
        """So many independent points, by rejection."""
        low, high = torch.tensor(self.low), torch.tensor(self.high)
        log_density, threshold = self.density
        accepted = low.new_zeros(0, len(low))
        while len(accepted) < count:
            x = low + (high - low) * rng.uniform(count, len(low))
            accepted = torch.cat([accepted, x[log_density(x) <= threshold]])
        return accepted[:count]


@dataclass(frozen=True, kw_only=True)
class ComplementGanConfig:
    """Weights and forms of the terms of a game; the defaults are those of the paper, but for `entropy_over` and LD's
    `mean_over`.

    The conditional entropy (Ent) is of the K classes alone ("classes", as released), or of these K among all K + 1 ("all",
    (C.5), where a point that is taken for generated has little). `matching` is the squared norm of the difference of mean
    features (the paper), its mean square (the released code for MNIST) or its mean absolute value (the code for SVHN and
    CIFAR-10). `unlabelled_weight` is that of the loss of unlabelled and generated points: 1 in the paper, 0.5 as released.
    With `separate_generator_batch` the first half of a batch is the discriminator's, the other the generator's. An inference
    net in the game needs a `variational` weight. With a `complement_quantile` no generator learns: generated points are uniform
    where the density is at most this quantile of that of the data (the ideal complement).
    """

    labelled_batch_size: int = 100
    matching: Matching = "squared"
    pull_away: float = 0.0
    variational: float = 0.0
    entropy: VariationalEntropy = field(default_factory=VariationalEntropy)
    low_density: LowDensity | None = None
    conditional_entropy: float = 0.0
    entropy_over: Literal["classes", "all"] = "classes"
    unlabelled_weight: float = 1.0
    separate_generator_batch: bool = False
    complement_quantile: float | None = None


@dataclass(frozen=True, eq=False)
class ComplementGan:
    """The game of a classifier and a generator, on unlabelled points and these labelled ones; LD needs the `density`. With a
    `complement` only the classifier learns, and generated points are of that sampler."""

    labelled: Points
    config: ComplementGanConfig = ComplementGanConfig()
    density: Density | None = None
    complement: UniformComplement | None = None

    def __post_init__(self) -> None:
        if (self.config.complement_quantile is None) != (self.complement is None):
            raise ValueError(
                f"complement_quantile is {self.config.complement_quantile} and complement is {self.complement}: an ideal "
                f"complement has both. Nothing was learnt; give both, or none."
            )
        if self.config.low_density is not None and self.density is None:
            raise ValueError(
                "LowDensity needs a density and its threshold, and there is none. Nothing was learnt; pass density."
            )

    def __call__(self, target: Game, data: Points, *, rng: SeededRng, step: int = 0) -> Loss:
        config = self.config
        chosen = rng.permutation(len(self.labelled))[: config.labelled_batch_size]
        labelled = self.labelled.rows(chosen).to(data.values.device)
        assert labelled.labels is not None
        half = len(data) // 2 if config.separate_generator_batch else len(data)
        z = target.generator.draw_noise(half, rng=rng)
        generated = target.generator(z) if self.complement is None else self.complement.draw(half, rng=rng).to(z.device)
        parts = [labelled.values, data.values[:half], generated]
        features = torch.split(target.discriminator.features(torch.cat(parts)), [len(part) for part in parts])
        labelled_logits, logits, fake = (target.discriminator.head(part) for part in features)
        supervised = cross_entropy(labelled_logits, labelled.labels)
        real_or_generated = real_or_generated_loss(logits, fake)
        class_entropy = class_entropy_loss(logits, config.entropy_over)
        unsupervised = config.unlabelled_weight * real_or_generated
        losses = {"discriminator": supervised + unsupervised + config.conditional_entropy * class_entropy}
        metrics = {"supervised": float(supervised.detach()), "apart": float(real_or_generated.detach())}
        if self.complement is not None:
            return Loss(losses, metrics, half)
        real = target.discriminator.features(data.values[half:]) if config.separate_generator_batch else features[1]
        generator = feature_matching_loss(real, features[2], config.matching)
        if config.pull_away:
            generator = generator + config.pull_away * pull_away_loss(features[2])
        if config.low_density is not None and self.density is not None:
            generator = generator + config.low_density(generated, self.density, rng=rng.stream("generator"), step=step)
        losses["generator"] = generator
        if target.inference is not None:
            losses["inference"] = config.entropy(target, z, generated)
            losses["generator"] = generator + config.variational * losses["inference"]
        return Loss(losses, metrics, half)


@dataclass(frozen=True)
class Supervised:
    """The classifier by itself, on labelled points only."""

    def __call__(self, target: Game, data: Points, *, rng: SeededRng, step: int = 0) -> Loss:
        assert data.labels is not None
        return Loss({"discriminator": cross_entropy(target.discriminator(data.values), data.labels)}, count=len(data))


def real_or_generated_loss(real: Float[Tensor, "N K"], generated: Float[Tensor, "M K"]) -> Tensor:
    """-log P(one of the classes) of real points, and -log P(generated) of generated ones, by their logits."""
    return softplus(-real.logsumexp(-1)).mean() + softplus(generated.logsumexp(-1)).mean()


def class_entropy_loss(logits: Float[Tensor, "N K"], over: Literal["classes", "all"]) -> Tensor:
    """-sum over K classes of p log p, where p is normalised over these classes, or over these and "generated"."""
    logsumexp = logits.logsumexp(-1, keepdim=True)
    log_prob = logits - (logsumexp if over == "classes" else softplus(logsumexp))
    return -(log_prob.exp() * log_prob).sum(-1).mean()


def feature_matching_loss(real: Float[Tensor, "N F"], generated: Float[Tensor, "M F"], form: Matching) -> Tensor:
    """The distance of the mean features of real and generated points."""
    gap = real.mean(0) - generated.mean(0)
    return {"squared": gap.square().sum(), "mean-square": gap.square().mean(), "absolute": gap.abs().mean()}[form]


def pull_away_loss(features: Float[Tensor, "N F"]) -> Tensor:
    """The mean squared cosine of the features of two different points."""
    cosine = normalize(features) @ normalize(features).T
    count = len(features)
    return (cosine.square().sum() - cosine.diagonal().square().sum()) / (count * (count - 1))
