"""Draw from a base, one token at a time: exact, and the proposal of every other sampler."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.draws import Draws
from esscher.randomness import Rng
from esscher.space import Sequences, Space, concatenate
from esscher.target import Base, State, Tilted, flat

COMPACT_BELOW = 0.75  # finished rows are dropped when the living are fewer than this share: dropping copies the state


def rows_at_once(space: Space) -> int:
    """Rows that one pass of a network should hold: wide enough to be fast, narrow enough for the memory."""
    return max(32, min(4096, 2**21 // space.vocab_size, 2**17 // space.max_length))


@torch.no_grad()
def draw(base: Base, prompts: Sequences, draws: int, *, rng: Rng) -> tuple[Sequences, Float[Tensor, "P N"]]:
    """`draws` independent points after each prompt, prompt-major, and their exact log-probabilities.

    A prompt is read once for all its draws; a finished point stops costing.
    """
    at_once = rows_at_once(base.space)
    together = max(1, at_once // draws)  # prompts; or one of them, its draws in passes of even size
    passes = -(-draws // at_once)
    sizes = [draws * (done + 1) // passes - draws * done // passes for done in range(passes)]
    parts = []
    for first in range(0, len(prompts), together):
        some = prompts.rows(slice(first, first + together))
        log_prob, state = base.begin(some)
        for size in sizes:
            shared = torch.arange(len(some), device=log_prob.device).repeat_interleave(size)
            copied = state if draws == 1 else base.select(state, shared)
            parts.append(_continue(base, some.rows(shared), log_prob[shared], copied, rng))
    log_base = torch.cat([part[1] for part in parts]).view(len(prompts), draws).cpu()
    return concatenate([part[0] for part in parts]), log_base


def _continue(
    base: Base, rows: Sequences, log_prob: Float[Tensor, "B V"], state: State, rng: Rng
) -> tuple[Sequences, Float[Tensor, "B"]]:
    """A point for each row, from the state that follows its prompt."""
    space, device = base.space, rows.tokens.device
    tokens = torch.nn.functional.pad(rows.tokens, (0, space.max_length))
    stop = rows.start + space.max_length
    total = torch.zeros(len(rows), dtype=torch.float64, device=device)
    alive = torch.arange(len(rows), device=device)  # the row that each row of the state belongs to
    open_ = torch.ones(len(rows), dtype=torch.bool, device=device)
    for t in range(space.max_length):
        token = rng.categorical(log_prob)[:, 0]
        place = rows.start[alive] + t
        tokens[alive, place] = torch.where(open_, token, 0)
        total[alive] += torch.where(open_, log_prob.gather(1, token[:, None])[:, 0].double(), 0.0)
        if space.eos is not None:
            ended = open_ & space.ends(token)
            stop[alive[ended]] = place[ended] + 1
            open_ = open_ & ~ended
        living = int(open_.sum())
        if living == 0 or t + 1 == space.max_length:
            break
        if living < COMPACT_BELOW * len(alive):
            keep = open_.nonzero()[:, 0]
            alive, token, open_, state = alive[keep], token[keep], open_[keep], base.select(state, keep)
        log_prob, state = base.advance(state, token)
    _check_finite(total)
    return Sequences(tokens[:, : int(stop.max())], rows.start, stop), total


def _check_finite(log_base: Float[Tensor, "B"]) -> None:
    wrong = int((~torch.isfinite(log_base)).sum())
    if wrong:
        raise ValueError(
            f"The base gave no probability to {wrong} of {len(log_base)} draws: its log-probabilities are not finite. "
            f"The draws were dropped; look for NaN weights (training that diverged)."
        )


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
