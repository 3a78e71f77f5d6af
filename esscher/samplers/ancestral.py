"""Draw from a base, one token at a time: exact, and the proposal of every other sampler."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.draws import Draws
from esscher.randomness import Rng
from esscher.space import Sequences, Space, concatenate
from esscher.target import Base, State, Tilted, flat

COMPACT_BELOW = 0.75  # finished rows are dropped when the living are fewer than this share: dropping copies the state
SHARE_BELOW = 0.5  # draws share states while different prefixes are fewer than this share of them


def rows_at_once(space: Space) -> int:
    """Rows that one pass of a network should hold: wide enough to be fast, narrow enough for the memory."""
    return max(32, min(4096, 2**21 // space.vocab_size, 2**17 // space.max_length))


@torch.no_grad()
def draw(base: Base, prompts: Sequences, draws: int, *, rng: Rng) -> tuple[Sequences, Float[Tensor, "P N"]]:
    """`draws` independent points after each prompt, prompt-major, and their exact log-probabilities.

    Draws of a prompt share one state as long as they agree; a finished point stops costing.
    """
    at_once = rows_at_once(base.space)
    together = max(1, at_once // draws)  # prompts; or one of them, its draws in passes of even size
    passes = -(-draws // at_once)
    sizes = [draws * (done + 1) // passes - draws * done // passes for done in range(passes)]
    parts = []
    for first in range(0, len(prompts), together):
        some = prompts.rows(slice(first, first + together))
        log_prob, state = base.begin(some)
        every = torch.arange(len(some), device=log_prob.device)
        for number, size in enumerate(sizes):
            own = state if number + 1 == len(sizes) else base.select(state, every)
            parts.append(_continue(base, some, size, log_prob, own, rng))
    log_base = torch.cat([part[1] for part in parts]).view(len(prompts), draws).cpu()
    return concatenate([part[0] for part in parts]), log_base


def _continue(
    base: Base, prompts: Sequences, draws: int, log_prob: Float[Tensor, "P V"], state: State, rng: Rng
) -> tuple[Sequences, Float[Tensor, "B"]]:
    """`draws` points for each prompt, from the state that follows it."""
    space, rows, device = base.space, prompts.repeat(draws), prompts.tokens.device
    tokens = torch.nn.functional.pad(rows.tokens, (0, space.max_length))
    stop = rows.start + space.max_length
    total = torch.zeros(len(rows), dtype=torch.float64, device=device)
    alive = torch.arange(len(rows), device=device)  # the rows that still grow, and some that have just ended
    place = torch.arange(len(prompts), device=device).repeat_interleave(draws)  # the row of the state that each of them has
    open_ = torch.ones(len(rows), dtype=torch.bool, device=device)
    for t in range(space.max_length):
        own = log_prob if len(log_prob) == len(alive) else log_prob[place]
        token = rng.categorical(own)[:, 0]
        column = rows.start[alive] + t
        tokens[alive, column] = torch.where(open_, token, 0)
        total[alive] += torch.where(open_, own.gather(1, token[:, None])[:, 0].double(), 0.0)
        if space.eos is not None:
            ended = open_ & space.ends(token)
            stop[alive[ended]] = column[ended] + 1
            open_ = open_ & ~ended
        living = int(open_.sum())
        if living == 0 or t + 1 == space.max_length:
            break
        if living < COMPACT_BELOW * len(alive):
            keep = open_.nonzero()[:, 0]
            alive, token, open_, place = alive[keep], token[keep], open_[keep], place[keep]
        state, token, place = _branch(base, state, len(log_prob), token, place)
        log_prob, state = base.advance(state, token)
    _check_finite(total)
    return Sequences(tokens[:, : int(stop.max())], rows.start, stop), total


def _branch(
    base: Base, state: State, held: int, token: Int[Tensor, "A"], place: Int[Tensor, "A"]
) -> tuple[State, Int[Tensor, "K"], Int[Tensor, "A"]]:
    """One row of the state for each different prefix, if that saves much; otherwise one for each draw.

    Returns the state, the token that each of its rows goes on with, and the row that each draw has.
    """
    one_each = torch.arange(len(token), device=token.device)
    if held < SHARE_BELOW * len(token):
        vocabulary = int(token.max()) + 1
        prefix, shared = torch.unique(place * vocabulary + token, return_inverse=True)
        if len(prefix) < SHARE_BELOW * len(token):
            return base.select(state, prefix // vocabulary), prefix % vocabulary, shared
    if held == len(token) and torch.equal(place, one_each):
        return state, token, place
    return base.select(state, place), token, one_each


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
