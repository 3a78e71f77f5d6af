"""Rejection and quasi-rejection: keep a candidate with probability min(1, weight / bound).

With a true bound the kept draws follow the target exactly. Quasi-rejection (Eikema et al., 2022) allows any
bound: the kept draws follow q(x) min(w(x), bound), and what was proposed is handed back in `info`, from
which `esscher.estimators.divergences.quasi_rejection_gap` estimates how far that is from the target.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.draws import Draws
from esscher.randomness import Rng
from esscher.samplers.importance import Importance
from esscher.space import Sequences, concatenate
from esscher.target import Tilted

LARGEST_ROUND = 2**16  # candidates drawn before looking again
PATIENCE = 1_000_000  # candidates for each draw before giving up


@dataclass(frozen=True)
class Rejection:
    """Exact draws, given `log_bound` >= log weight everywhere; a larger weight is an error, never clamped."""

    log_bound: float
    patience: int = PATIENCE

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        return _Keeping(self.log_bound, self.patience, strict=True).draw(target, prompts, draws, rng)


@dataclass(frozen=True)
class QuasiRejection:
    """Draws of a near target, nearer with a higher `log_bound` and dearer; biased, by an amount it lets you estimate."""

    log_bound: float

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        return _Keeping(self.log_bound, PATIENCE, strict=False).draw(target, prompts, draws, rng)


@dataclass(frozen=True)
class _Keeping:
    """Rounds of candidates for the prompts that still wait, sized by the acceptance seen so far."""

    log_bound: float
    patience: int
    strict: bool

    def draw(self, target: Tilted, prompts: Sequences, draws: int, rng: Rng) -> Draws:
        missing = torch.full((len(prompts),), draws)
        rounds: list[_Round] = []
        while bool((missing > 0).any()):
            proposed, accepted = sum(one.proposed for one in rounds), sum(one.accepted for one in rounds)
            if proposed > self.patience * draws * len(prompts):
                raise RuntimeError(
                    f"{int(missing.sum())} of {draws * len(prompts)} draws are still missing after {proposed:,} candidates "
                    f"(acceptance {accepted / proposed:.2g}). Those found were dropped; lower log_bound, tilt less, or use "
                    f"Pool."
                )
            waiting = missing.nonzero()[:, 0]
            wanted = 1.1 * int(missing.max()) * (proposed + 1) / (accepted + 1)
            size = math.ceil(min(wanted, max(1, LARGEST_ROUND // len(waiting))))
            batch = Importance()(target, prompts.rows(waiting), size, rng=rng)
            self._check(batch.log_weight)
            take = rng.accept(batch.log_weight - self.log_bound)
            accepted = int(take.sum())
            take &= take.cumsum(-1) <= missing[waiting, None]  # the first ones, in the order drawn
            missing[waiting] -= take.sum(-1)
            rounds.append(_Round(waiting, batch, take, accepted))
        return _joined(rounds, (len(prompts), draws))

    def _check(self, log_weight: Float[Tensor, "P N"]) -> None:
        largest = float(log_weight.max())
        if self.strict and largest > self.log_bound + 1e-5 * max(1.0, abs(self.log_bound)):
            raise ValueError(
                f"Rejection(log_bound={self.log_bound:.4g}) is not a bound: a draw has log weight {largest:.4g}. The draws "
                f"kept so far are biased and were dropped; raise log_bound, or use Metropolis, which needs none, or "
                f"QuasiRejection, which measures its error."
            )


@dataclass(frozen=True)
class _Round:
    """The candidates of one round for the prompts that waited, and which of them are kept."""

    waiting: Int[Tensor, "W"]
    batch: Draws
    take: Bool[Tensor, "W N"]
    accepted: int  # also those that were not needed

    @property
    def proposed(self) -> int:
        return self.batch.cost

    @property
    def rows(self) -> Int[Tensor, "K"]:
        return self.take.view(-1).nonzero()[:, 0]

    @property
    def prompt(self) -> Int[Tensor, "M"]:
        """The prompt of each candidate."""
        return self.waiting.repeat_interleave(self.take.shape[1])


def _joined(rounds: list[_Round], shape: tuple[int, int]) -> Draws:
    """The kept candidates of all rounds, prompt by prompt."""
    order = torch.cat([one.prompt[one.rows] for one in rounds]).argsort(stable=True)
    x = concatenate([one.batch.x.rows(one.rows) for one in rounds]).rows(order)
    log_base = torch.cat([one.batch.log_base.view(-1)[one.rows] for one in rounds])[order].view(shape)
    info = {
        "proposed_prompt": torch.cat([one.prompt for one in rounds]),
        "proposed_log_weight": torch.cat([one.batch.log_weight.view(-1) for one in rounds]),
    }
    cost = sum(one.proposed for one in rounds)
    return Draws(x, torch.zeros_like(log_base), log_base, estimates_z=False, independent=True, cost=cost, info=info)
