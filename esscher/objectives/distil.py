"""Distillation: bring a student, any plain base, near a tilted teacher p(x) = a(x) exp(-E(x)) / Z.

`Distil` minimises the student's cross-entropy under the teacher, with draws from any sampler of the teacher.
`Reweighted` does so from given draws of the base, with a control variate that leaves a student near the base at rest.
`PolicyGradient` draws from the student itself and minimises a divergence by its score-function gradient
(distributional policy gradient; Khalifa et al., 2021; Go et al., 2023). With t(x) = pi(x) / p(x),

    D_f = E_p[f(t)],    gradient of D_f = E_pi[ f'(t) gradient of log pi ],

and any constant may be taken from f', which is the baseline. In `Distil` and `PolicyGradient`, `data` only brings the
prompts. What it leaves out: how the draws are collected, kept and turned into a model folder (`esscher.verbs.distillation`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from esscher.bases.logits import LogitBase
from esscher.draws import Draws, Sampler
from esscher.objective import Loss
from esscher.randomness import Rng
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Importance
from esscher.samplers.scores import log_prob, log_weight
from esscher.space import Sequences
from esscher.target import Tilted

SLOPES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "kl": lambda log_t: -torch.exp(-log_t),
    "reverse-kl": lambda log_t: log_t + 1,
    "total-variation": lambda log_t: torch.sign(log_t) / 2,
    "jensen-shannon": lambda log_t: (math.log(2) - softplus(-log_t)) / 2,
}
"""f'(t) from log t. The first is KL(teacher || student), the second KL(student || teacher)."""


@dataclass(frozen=True)
class Distil:
    """Mean negative log-likelihood per token of the student under the teacher, from weighted draws of the teacher."""

    teacher: Tilted
    sampler: Sampler = field(default_factory=Importance)
    draws: int = 32

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        drawn = self.sampler(self.teacher, data.prompts(), self.draws, rng=rng)
        share = torch.softmax(drawn.log_weight, -1).to(data.tokens.device)
        score = target.base.log_probs(drawn.x).sum(-1).view(share.shape)
        tokens = (share * drawn.x.lengths.view(share.shape)).sum()
        nll = -(share * score).sum() / tokens
        return Loss(nll, {"nll": float(nll.detach()), "effective": float(drawn.effective().mean())}, len(data))


@dataclass(frozen=True)
class Reweighted:
    """The student's cross-entropy under the teacher, from `data` that were drawn from the teacher's base.

    With w = exp(-E) / Z, whose mean under the base a is 1,

        E_p[-log pi] = E_a[(w - 1) (-log pi)] + E_a[-log pi],

    and the last term is a sum of cross-entropies between a's and pi's distributions of each next token, known without
    chance along a draw: its gradient vanishes where the student is the base. Draws that the energy does not care about,
    w near 1, then move nothing. Both bases must tell whole distributions (`LogitBase`), held for all tokens of a batch. The
    value is per position of the longest point.
    """

    teacher: Tilted
    log_z: float

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        student, base = target.base, self.teacher.base
        if not (isinstance(student, LogitBase) and isinstance(base, LogitBase)):
            wrong = type(base if isinstance(student, LogitBase) else student).__name__
            raise ValueError(f"{wrong} has no `logits`, which this needs of both models. Nothing was computed; use Distil.")
        with torch.no_grad():
            surplus = (log_weight(self.teacher, data) - self.log_z).exp() - 1
            dense = torch.softmax(base.logits(data), -1)
        log_prob = torch.log_softmax(student.logits(data), -1)
        own = log_prob.gather(-1, data.tokens[..., None])[..., 0]
        known = (dense * log_prob).sum(-1)
        each = torch.where(data.counted, surplus.to(own)[:, None] * own + known, 0.0).sum(-1)
        value = -each.mean() / target.space.max_length
        return Loss(value, {"surplus": float(surplus.abs().mean())}, len(data))


@dataclass(frozen=True)
class PolicyGradient:
    """A surrogate whose gradient is that of the divergence between teacher and student, from the student's draws.

    `log_z` is the teacher's, where it is known; None estimates it for each prompt from the same draws, which is
    consistent in `draws`. The baseline is the mean slope of a prompt's other draws.
    """

    teacher: Tilted
    divergence: str = "kl"
    draws: int = 64
    log_z: float | None = None
    baseline: bool = True
    sampler: Sampler = field(default_factory=Ancestral)  # of the student

    def __post_init__(self) -> None:
        if self.divergence not in SLOPES:
            raise ValueError(f"No divergence named {self.divergence!r}. Choose from: {', '.join(SLOPES)}.")
        if self.draws < 2:
            raise ValueError(f"A policy gradient compares draws of one prompt, so it needs at least 2, not {self.draws}.")

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        drawn = self.sampler(Tilted(target.base), data.prompts(), self.draws, rng=rng)
        share = torch.softmax(drawn.log_weight, -1)
        log_p = (log_prob(self.teacher.base, drawn.x) + log_weight(self.teacher, drawn.x)).view(share.shape)
        log_ratio = log_p - drawn.log_base  # log of the weight of a draw: its mean is Z
        if self.log_z is None:
            log_z = torch.logsumexp(log_ratio + share.log(), -1, keepdim=True)
        else:
            log_z = torch.full((len(share), 1), self.log_z, dtype=torch.float64)
        slope = SLOPES[self.divergence](log_z - log_ratio)
        advantage = slope - _mean_of_others(slope, share, drawn) if self.baseline else slope
        score = target.base.log_probs(drawn.x).sum(-1).view(share.shape)
        value = ((share * advantage).to(score.device) * score).sum(-1).mean()
        return Loss(value, _metrics(log_ratio - log_z, share), len(data))


def _mean_of_others(slope: Float[Tensor, "P N"], share: Float[Tensor, "P N"], drawn: Draws) -> Float[Tensor, "P N"]:
    """The mean slope of the other draws where they are independent, so that the gradient stays unbiased; else of all."""
    mean = (share * slope).sum(-1, keepdim=True)
    return (mean - share * slope) / (1 - share) if drawn.independent else mean.expand(slope.shape)


def _metrics(log_weight: Float[Tensor, "P N"], share: Float[Tensor, "P N"]) -> dict[str, float]:
    """How far the student still is: the effective share of its draws, and both Kullback-Leibler divergences."""
    weight = share * log_weight.exp()
    total = weight.sum(-1)
    return {
        "effective_share": float((total**2 / (weight**2 / share).sum(-1)).mean()),
        "kl": float(((weight * log_weight).sum(-1) / total - total.log()).mean()),
        "reverse_kl": float((-(share * log_weight).sum(-1)).mean()),
    }
