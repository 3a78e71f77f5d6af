"""Objectives against exposure bias: scheduled sampling and E-Forcing, which train on the model's own prefixes.

**Scheduled sampling.** The loss is -log q(x_k | mixture before k) per token, with some tokens before k the model's own, drawn
one by one given the mixture before them ("steps", Bengio et al. 2015) or all at once given the data ("passes", Mihaylova and
Martins 2019). Draws are not differentiated, and rows end where the data do.

**E-Forcing.** Likelihood, plus the model q as an energy-based model of its own prefixes (Anonymous, 2023). With logits f, lse =
logsumexp f, and draws that have not ended, for every position k of a point,

    p_k(x_k, x_<k) = q(x_<k) exp f(x_k | x_<k) / Z_k,    Z_k = E_q[exp lse_k],
    KL(data || p_k) = const - E_data[log q(x_<=k)] + ( log Z_k - E_data[lse_k] ),

and the objective is the likelihood plus the sum over k of lambda_k KL(data || p_k), both per token. The bracket is minus the
Donsker-Varadhan bound on KL(data prefixes || model prefixes) with lse as critic. The gradient of log Z_k is E_q[w_k (grad lse_k
+ grad log q(x_<k))], with weights w_k proportional to exp lse_k over fresh draws after the prompts of the data; prefixes are
weighted by w_k - 1 instead, which has less variance, as E_q[grad log q] = 0. There is one Z_k for all prompts. The first part
counts a token of the data again at every later k; with `counts = "once"` it is left out, and Z_k is divided by the probability
that a draw has not ended before k, which it no longer balances (`docs/why/eforcing.md`). Left out: positions that no draw
reaches.
"""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from esscher.bases.logits import LogitBase, log_probs_and_logsumexp, require_logits
from esscher.core.device import place
from esscher.core.draws import Sampler
from esscher.core.objective import Loss
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, point_values
from esscher.core.target import Tilted
from esscher.objectives.combine import LinearRamp
from esscher.objectives.config import EForcingConfig, ScheduledSamplingConfig
from esscher.objectives.likelihood import Likelihood, count_tokens, loss_with_penalty
from esscher.samplers.ancestral import Ancestral


@dataclass(frozen=True)
class ScheduledSampling:
    """Likelihood after prefixes in which a share of the tokens, at random, are the model's own. The share is 0 before step
    `begin` and rises linearly to `config.share` within `ramp_steps` updates; while it is 0 this is `Likelihood` itself."""

    config: ScheduledSamplingConfig = field(default_factory=ScheduledSamplingConfig)
    label_smoothing: float = 0.0
    begin: int = 0
    ramp_steps: int = 0

    def __post_init__(self) -> None:
        Likelihood(self.label_smoothing)  # checks it

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        share = LinearRamp(0.0, self.config.share, self.begin, self.begin + self.ramp_steps)(step)
        if share == 0:
            return Likelihood(self.label_smoothing)(target, data, rng=rng, step=step)
        base, counted = require_logits(target.base, "Scheduled sampling"), data.counted
        log_share = place(torch.full(counted.shape, share, dtype=torch.float64).log(), counted.device)
        use_own = rng.bernoulli(log_share) & counted
        with torch.no_grad():
            if self.config.form == "passes":
                logits = base.logits(data)
                drawn = data.tokens.masked_scatter(counted, rng.categorical(logits[counted])[:, 0])
            else:
                drawn = _sample_sequential(base, data, use_own, rng)
        mixed = torch.where(use_own, drawn, data.tokens)
        logits, answer = base.logits(Sequences(mixed, data.start, data.stop))[counted], data.tokens[counted]
        value = cross_entropy(logits, answer, label_smoothing=self.label_smoothing)
        nll = float(cross_entropy(logits.detach(), answer)) if self.label_smoothing else float(value.detach())
        return loss_with_penalty(base, value, {"nll": nll, "own": share}, count_tokens(data))


def _sample_sequential(base: LogitBase, data: Sequences, use_own: Tensor, rng: Rng) -> Int[Tensor, "B T"]:
    """Tokens of the model at the positions of the data, each given the mixture before it."""
    log_prob, state = base.begin(data.prompts())
    drawn, rows = data.tokens.clone(), torch.arange(len(data), device=use_own.device)
    for t in range(int(data.lengths.max())):
        place = (data.start + t).clamp(max=drawn.shape[1] - 1)
        inside = t < data.lengths
        sampled = rng.categorical(log_prob)[:, 0]
        drawn[rows[inside], place[inside]] = sampled[inside]
        if t + 1 < int(data.lengths.max()):
            token = torch.where(use_own[rows, place], sampled, data.tokens[rows, place])
            log_prob, state = base.advance(state, token)
    return drawn


