"""E-Forcing: likelihood, and an autoregressive model as an energy-based model of its own prefixes (Anonymous, 2023).

Softmax does not see the level of the logits f, lse = logsumexp f, so it is free to carry an energy. For every position k of a
point, q being the model, prefixes and next tokens that have not ended before k have the distribution

    p_k(x_k, x_<k) = q(x_<k) exp f(x_k | x_<k) / Z_k,    Z_k = E_q[exp lse_k],

and the objective is the likelihood per token plus sum over k of lambda_k KL(data || p_k), per token too, where

    KL(data || p_k) = const - E_data[log q(x_<=k)] + ( log Z_k - E_data[lse_k] ).

The first part is the likelihood of longer prefixes; the bracket is minus the Donsker-Varadhan bound on KL(data prefixes ||
model prefixes), with the level as its critic. The gradient of log Z_k is E_q[w_k (grad lse_k + grad log q(x_<k))], with
weights w_k proportional to exp lse_k over fresh draws of the model after the prompts of the data. Neither weights nor draws
are differentiated. As E_q[grad log q] = 0, prefixes count by w_k - 1, which varies much less from draw to draw. In data with
prompts (or streams) a prompt belongs to the prefix: one Z_k for all.

A token of the data counts in the likelihood and again, through E_data[log q(x_<=k)], in every later k: early ones much more
than late ones. With `counts = "once"` that part is left out, and the objective is likelihood less the bounds: the model learns
from what tells its prefixes from the data's, and nothing else. `docs/why/eforcing.md` has what becomes of it.

With the `Exhaustive` sampler the gradient is exact. What it leaves out: positions that no draw reaches.
"""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esscher.bases.logits import scores_and_levels
from esscher.draws import Sampler
from esscher.objective import Loss
from esscher.objectives.combine import Schedule, at_step
from esscher.objectives.likelihood import Likelihood, loss_of, tokens_of
from esscher.randomness import Rng
from esscher.samplers.ancestral import Ancestral
from esscher.space import Sequences, by_position
from esscher.target import Tilted


