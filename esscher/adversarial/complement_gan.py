"""Learning classes from few labels beside a generator of what lies between them (Dai et al. 2017b).

The discriminator has K logits and a further class, "generated", whose logit is 0. With l the log-sum-exp of the logits it
minimises

    cross-entropy of labelled points + E_data[softplus(-l)] + E_gen[softplus(l)] + weight * E_data[entropy of the class]

and the generator the distance of mean features (FM), and, each if wanted, the pull-away term (PT), a bound of minus its entropy
(VI) and the density above a threshold (LD). A perfect generator adds nothing (Proposition 4); one of the complement puts the
boundaries where there are no data. Letters: N points, F features, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, softplus

from esscher.adversarial.calibration import VariationalEntropy
from esscher.adversarial.networks import Game
from esscher.adversarial.points import Points
from esscher.objective import Loss
from esscher.randomness import Continuous

Matching = Literal["squared", "mean-square", "absolute"]


@dataclass(frozen=True)
class LowDensity:
    """Penalises generated points whose log-density, differentiable and not learnt here, is above a threshold.

    The value is the mean excess over the points that exceed it. As released it counts only after `start` updates, in a `share`
    of them, for `points` of the batch.
    """

    log_density: Callable[[Tensor], Tensor]
    threshold: float
    weight: float = 1.0
    start: int = 0
    share: float = 1.0
    points: int | None = None

    def __call__(self, made: Float[Tensor, "N *S"], *, rng: Continuous, step: int) -> Tensor:
        chosen = rng.accept(torch.tensor([self.share], dtype=torch.float64).log())
        if step < self.start or not bool(chosen):
            return made.new_zeros(())
        excess = (self.log_density(made[: self.points]) - self.threshold).clamp(min=0)
        return self.weight * (excess.sum() / (excess > 0).sum().clamp(min=1)).to(made.dtype)


@dataclass(frozen=True, eq=False)
class ComplementGan:
    """The game of a classifier and a generator, on unlabelled points and these labelled ones.

    `matching` is the squared norm of the difference of mean features (the paper), its mean square (the released code for MNIST)
    or its mean absolute value (the code for SVHN and CIFAR-10). `unlabelled` weighs what is said of unlabelled
    and generated points: 1 in the paper, 0.5 as released. With `fresh` the first half of a batch is the discriminator's, and
    the other one the generator's. An inference net in the game needs a `variational` weight.
    """

    labelled: Points
    batch_size: int = 100
    matching: Matching = "squared"
    pull_away: float = 0.0
    variational: float = 0.0
    entropy: VariationalEntropy = field(default_factory=VariationalEntropy)
    low_density: LowDensity | None = None
    conditional_entropy: float = 0.0
    unlabelled: float = 1.0
    fresh: bool = False

    def __call__(self, target: Game, data: Points, *, rng: Continuous, step: int = 0) -> Loss:
        chosen = rng.permutation(len(self.labelled))[: self.batch_size]
        labelled = self.labelled.rows(chosen).to(data.values.device)
        assert labelled.labels is not None
        half = len(data) // 2 if self.fresh else len(data)
        z = target.generator.draw_noise(half, rng=rng)
        made = target.generator(z)
        parts = [labelled.values, data.values[:half], made]
        features = torch.split(target.discriminator.features(torch.cat(parts)), [len(part) for part in parts])
        told, logits, fake = (target.discriminator.head(part) for part in features)
        supervised = cross_entropy(told, labelled.labels)
        apart = real_or_made(logits, fake)
        uncertain = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
        real = target.discriminator.features(data.values[half:]) if self.fresh else features[1]
        losses = {
            "discriminator": supervised + self.unlabelled * apart + self.conditional_entropy * uncertain,
            "generator": self._generator(real, features[2], made, rng=rng.stream("generator"), step=step),
        }
        if target.inference is not None:
            losses["inference"] = self.entropy(target, z, made)
            losses["generator"] = losses["generator"] + self.variational * losses["inference"]
        metrics = {"supervised": float(supervised.detach()), "apart": float(apart.detach())}
        return Loss(losses, metrics, half)

    def _generator(self, real: Tensor, features: Tensor, made: Tensor, *, rng: Continuous, step: int) -> Tensor:
        loss = matched(real, features, self.matching)
        if self.pull_away:
            loss = loss + self.pull_away * pulled_away(features)
        if self.low_density is not None:
            loss = loss + self.low_density(made, rng=rng, step=step)
        return loss


@dataclass(frozen=True)
class Supervised:
    """The classifier by itself, on labelled points only."""

    def __call__(self, target: Game, data: Points, *, rng: Continuous, step: int = 0) -> Loss:
        assert data.labels is not None
        return Loss({"discriminator": cross_entropy(target.discriminator(data.values), data.labels)}, count=len(data))


def real_or_made(real: Float[Tensor, "N K"], made: Float[Tensor, "M K"]) -> Tensor:
    """-log P(one of the classes) of real points, and -log P(generated) of generated ones, by their logits."""
    return softplus(-real.logsumexp(-1)).mean() + softplus(made.logsumexp(-1)).mean()


def matched(real: Float[Tensor, "N F"], made: Float[Tensor, "M F"], form: Matching) -> Tensor:
    """How far apart the mean features are."""
    apart = real.mean(0) - made.mean(0)
    return {"squared": apart.square().sum(), "mean-square": apart.square().mean(), "absolute": apart.abs().mean()}[form]


def pulled_away(features: Float[Tensor, "N F"]) -> Tensor:
    """The mean squared cosine of the features of two different points."""
    cosine = normalize(features) @ normalize(features).T
    count = len(features)
    return (cosine.square().sum() - cosine.diagonal().square().sum()) / (count * (count - 1))