@dataclass(frozen=True)
class EForcing:
    """Likelihood plus weight decay^k KL(data || p_k), summed over the positions k of a point, per token.

    Before step `begin`, and with weight 0, it is `Likelihood` itself. Draws are made after each row of the data: by default
    by ancestral sampling, no further than the data go, or by `sampler`. Weights above `max_weight` times their mean are cut.
    """

    config: EForcingConfig = field(default_factory=EForcingConfig)
    label_smoothing: float = 0.0
    begin: int = 0
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        Likelihood(self.label_smoothing)  # checks it

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        weight = self.config.weight
        if weight == 0 or step < self.begin:
            return Likelihood(self.label_smoothing)(target, data, rng=rng, step=step)
        base, longest = target.base, int(data.lengths.max())
        sampler = self.sampler or Ancestral(min(longest, self.config.negatives or longest))
        drawn = sampler(Tilted(base), data.prompts(), self.config.draws, rng=rng)
        share = (torch.log_softmax(drawn.log_weight, -1) - math.log(len(data))).flatten()
        negative = _PhaseScores.of(drawn.x, *log_probs_and_logsumexp(base, drawn.x))
        value, score, logsumexp = Likelihood(self.label_smoothing).with_logsumexp(base, data)
        positive, tokens = _PhaseScores.of(data, score, logsumexp), count_tokens(data)
        contrast, metrics = self._contrast(positive, negative.resized(positive.there.shape[1]), share.to(score))
        nll = {"nll": float(-score.detach().sum() / tokens), "contrast": float(contrast.detach()), "weight": weight}
        return loss_with_penalty(base, value + weight * contrast, {**nll, **metrics}, tokens)

    def _contrast(
        self, positive: "_PhaseScores", negative: "_PhaseScores", share: Float[Tensor, "N"]
    ) -> tuple[Float[Tensor, ""], dict[str, float]]:
        """The sum over positions, per token of the data, and metrics of the weights of the draws."""
        log_z, surrogate, weights = self._negative(negative, share)
        rows = positive.there.sum(0)
        reached = negative.there.any(0) & (rows > 0)
        again = self.config.counts == "again"
        data_score = positive.prefix + positive.score + positive.logsumexp if again else positive.logsumexp
        data_total = torch.where(positive.there, data_score, 0.0).sum(0)
        logsumexp = torch.where(positive.there, positive.logsumexp, 0.0).sum(0).detach()
        log_alive = torch.where(negative.there, share[:, None].exp(), 0.0).sum(0).log()
        each = rows * (surrogate - surrogate.detach() + log_z - (0.0 if again else log_alive)) - data_total
        positions = torch.arange(len(rows), device=data_total.device, dtype=data_total.dtype)
        tokens = rows.sum()
        value = (self.config.decay**positions * torch.where(reached, each, 0.0)).sum() / tokens
        bound = torch.where(reached, logsumexp - rows * (log_z - log_alive), 0.0).sum() / torch.where(reached, rows, 0).sum()
        effective = weights.square().sum(0).reciprocal() / negative.there.sum(0)
        shares = (torch.where(reached, effective * rows, 0.0).sum() / torch.where(reached, rows, 0).sum()).item()
        return value, {"exposure": float(bound), "effective_share": shares, "reached": float(rows[reached].sum() / tokens)}

    def _negative(
        self, negative: "_PhaseScores", share: Float[Tensor, "N"]
    ) -> tuple[Float[Tensor, "L"], Float[Tensor, "L"], Float[Tensor, "N L"]]:
        """log Z_k, a surrogate with its gradient, and the normalised weights of the draws at each position."""
        log_weight = torch.where(negative.there, share[:, None] + negative.logsumexp.detach(), -torch.inf)
        log_z = log_weight.logsumexp(0)
        weights = torch.where(negative.there, (log_weight - log_z).exp(), 0.0)
        if self.config.max_weight is not None:
            weights = weights.clamp(max=self.config.max_weight / negative.there.sum(0).clamp(min=1))
            weights = weights / weights.sum(0).clamp(min=torch.finfo(weights.dtype).tiny)
        next_token = negative.logsumexp + negative.score if self.config.inner == "sampled" else negative.logsumexp
        baseline = share[:, None].exp().expand_as(weights)  # also of draws that have ended
        if self.config.counts == "once":  # log Z_k given that prefixes have not ended: log Z_k itself would reward ending early
            alive = torch.where(negative.there, baseline, 0.0)
            baseline = alive / alive.sum(0).clamp(min=torch.finfo(alive.dtype).tiny)
        surrogate = weights * next_token + (weights - baseline) * negative.prefix
        return log_z, surrogate.sum(0), weights


@dataclass(frozen=True)
class _PhaseScores:
    """By position in the point: log-probability of the token, of all tokens before it, and logsumexp of the logits."""

    there: Bool[Tensor, "N L"]
    score: Float[Tensor, "N L"]
    prefix: Float[Tensor, "N L"]
    logsumexp: Float[Tensor, "N L"]

    @classmethod
    def of(cls, x: Sequences, score: Float[Tensor, "N T"], logsumexp: Float[Tensor, "N T"]) -> "_PhaseScores":
        """Re-index scores per column by position in the point."""
        longest = int(x.lengths.max())
        there = torch.arange(longest, device=x.tokens.device) < x.lengths[:, None]
        scores, logsumexps = (point_values(x, part, longest) for part in (score, logsumexp))
        return cls(there, scores, scores.cumsum(1) - scores, logsumexps)

    def resized(self, length: int) -> "_PhaseScores":
        """The first `length` positions, padded with empty ones."""
        parts = (self.there, self.score, self.prefix, self.logsumexp)
        more = max(0, length - self.there.shape[1])
        return _PhaseScores(*(torch.nn.functional.pad(part[:, :length], (0, more)) for part in parts))