@dataclass(frozen=True)
class EForcing:
    """Likelihood plus `weight` decay^k KL(data || p_k), summed over the positions k of a point, per token.

    While the weight is 0 it is `Likelihood` itself. `inner` is how the negative phase treats the next token: its exact
    expectation, or the one that was drawn. Weights of draws above `clip` times their mean are cut to it, then brought back to
    their mean; None cuts nothing. `draws` are made after each row of the data by `sampler`. With `counts` "once" instead of
    "again" the divergences are without the likelihood of their prefixes.
    """

    weight: float | Schedule = 0.3
    decay: float = 0.9
    inner: str = "exact"  # or sampled
    clip: float | None = None
    label_smoothing: float = 0.0
    counts: str = "again"  # or once
    draws: int = 1
    sampler: Sampler = field(default_factory=Ancestral)

    def __post_init__(self) -> None:
        if self.inner not in ("exact", "sampled"):
            raise ValueError(f"No inner expectation named {self.inner!r}. Choose from: exact, sampled.")
        if self.counts not in ("again", "once"):
            raise ValueError(f"Tokens of the data count 'again' at later positions or 'once', not {self.counts!r}.")
        if not 0 < self.decay <= 1:
            raise ValueError(f"The decay of the weights from position to position lies in (0, 1], not {self.decay}.")
        if self.clip is not None and self.clip < 1:
            raise ValueError(f"Weights are clipped at no less than their mean: clip is at least 1, not {self.clip}.")
        if not callable(self.weight) and not (math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError(f"The weight of the energy is at least 0, not {self.weight}.")
        if self.draws < 1:
            raise ValueError(f"At least one draw is made after each row, not {self.draws}.")
        Likelihood(self.label_smoothing)  # refuses what it cannot be

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        weight = at_step(self.weight, step)
        if weight == 0:
            return Likelihood(self.label_smoothing)(target, data, rng=rng, step=step)
        base = target.base
        drawn = self._sampler(int(data.lengths.max()))(Tilted(base), data.prompts(), self.draws, rng=rng)
        share = (torch.log_softmax(drawn.log_weight, -1) - math.log(len(data))).flatten()
        negative = _Phase.of(drawn.x, *scores_and_levels(base, drawn.x))
        value, score, level = Likelihood(self.label_smoothing).and_levels(base, data)
        positive, tokens = _Phase.of(data, score, level), tokens_of(data)
        contrast, metrics = self._contrast(positive, negative.cut(positive.there.shape[1]), share.to(score))
        nll = {"nll": float(-score.detach().sum() / tokens), "contrast": float(contrast.detach()), "weight": weight}
        return loss_of(base, value + weight * contrast, {**nll, **metrics}, tokens)

    def _sampler(self, longest: int) -> Sampler:
        """The sampler, which need not draw further than the data go where it can stop."""
        if not isinstance(self.sampler, Ancestral):
            return self.sampler
        return Ancestral(longest if self.sampler.longest is None else min(longest, self.sampler.longest))

    def _contrast(
        self, positive: "_Phase", negative: "_Phase", share: Float[Tensor, "N"]
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """The sum over positions, per token of the data, and what became of the weights of the draws."""
        log_z, surrogate, weights = self._negative(negative, share)
        rows = positive.there.sum(0)
        reached = negative.there.any(0) & (rows > 0)
        known = positive.prefix + positive.score + positive.level if self.counts == "again" else positive.level
        own = torch.where(positive.there, known, 0.0).sum(0)
        level = torch.where(positive.there, positive.level, 0.0).sum(0).detach()
        each = rows * (surrogate - surrogate.detach() + log_z) - own
        positions = torch.arange(len(rows), device=own.device, dtype=own.dtype)
        tokens = rows.sum()
        value = (self.decay**positions * torch.where(reached, each, 0.0)).sum() / tokens
        going_on = torch.where(negative.there, share[:, None].exp(), 0.0).sum(0).log()
        bound = torch.where(reached, level - rows * (log_z - going_on), 0.0).sum() / torch.where(reached, rows, 0).sum()
        effective = weights.square().sum(0).reciprocal() / negative.there.sum(0)
        shares = (torch.where(reached, effective * rows, 0.0).sum() / torch.where(reached, rows, 0).sum()).item()
        return value, {"exposure": float(bound), "effective_share": shares, "reached": float(rows[reached].sum() / tokens)}

    def _negative(
        self, negative: "_Phase", share: Float[Tensor, "N"]
    ) -> tuple[Float[Tensor, "L"], Float[Tensor, "L"], Float[Tensor, "N L"]]:
        """log Z_k; what has the gradient that it has; and the weights of the draws at each position, which sum to 1."""
        log_weight = torch.where(negative.there, share[:, None] + negative.level.detach(), -torch.inf)
        log_z = log_weight.logsumexp(0)
        weights = torch.where(negative.there, (log_weight - log_z).exp(), 0.0)
        if self.clip is not None:
            weights = weights.clamp(max=self.clip / negative.there.sum(0).clamp(min=1))
            weights = weights / weights.sum(0).clamp(min=torch.finfo(weights.dtype).tiny)
        next_token = negative.level + negative.score if self.inner == "sampled" else negative.level
        surrogate = weights * next_token + (weights - share[:, None].exp()) * negative.prefix  # those that have ended too
        return log_z, surrogate.sum(0), weights


@dataclass(frozen=True)
class _Phase:
    """What a base says of points, by the position in the point: of the next token, of all tokens before it, and its level."""

    there: Bool[Tensor, "N L"]
    score: Float[Tensor, "N L"]
    prefix: Float[Tensor, "N L"]
    level: Float[Tensor, "N L"]

    @classmethod
    def of(cls, x: Sequences, score: Float[Tensor, "N T"], level: Float[Tensor, "N T"]) -> "_Phase":
        """Points moved to the left, over their prompts."""
        longest = int(x.lengths.max())
        there = torch.arange(longest, device=x.tokens.device) < x.lengths[:, None]
        own, levels = (by_position(x, part, longest) for part in (score, level))
        return cls(there, own, own.cumsum(1) - own, levels)

    def cut(self, length: int) -> "_Phase":
        """The first positions only, or more of them where nothing is."""
        parts = (self.there, self.score, self.prefix, self.level)
        more = max(0, length - self.there.shape[1])
        return _Phase(*(torch.nn.functional.pad(part[:, :length], (0, more)) for part in parts))
