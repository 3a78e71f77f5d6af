"""Draw from a base, one token at a time: exact, and the proposal of every other sampler."""

from dataclasses import dataclass
from typing import NamedTuple

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
def draw(
    base: Base, prompts: Sequences, draws: int, *, rng: Rng, longest: int | None = None
) -> tuple[Sequences, Float[Tensor, "P N"]]:
    """`draws` independent points after each prompt, prompt-major, and their exact log-probabilities.

    Draws of a prompt share one state as long as they agree; a finished point stops costing. With `longest`, points are drawn
    only as far as so many tokens.
    """
    length = base.space.max_length if longest is None else min(longest, base.space.max_length)
    at_once = rows_at_once(base.space)
    together = max(1, at_once // draws)  # prompts; or one of them, its draws in passes of even size
    passes = -(-draws // at_once)
    sizes = [draws * (done + 1) // passes - draws * done // passes for done in range(passes)]
    parts = []
    for some in prompts.split(together):
        log_prob, state = base.begin(some)
        every = torch.arange(len(some), device=log_prob.device)
        for number, size in enumerate(sizes):
            own = state if number + 1 == len(sizes) else base.select(state, every)
            parts.append(_continue(base, some, size, length, log_prob, own, rng))
    log_base = torch.cat([part[1] for part in parts]).view(len(prompts), draws).cpu()
    return concatenate([part[0] for part in parts]), log_base


class _Step(NamedTuple):
    """What one step drew; rows that have ended may be among those that it drew for."""

    row: Int[Tensor, "A"]
    token: Int[Tensor, "A"]
    log_prob: Float[Tensor, "A"]


def _continue(
    base: Base, prompts: Sequences, draws: int, length: int, log_prob: Float[Tensor, "P V"], state: State, rng: Rng
) -> tuple[Sequences, Float[Tensor, "B"]]:
    """`draws` points of at most `length` tokens for each prompt, from the state that follows it."""
    space, device = base.space, log_prob.device
    alive = torch.arange(len(prompts) * draws, device=device)  # the rows that still grow, and some that have just ended
    place = None if draws == 1 else torch.arange(len(prompts), device=device).repeat_interleave(draws)
    open_ = torch.ones_like(alive, dtype=torch.bool)
    steps: list[_Step] = []
    for t in range(length):
        own = log_prob if place is None else log_prob[place]
        token = rng.categorical(own)
        log_token, token = own.gather(1, token)[:, 0], token[:, 0]
        steps.append(_Step(alive, token, log_token))
        if space.eos is not None:
            open_ = open_ & ~space.ends(token)
            living = int(open_.sum())
            if living == 0:
                break
            if living < COMPACT_BELOW * len(alive):
                keep = open_.nonzero()[:, 0]
                alive, token, open_ = alive[keep], token[keep], open_[keep]
                place = keep if place is None else place[keep]
        if t + 1 < length:
            state, token, place = _branch(base, state, len(log_prob), token, place)
            log_prob, state = base.advance(state, token)
    x, total = _assembled(space, prompts.repeat(draws), steps)
    _check_finite(total)
    return x, total


def _branch(
    base: Base, state: State, held: int, token: Int[Tensor, "A"], place: Int[Tensor, "A"] | None
) -> tuple[State, Int[Tensor, "K"], Int[Tensor, "A"] | None]:
    """One row of the state for each different prefix, if that saves much; otherwise one for each draw.

    `place` is the row of the state that each draw has; None where each has its own. Returns the state, the token that each of
    its rows goes on with, and their new place.
    """
    if place is None:
        return state, token, None
    if held < SHARE_BELOW * len(token):
        vocabulary = int(token.max()) + 1
        prefix, shared = torch.unique(place * vocabulary + token, return_inverse=True)
        if len(prefix) < SHARE_BELOW * len(token):
            return base.select(state, prefix // vocabulary), prefix % vocabulary, shared
    return base.select(state, place), token, None


def _assembled(space: Space, rows: Sequences, steps: list[_Step]) -> tuple[Sequences, Float[Tensor, "B"]]:
    """The points and their log-probabilities; what a row drew after its end is left out."""
    row, token, log_prob = (torch.cat(part) for part in zip(*steps, strict=True))
    sizes = torch.tensor([len(one.row) for one in steps], device=row.device)
    step = torch.arange(len(steps), device=row.device).repeat_interleave(sizes)
    ended = space.ends(token)
    length = torch.full_like(rows.start, len(steps)).scatter_reduce(0, row[ended], step[ended] + 1, "amin")
    stop, kept = rows.start + length, step < length[row]
    row, step, token, log_prob = row[kept], step[kept], token[kept], log_prob[kept]
    tokens = torch.nn.functional.pad(rows.tokens, (0, len(steps)))
    tokens[row, rows.start[row] + step] = token
    each = torch.zeros(len(rows), len(steps), dtype=torch.float64, device=row.device)
    each[row, step] = log_prob.double()
    return Sequences(tokens[:, : int(stop.max())], rows.start, stop), each.sum(-1)


def _check_finite(log_base: Float[Tensor, "B"]) -> None:
    wrong = int((~torch.isfinite(log_base)).sum())
    if wrong:
        raise ValueError(
            f"The base gave no probability to {wrong} of {len(log_base)} draws: its log-probabilities are not finite. "
            f"The draws were dropped; look for NaN weights (training that diverged)."
        )


@dataclass(frozen=True)
class Ancestral:
    """Draws of the base itself, no further than to `longest` tokens; its target must not be tilted."""

    longest: int | None = None

    def __post_init__(self) -> None:
        if self.longest is not None and self.longest < 1:
            raise ValueError(f"A draw has at least one token, not longest = {self.longest}.")

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        if target.energy is not flat:
            raise ValueError(
                "Ancestral draws from a base and knows no energy. Nothing was drawn; pass Tilted(base), or choose "
                "Importance, Pool, Rejection, Metropolis or Particles for a tilted model."
            )
        x, log_base = draw(target.base, prompts, draws, rng=rng, longest=self.longest)
        return Draws(x, torch.zeros_like(log_base), log_base, estimates_z=True, independent=True, cost=len(x))
