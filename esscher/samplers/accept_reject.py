"""Rejection sampling, quasi-rejection sampling and independence Metropolis-Hastings, with candidates of the base or of another
proposal q, whose weights are w(x) = a(x) exp(-E(x)) / q(x). Draws of quasi-rejection (Eikema et al., 2022) follow q(x)
min(w(x), bound) for any bound; `info` holds the weights of all candidates, from which
`esscher.estimators.expectations.quasi_rejection_gap` estimates the distance to the target."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from esscher.core.config import check_at_least
from esscher.core.draws import Draws, checked_sampler
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, concatenate
from esscher.core.target import Base, Tilted
from esscher.samplers.importance import Importance

MAX_CANDIDATES_PER_ROUND = 2**16


@checked_sampler
@dataclass(frozen=True)
class Rejection:
    """Exact draws, given a bound on the log weight; a larger weight is an error, never clamped."""

    log_bound: float
    """Upper bound of -E(x) over all sequences; with a proposal q, of log a(x) - E(x) - log q(x)."""
    patience: int = 1_000_000
    """Candidates for each draw before giving up."""
    proposal: Base | None = None
    """The base that candidates are drawn from; None is the base of the target."""

    def __post_init__(self) -> None:
        check_at_least(self, -math.inf, "log_bound", note=" Nothing was drawn.")
        check_at_least(self, 1, "patience", note=" Nothing was drawn.")

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        return _reject(self, target, prompts, draws, strict=True, rng=rng)


@checked_sampler
@dataclass(frozen=True)
class QuasiRejection:
    """Approximate draws with any bound: a higher one costs more and is less biased, by an amount that can be estimated."""

    log_bound: float
    """Weights above exp of this are treated as exp of this."""
    patience: int = 1_000_000
    """Candidates for each draw before giving up."""
    proposal: Base | None = None
    """The base that candidates are drawn from; None is the base of the target."""

    def __post_init__(self) -> None:
        check_at_least(self, -math.inf, "log_bound", note=" Nothing was drawn.")
        check_at_least(self, 1, "patience", note=" Nothing was drawn.")

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        return _reject(self, target, prompts, draws, strict=False, rng=rng)


def _reject(
    settings: Rejection | QuasiRejection, target: Tilted, prompts: Sequences, draws: int, *, strict: bool, rng: Rng
) -> Draws:
    """Rounds of candidates for the prompts that still need draws; the acceptance rate so far sets the size of a round."""
    log_bound, patience, propose = settings.log_bound, settings.patience, Importance(settings.proposal)
    missing = torch.full((len(prompts),), draws)
    rounds: list[tuple[Draws, Tensor, Tensor]] = []  # the candidates, the prompt of each, and which become draws
    proposed = accepted = 0  # surplus candidates included
    while bool((missing > 0).any()):
        if proposed > patience * draws * len(prompts):
            raise RuntimeError(
                f"{int(missing.sum())} of {draws * len(prompts)} draws are still missing after {proposed:,} candidates "
                f"(acceptance {accepted / proposed:.2g}). The others were dropped; lower log_bound, tilt less, or use SIR."
            )
        waiting = missing.nonzero()[:, 0]
        wanted = 1.1 * int(missing.max()) * (proposed + 1) / (accepted + 1)
        size = math.ceil(min(wanted, max(1, MAX_CANDIDATES_PER_ROUND // len(waiting))))
        batch = propose(target, prompts.rows(waiting), size, rng=rng)
        largest = float(batch.log_weight.max())
        if strict and largest > log_bound + 1e-5 * max(1.0, abs(log_bound)):
            raise ValueError(
                f"Rejection(log_bound={log_bound:.4g}) is not a bound: a draw has log weight {largest:.4g}. The draws "
                f"kept so far are biased and were dropped; raise log_bound, or use Metropolis, which needs none, or "
                f"QuasiRejection, which measures its error."
            )
        take = rng.bernoulli(batch.log_weight - log_bound)
        proposed, accepted = proposed + batch.cost, accepted + int(take.sum())
        take &= take.cumsum(-1) <= missing[waiting, None]  # the first ones, in the order drawn
        missing[waiting] -= take.sum(-1)
        rounds.append((batch, waiting.repeat_interleave(size), take.view(-1).nonzero()[:, 0]))
    order = torch.cat([prompt[rows] for _, prompt, rows in rounds]).argsort(stable=True)
    x = concatenate([batch.x.rows(rows) for batch, _, rows in rounds]).rows(order)
    log_base = torch.cat([batch.log_base.view(-1)[rows] for batch, _, rows in rounds])[order].view(len(prompts), draws)
    info = {
        "proposed_prompt": torch.cat([prompt for _, prompt, _ in rounds]),
        "proposed_log_weight": torch.cat([batch.log_weight.view(-1) for batch, _, _ in rounds]),
    }
    return Draws(x, torch.zeros_like(log_base), log_base, estimates_z=False, independent=True, cost=proposed, info=info)


@checked_sampler
@dataclass(frozen=True)
class Metropolis:
    """Independence Metropolis-Hastings: the last state of one chain for each draw, biased until the chain forgets its start."""

    steps: int = 100
    """Proposals of each chain."""
    proposal: Base | None = None
    """The base that proposals are drawn from; None is the base of the target."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "steps", note=" Nothing was drawn.")

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        length = self.steps + 1
        chains = Importance(self.proposal)(target, prompts, draws * length, rng=rng)  # proposals do not depend on the state
        log_weight = chains.log_weight.view(-1, length)
        at = torch.zeros(len(log_weight), dtype=torch.long, device=log_weight.device)
        moves = torch.zeros_like(at)
        for step in range(1, length):
            gain = log_weight[:, step] - log_weight.gather(1, at[:, None])[:, 0]
            accept = rng.bernoulli(gain.nan_to_num(nan=0.0))  # between two forbidden states the chain always moves
            at, moves = torch.where(accept, step, at), moves + accept
        if bool((log_weight.gather(1, at[:, None]) == -torch.inf).any()):
            raise ValueError(
                f"A chain of {self.steps} steps never left the sequences that the energy forbids. The draws were dropped; "
                f"raise `steps`, or use SIR with candidates of a base that meets the constraint more often."
            )
        pick = torch.arange(len(at), device=at.device) * length + at
        shape = (len(prompts), draws)
        log_base = chains.log_base.reshape(-1)[pick].view(shape)
        info = {"acceptance": moves.view(shape) / self.steps}
        zeros = torch.zeros_like(log_base)
        return Draws(chains.x.rows(pick), zeros, log_base, estimates_z=False, independent=True, cost=chains.cost, info=info)
