"""Draw from a base, one token at a time: exact, and the proposal of every other sampler."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.draws import Draws
from esscher.randomness import Rng
from esscher.space import Sequences, Space, concatenate
from esscher.target import Base, Tilted, flat

COMPACT_BELOW = 0.75  # finished rows are dropped when the living are fewer than this share: dropping copies the state


def rows_at_once(space: Space) -> int:
    """Rows that one pass of a network should hold: wide enough to be fast, narrow enough for the memory."""
    return max(32, min(4096, 2**21 // space.vocab_size))


@torch.no_grad()
def draw(base: Base, prompts: Sequences, draws: int, *, rng: Rng) -> tuple[Sequences, Float[Tensor, "P N"]]:
    """`draws` independent points after each prompt, prompt-major, and their exact log-probabilities.

    A prompt is read once for all its draws; a finished point stops costing.
    """
    at_once = rows_at_once(base.space)
    together = max(1, at_once // draws)
    parts = []
    for first in range(0, len(prompts), together):
        some = prompts.rows(slice(first, first + together))
        sizes = [draws] if draws <= at_once else [min(at_once, draws - done) for done in range(0, draws, at_once)]
        parts += [_draw_together(base, some, size, rng) for size in sizes]
    log_prob = torch.cat([part[1] for part in parts]).view(len(prompts), draws)
    return concatenate([part[0] for part in parts]), log_prob


def _draw_together(base: Base, prompts: Sequences, draws: int, rng: Rng) -> tuple[Sequences, Float[Tensor, "B"]]:
    space, device = base.space, prompts.tokens.device
    rows = prompts.repeat(draws)
    tokens = torch.nn.functional.pad(rows.tokens, (0, space.max_length))
    stop = rows.start + space.max_length
    total = torch.zeros(len(rows), dtype=torch.float64, device=device)
    alive = torch.arange(len(rows), device=device)  # the row that each row of the state belongs to
    open_ = torch.ones(len(rows), dtype=torch.bool, device=device)
    log_prob, state = base.begin(prompts)
    if draws > 1:
        shared = torch.arange(len(prompts), device=device).repeat_interleave(draws)
        log_prob, state = log_prob[shared], base.select(state, shared)
    for t in range(space.max_length):
        token = rng.categorical(log_prob)[:, 0]
        here = alive[open_]
        tokens[here, rows.start[here] + t] = token[open_]
        total[here] += log_prob.gather(1, token[:, None])[open_, 0].to(total.dtype)
        ended = open_ & space.ends(token)
        stop[alive[ended]] = rows.start[alive[ended]] + t + 1
        open_ = open_ & ~ended
        living = int(open_.sum())
        if living == 0 or t + 1 == space.max_length:
            break
        if living < COMPACT_BELOW * len(alive):
            keep = open_.nonzero()[:, 0]
            alive, token, open_, state = alive[keep], token[keep], open_[keep], base.select(state, keep)
        log_prob, state = base.advance(state, token)
    if not bool(torch.isfinite(total).all()):
        raise ValueError(
            f"The base gave no probability to {int((~torch.isfinite(total)).sum())} of {len(rows)} draws: its "
            f"log-probabilities are not finite. The draws were dropped; look for NaN weights (training that diverged)."
        )
    width = int(stop.max())
    return Sequences(tokens[:, :width], rows.start, stop), total


@dataclass(frozen=True)
class Ancestral:
    """Draws of the base itself; its target must not be tilted."""

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        if target.energy is not flat:
            raise ValueError(
                "Ancestral draws from a base and knows no energy. Nothing was drawn; pass Tilted(base), or choose "
                "Importance, Pool, Rejection, Metropolis or Particles for a tilted model."
            )
        x, log_base = draw(target.base, prompts, draws, rng=rng)
        return Draws(x, torch.zeros_like(log_base), log_base, estimates_z=True, independent=True, cost=len(x))
