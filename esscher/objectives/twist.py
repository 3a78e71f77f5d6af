"""What a learnt twist minimises, on weighted draws of a base or of an earlier proposal.

With a the base, q the proposal of the twist (`esscher.energies.twist`), w = exp(-E) a / (the law of the draw) divided by Z, and
t the position in a point, x_t the token there:

    likelihood    -w sum_t log q(x_t | x_<t): the cross-entropy of q under the target, whose minimum is the target itself. It
                  leaves the level of psi open, one number for each prefix
    contrastive   contrastive twist learning (Zhao et al., 2024): -sum_t [w log psi(x_<=t)] + log mean_t norm(x_<t), whose
                  gradient is E_p[grad log psi] - E_(a psi)[grad log psi], normalised at each position over the batch
    poisson       the same with Z known: sum_t r_t (norm(x_<t) - w_t log psi(x_<=t)), whose minimum is the conditional mean
    relative      sum_t [w_t / psi(x_<=t) + log psi(x_<=t)]: the same minimum, errors counted relative to it
    bellman       sum_t (log psi(x_<=t) - log norm(x_<=t))^2 with the right side held fixed, -E at the end: path consistency

where norm = sum_v a(v | prefix) psi(prefix, v), r_t is the ratio of base and drawing law up to t, and w_t that after t times
exp(-E) / Z. Sums over the next token are exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esscher.bases.hidden_states import Steps
from esscher.core.objective import Loss
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, point_values
from esscher.energies.twist import TwistedBase

MAX_LOG_RATIO = 10.0  # of a weight to its mean: larger ones would be the whole gradient
TwistForm = Literal["likelihood", "contrastive", "poisson", "relative", "bellman"]


@dataclass(frozen=True)
class TwistRows:
    """Draws, with what they are worth: `log_weight` is -E - offset at the end, `log_ratio` log a - log of the drawing law of
    each token, by its position in the point."""

    x: Sequences
    log_weight: Float[Tensor, "B"]
    log_ratio: Float[Tensor, "B L"]
    steps: Steps | None = None  # of the base over x, where they were kept

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, chosen: Tensor | slice) -> "TwistRows":
        steps = None if self.steps is None else _each(self.steps, lambda part: part[chosen])
        return TwistRows(self.x.rows(chosen), self.log_weight[chosen], self.log_ratio[chosen], steps)

    def split(self, size: int) -> "list[TwistRows]":
        return [self.rows(slice(first, first + size)) for first in range(0, len(self), size)]

    def to(self, device: torch.device | str) -> "TwistRows":
        steps = None if self.steps is None else _each(self.steps, lambda part: part.to(device))
        return TwistRows(self.x.to(device), self.log_weight.to(device), self.log_ratio.to(device), steps)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.x.tokens, self.x.start, self.x.stop, self.log_weight, self.log_ratio


def _each(steps: Steps, change: Callable[[Tensor], Tensor]) -> Steps:
    """The steps with both of their tensors changed."""
    return Steps(change(steps.log_prob), None if steps.hidden is None else change(steps.hidden))


@dataclass(frozen=True)
class TwistLoss:
    """The loss of a twist on a batch of draws: the sum of its forms, per token."""

    forms: tuple[TwistForm, ...] = ("likelihood", "relative")

    def __call__(self, target: TwistedBase, data: TwistRows, *, rng: Rng, step: int = 0) -> Loss:
        x = data.x.without_padding()
        log_base, log_twist = _steps(target, x, data.steps)
        log_norm, length = torch.logsumexp(log_base + log_twist, -1), log_base.shape[1]
        log_psi = log_twist.gather(2, point_values(x, x.tokens, length)[..., None])[..., 0]
        inside = torch.arange(length, device=log_psi.device) < x.lengths[:, None]
        parts = [self._form(name, data, log_psi, log_norm, inside) for name in self.forms]
        tokens = inside.sum()
        return Loss(torch.stack(parts).sum() / tokens, {}, int(tokens))

    def _form(self, name: str, data: TwistRows, log_psi: Tensor, log_norm: Tensor, inside: Bool[Tensor, "B L"]) -> Tensor:
        ratio = data.log_ratio[:, : log_psi.shape[1]].to(log_psi.dtype)
        before = ratio.cumsum(-1) - ratio  # of the tokens before this one
        after = ratio.sum(-1, keepdim=True) - ratio.cumsum(-1)
        value = data.log_weight[:, None].to(log_psi.dtype)
        log_return, log_seen = (value + after).clamp(max=MAX_LOG_RATIO), before.clamp(max=MAX_LOG_RATIO)
        weight = (value + ratio.sum(-1, keepdim=True)).clamp(max=MAX_LOG_RATIO).exp()

        def total(each: Tensor) -> Tensor:
            return torch.where(inside, each, 0.0).sum()

        if name == "likelihood":
            return total(weight * (log_norm - log_psi))
        if name == "poisson":
            return total(log_seen.exp() * (log_norm.clamp(max=MAX_LOG_RATIO).exp() - (log_return + ratio).exp() * log_psi))
        if name == "relative":
            return total((log_return - log_psi).clamp(max=MAX_LOG_RATIO).exp() + log_psi)
        if name == "contrastive":
            share = weight / weight.sum().clamp(min=1e-30)
            rows = torch.where(inside, before + log_norm, -torch.inf).logsumexp(0)
            return (torch.where(inside.any(0), rows, 0.0).sum() - total(share * log_psi)) * len(log_psi)
        assert name == "bellman"
        last = torch.cat([~inside[:, 1:], torch.ones_like(inside[:, :1])], 1)
        following = torch.cat([log_norm[:, 1:], log_norm[:, :1]], 1).detach()
        return total((log_psi - torch.where(last, value.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), following)).square())


def _steps(target: TwistedBase, x: Sequences, kept: Steps | None) -> tuple[Float[Tensor, "B L V"], Float[Tensor, "B L V"]]:
    """The log-probabilities of the base and the log twist before each token, from the steps that were kept if there are any."""
    if kept is None:
        return target.steps_over(x)
    length = int(x.lengths.max())
    return kept.log_prob[:, :length], target.twist.over(x, None if kept.hidden is None else kept.hidden[:, :length])
