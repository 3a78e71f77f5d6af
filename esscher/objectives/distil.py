"""Distillation: bring a student pi, any plain base, near a tilted teacher p(x) = a(x) exp(-E(x)) / Z.

`Distil` minimises the student's cross-entropy under the teacher, with draws from any sampler of the teacher; `ReweightedDistil`
from given draws of the base. `PolicyGradient` draws from the student itself (distributional policy gradient; Khalifa et al.,
2021; Go et al., 2023). With t(x) = pi(x) / p(x),

    D_f = E_p[f(t)],    gradient of D_f = E_pi[ f'(t) gradient of log pi ],

and any constant may be subtracted from f' as a baseline. `Distil` and `PolicyGradient` use only the prompts of `data`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from esscher.bases.logits import require_logits
from esscher.core.device import place
from esscher.core.draws import Sampler
from esscher.core.objective import Loss
from esscher.core.randomness import Rng
from esscher.core.space import Sequences
from esscher.core.target import Tilted
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Importance
from esscher.samplers.scoring import log_prob, log_weight

F_DIVERGENCE_DERIVATIVES: Mapping[str, Callable[[Tensor], Tensor]] = {
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
        share = place(torch.softmax(drawn.log_weight, -1), data.tokens.device)
        score = target.base.log_probs(drawn.x).sum(-1).view(share.shape)
        tokens = (share * drawn.x.lengths.view(share.shape)).sum()
        nll = -(share * score).sum() / tokens
        return Loss(nll, {"nll": float(nll.detach()), "ess": float(drawn.ess().mean())}, len(data))


@dataclass(frozen=True)
class ReweightedDistil:
    """The student's cross-entropy under the teacher, from `data` that were drawn from the teacher's base.

    With w = exp(-E) / Z, whose mean under the base a is 1,

        E_p[-log pi] = E_a[(w - 1) (-log pi)] + E_a[-log pi],

    and the last term is a sum of cross-entropies between the next-token distributions of a and pi, computed exactly along a
    draw, so its gradient vanishes where the student is the base. Both bases must give whole distributions (`LogitBase`), which
    are held in memory for all tokens of a batch. The value is per position of the longest point. `log_z` is that of the one
    prompt, or that of each by its key (`Sequences.prompt_keys`).
    """

    teacher: Tilted
    log_z: float | Mapping[tuple[int, ...], float]

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        student, base = (require_logits(base, "ReweightedDistil") for base in (target.base, self.teacher.base))
        with torch.no_grad():
            normaliser: float | Tensor
            if isinstance(self.log_z, Mapping):
                normaliser = torch.tensor([self.log_z[key] for key in data.prompt_keys()], dtype=torch.float64)
            else:
                normaliser = self.log_z
            surplus = (log_weight(self.teacher, data) - normaliser).exp() - 1
            dense = torch.softmax(base.logits(data), -1)
        log_prob = torch.log_softmax(student.logits(data), -1)
        token_log_prob = log_prob.gather(-1, data.tokens[..., None])[..., 0]
        known = (dense * log_prob).sum(-1)
        each = torch.where(data.counted, surplus.to(token_log_prob)[:, None] * token_log_prob + known, 0.0).sum(-1)
        value = -each.mean() / target.space.max_length
        return Loss(value, {"surplus": float(surplus.abs().mean())}, len(data))


@dataclass(frozen=True)
class PolicyGradient:
    """A surrogate with the gradient of the divergence between teacher and student, from the student's draws. `log_z` is that of
    the teacher; None estimates it for each prompt from the same draws, which is consistent in `draws`. The baseline is the mean
    of f' over the other draws of a prompt."""

    teacher: Tilted
    divergence: str = "kl"
    draws: int = 64
    log_z: float | None = None
    baseline: bool = True
    sampler: Sampler = field(default_factory=Ancestral)  # of the student

    def __post_init__(self) -> None:
        if self.divergence not in F_DIVERGENCE_DERIVATIVES:
            raise ValueError(f"No divergence named {self.divergence!r}. Choose from: {', '.join(F_DIVERGENCE_DERIVATIVES)}.")
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
        slope = F_DIVERGENCE_DERIVATIVES[self.divergence](log_z - log_ratio)
        advantage = slope
        if self.baseline:  # over the other draws, if they are independent, so that the gradient is unbiased
            mean = (share * slope).sum(-1, keepdim=True)
            advantage = slope - ((mean - share * slope) / (1 - share) if drawn.independent else mean.expand(slope.shape))
        score = target.base.log_probs(drawn.x).sum(-1).view(share.shape)
        value = (place(share * advantage, score.device) * score).sum(-1).mean()
        return Loss(value, _metrics(log_ratio - log_z, share), len(data))


def _metrics(log_weight: Float[Tensor, "P N"], share: Float[Tensor, "P N"]) -> dict[str, float]:
    """Effective share of the student's draws, and both Kullback-Leibler divergences from the teacher."""
    weight = share * log_weight.exp()
    total = weight.sum(-1)
    return {
        "effective_share": float((total**2 / (weight**2 / share).sum(-1)).mean()),
        "kl": float(((weight * log_weight).sum(-1) / total - total.log()).mean()),
        "reverse_kl": float((-(share * log_weight).sum(-1)).mean()),
    }
