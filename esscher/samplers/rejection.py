"""Rejection and quasi-rejection: keep a candidate with probability min(1, weight / bound).

With a true bound the kept draws follow the target exactly. Quasi-rejection (Eikema et al., 2022) allows any
bound: the kept draws follow q(x) min(w(x), bound), and what was proposed is handed back in `info`, from
which `esscher.estimators.divergences.quasi_rejection_gap` estimates how far that is from the target.
"""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.draws import Draws, Sampler
from esscher.randomness import Rng
from esscher.samplers.importance import Importance
from esscher.space import Sequences, concatenate
from esscher.target import Tilted

LARGEST_ROUND = 2**16  # candidates drawn before looking again


@dataclass(frozen=True)
class Rejection:
    """Exact draws, given `log_bound` >= log weight everywhere; a larger weight is an error, never clamped."""

    log_bound: float
    candidates: Sampler = field(default_factory=Importance)
    patience: float = 1e6  # candidates for each draw before giving up

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        def check(log_weight: Float[Tensor, "P N"]) -> None:
            if float(log_weight.max()) > self.log_bound + 1e-5 * max(1.0, abs(self.log_bound)):
                raise ValueError(
                    f"Rejection(log_bound={self.log_bound:.4g}) is not a bound: a draw has log weight "
                    f"{float(log_weight.max()):.4g}. The draws kept so far are biased and were dropped; raise log_bound, "
                    f"or use Metropolis, which needs none, or QuasiRejection, which measures its error."
                )

        return _keep(self, target, prompts, draws, rng, check)


@dataclass(frozen=True)
class QuasiRejection:
    """Draws of a near target, nearer with a higher `log_bound` and dearer; biased, by an amount it lets you estimate."""

    log_bound: float
    candidates: Sampler = field(default_factory=Importance)
    patience: float = 1e6

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        return _keep(self, target, prompts, draws, rng, lambda log_weight: None)


def _keep(settings, target: Tilted, prompts: Sequences, draws: int, rng: Rng, check) -> Draws:  # type: ignore[no-untyped-def]
    """Rounds of candidates for the prompts that still wait, sized by the acceptance seen so far."""
    device = prompts.tokens.device
    missing = torch.full((len(prompts),), draws, device=device)
    kept: list[tuple[Int[Tensor, "K"], Sequences, Float[Tensor, "K"]]] = []
    proposed_prompt, proposed_log_weight = [], []
    proposed, accepted = 0, 0
    while bool((missing > 0).any()):
        if proposed > settings.patience * draws * len(prompts):
            raise RuntimeError(
                f"{int(missing.sum())} of {draws * len(prompts)} draws are still missing after {proposed:,} candidates "
                f"(acceptance {accepted / proposed:.2g}). Those found were dropped; lower log_bound, tilt less, or use Pool."
            )
        waiting = missing.nonzero()[:, 0]
        rate = (accepted + 1) / (proposed + 1)
        size = math.ceil(min(1.1 * int(missing.max()) / rate, max(1, LARGEST_ROUND // len(waiting))))
        batch = settings.candidates(target, prompts.rows(waiting), size, rng=rng)
        check(batch.log_weight)
        take = rng.accept(batch.log_weight - settings.log_bound)
        proposed, accepted = proposed + batch.cost, accepted + int(take.sum())
        proposed_prompt.append(waiting.repeat_interleave(size))
        proposed_log_weight.append(batch.log_weight.reshape(-1))
        take &= take.cumsum(-1) <= missing[waiting, None]  # the first ones, in the order drawn
        missing[waiting] -= take.sum(-1)
        rows = take.reshape(-1).nonzero()[:, 0]
        kept.append((waiting[rows // size], batch.x.rows(rows), batch.log_base.reshape(-1)[rows]))
    order = torch.cat([prompt for prompt, _, _ in kept]).argsort(stable=True)
    x = concatenate([x for _, x, _ in kept]).rows(order)
    log_base = torch.cat([log_base for _, _, log_base in kept])[order].view(len(prompts), draws)
    info = {"proposed_prompt": torch.cat(proposed_prompt), "proposed_log_weight": torch.cat(proposed_log_weight)}
    zeros = torch.zeros_like(log_base)
    return Draws(x, zeros, log_base, estimates_z=False, independent=True, cost=proposed, info=info)
