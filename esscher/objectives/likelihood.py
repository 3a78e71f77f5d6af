"""Maximum likelihood: of the base alone (`Likelihood`), or of a tilted model (`TiltedLikelihood`).

    -log p(x | c) = -log a(x | c) + E(x | c) + log Z(c),      the gradient of log Z(c) is -E_p[gradient of E]

The expectation is over a sampler's draws with their normalised weights; its bias is of order 1 / effective sample size (the
metric `ess`), and 0 with `Exhaustive`. Rows with equal prompts share their draws. A sampler without an estimate of Z (SIR,
Rejection, Metropolis) gives the gradient; the value then lacks log Z.
"""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.bases.logits import log_probs_and_logsumexp, log_probs_from_logits, require_logits
from esscher.core.device import place, widest
from esscher.core.draws import Draws, Sampler
from esscher.core.objective import Loss
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, unique_prompts
from esscher.core.target import Base, Tilted
from esscher.networks.network import PenalizedNetwork
from esscher.samplers.importance import Importance


@dataclass(frozen=True)
class Likelihood:
    """Mean negative log-likelihood per counted token. `label_smoothing` is the share of the target distribution that is uniform
    over the vocabulary. The penalty of a base that penalises its activations is added."""

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"Label smoothing lies in [0, 1), not {self.label_smoothing}.")

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        tokens = count_tokens(data)
        if self.label_smoothing == 0:
            score = target.base.log_probs(data)
            value = -score.sum() / tokens
        else:
            value, score, _ = self.with_logsumexp(target.base, data)
        return loss_with_penalty(target.base, value, {"nll": float(-score.detach().sum() / tokens)}, tokens)

    def with_logsumexp(
        self, base: Base, data: Sequences
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        """The value without penalty, the log-probabilities, and the logsumexp of the logits, from one pass."""
        tokens = count_tokens(data)
        if self.label_smoothing == 0:
            score, logsumexp = log_probs_and_logsumexp(base, data)
            return -score.sum() / tokens, score, logsumexp
        logits = require_logits(base, "Label smoothing").logits(data)
        score, logsumexp = log_probs_from_logits(logits, data)
        uniform = torch.where(data.counted, logits.mean(-1) - logsumexp, 0.0)
        smoothed = (1 - self.label_smoothing) * score + self.label_smoothing * uniform
        return -smoothed.sum() / tokens, score, logsumexp


def count_tokens(data: Sequences) -> int:
    """The number of tokens of all points; an error if there are none."""
    tokens = int(data.lengths.sum())
    if tokens == 0:
        raise ValueError(f"None of the {len(data)} sequences has a token to learn from: their points are empty.")
    return tokens


def loss_with_penalty(base: Base, value: Float[Tensor, ""], metrics: dict[str, float], tokens: int) -> Loss:
    """A value per token as a loss, plus the penalty that the base has for its last pass, if any."""
    penalty = base.penalty() if isinstance(base, PenalizedNetwork) else None
    if penalty is None:
        return Loss(value, metrics, tokens)
    return Loss(value + penalty, {**metrics, "penalty": float(penalty.detach())}, tokens)


@dataclass(frozen=True)
class TiltedLikelihood:
    """The mean over sequences of E(x) + log Z; with `train_base` also of -log a(x), so that the base learns, too. `draws` are
    made after each distinct prompt."""

    sampler: Sampler = field(default_factory=Importance)
    draws: int = 64
    train_base: bool = False

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ValueError(f"log Z is estimated from at least 1 draw, not {self.draws}.")

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        if len(data) == 0:
            raise ValueError("There is no sequence to learn from. Nothing was computed; give some data.")
        prompts, which = unique_prompts(data)
        drawn = self.sampler(target.unchecked(), prompts, self.draws, rng=rng)  # dropout may be on
        log_z = self._log_z(target, drawn)[which]
        log_score = self._log_score(target, data)
        value = (log_z - log_score).mean()
        metrics = {
            "log_score": float(log_score.detach().mean()),
            "log_z": float(log_z.detach().mean()),
            "ess": float(drawn.ess().mean()),
        }
        return Loss(value, metrics, len(data))

    def _log_z(self, target: Tilted, drawn: Draws) -> Float[Tensor, "P"]:
        """log of the mean weight; its gradient is that of the log score, averaged with the normalised weights. Draws of weight
        0 are left out, because an infinite energy has no gradient."""
        device = drawn.x.tokens.device
        log_weight = place(drawn.log_weight, device)
        has_weight = (log_weight > -torch.inf).view(-1)
        if not bool(has_weight.view(log_weight.shape).any(-1).all()):
            raise ValueError(
                f"All {log_weight.shape[1]} draws of a prompt are forbidden by the energy. Nothing was learnt from this batch; "
                f"raise `draws`, or soften the energy."
            )
        log_score = self._log_score(target, drawn.x.rows(has_weight))
        change = torch.zeros_like(log_weight).view(-1).masked_scatter(has_weight, log_score - log_score.detach())
        return torch.logsumexp(log_weight + change.view(log_weight.shape), -1) - math.log(log_weight.shape[1])

    def _log_score(self, target: Tilted, x: Sequences) -> Float[Tensor, "B"]:
        """log a(x) - E(x), or -E(x) where the base does not learn."""
        return widest(target.log_score(x) if self.train_base else target.log_weight(x))
