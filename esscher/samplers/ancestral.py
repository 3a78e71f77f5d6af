"""Ancestral sampling from a base, token by token: exact, and the proposal of every other sampler. Letters beside those of
`esscher.core.space`: A rows that are drawn for, K different prefixes among them."""

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.config import check_at_least
from esscher.core.device import on_device_of, widest_float
from esscher.core.draws import Draws, checked_sampler
from esscher.core.randomness import STEPS_PER_BLOCK, Rng
from esscher.core.space import Sequences, Space, concatenate, unique_prompts
from esscher.core.target import Base, State, Tilted, flat, name_of

COMPACT_BELOW = 0.75  # drop finished rows when the open ones are fewer than this share: dropping copies the state
UNNORMALISED = 0.05  # nats by which rounding may move the log-sum of a step
SHARE_BELOW = 0.5  # draws share states while different prefixes are fewer than this share of them


def rows_at_once(space: Space) -> int:
    """Rows that one pass of a network should hold: enough to be fast, few enough for the memory."""
    return max(32, min(4096, 2**21 // space.vocab_size, 2**17 // space.max_length))


@torch.no_grad()
def draw(
    base: Base, prompts: Sequences, draws: int, *, rng: Rng, max_new_tokens: int | None = None
) -> tuple[Sequences, Float[Tensor, "P N"]]:
    """`draws` independent sequences after each prompt, prompt-major, of at most `max_new_tokens` tokens, and their exact
    log-probabilities. Draws of a prompt share one state while their prefixes agree; finished draws cost nothing."""
    device, prompts = prompts.tokens.device, on_device_of(prompts, base)
    length = base.space.max_length if max_new_tokens is None else min(max_new_tokens, base.space.max_length)
    at_once = rows_at_once(base.space)
    prompts_at_once = max(1, at_once // draws)
    passes = -(-draws // at_once)  # more than one only for a single prompt
    sizes = [draws * (done + 1) // passes - draws * done // passes for done in range(passes)]
    parts = []
    for group in prompts.split(prompts_at_once):
        log_prob, state = base.begin(group)
        _refuse_other_shape(base, log_prob, len(group))
        every = torch.arange(len(group), device=log_prob.device)
        for number, size in enumerate(sizes):
            own_state = state if number + 1 == len(sizes) else base.select(state, every)
            parts.append(_continue(base, group, size, length, log_prob, own_state, rng))
    log_base = torch.cat([part[1].sum(-1) for part in parts]).view(len(prompts), draws).cpu()
    return concatenate([part[0] for part in parts]).to(device), log_base


@torch.no_grad()
def redraw(base: Base, x: Sequences, cut: Int[Tensor, "B"], *, rng: Rng) -> tuple[Sequences, Float[Tensor, "B L"]]:
    """Keep the first `cut` tokens of each point, fewer than it has, and draw the rest again. Returns the new sequences, and the
    log-probability of each token by its position in the point, with 0 after the end. The base reads the tokens that are kept
    step by step, because it may read a prompt in another way; rows share one state while their prefixes agree."""
    device, length = x.tokens.device, base.space.max_length
    if bool(((cut < 0) | (cut >= x.lengths.to(cut.device))).any()):
        raise ValueError("A point is cut before its last token, at the latest. Nothing was drawn; give 0 <= cut < x.lengths.")
    x, rows, parts = on_device_of(x, base), rows_at_once(base.space), []
    for group, group_cut in zip(x.split(rows), cut.to(x.tokens.device).split(rows), strict=True):
        distinct, place = unique_prompts(group)
        log_prob, state = base.begin(distinct)
        _refuse_other_shape(base, log_prob, len(distinct))
        kept = _KeptTokens(torch.nn.functional.pad(group.tokens, (0, length)), group.start, group_cut)
        new, log_probs = _continue(base, group.prompts(), 1, length, log_prob, state, rng, place=place, kept=kept)
        parts.append((new, torch.nn.functional.pad(log_probs, (0, length - log_probs.shape[1]))))
    return concatenate([part[0] for part in parts]).to(device), torch.cat([part[1] for part in parts]).cpu()


def _refuse_other_shape(base: Base, log_prob: Tensor, rows: int) -> None:
    shape = (rows, base.space.vocab_size)
    if log_prob.shape != shape or not log_prob.is_floating_point():
        raise ValueError(
            f"The base {name_of(base)} begins with log-probabilities of shape {list(log_prob.shape)} and {log_prob.dtype}, and "
            f"a step gives every token of the space a real number, {list(shape)}. Nothing was drawn; see "
            f"`esscher.testing.check_base`."
        )


def steps_between_checks(device: torch.device) -> int:
    """How many steps a sampler takes before it asks which rows have finished, for which the host waits for an accelerator."""
    return 1 if device.type == "cpu" else STEPS_PER_BLOCK


class _Step(NamedTuple):
    """The tokens drawn in one step; rows that have already finished may be among them."""

    row: Int[Tensor, "A"]
    token: Int[Tensor, "A"]
    log_prob: Float[Tensor, "A"]


class _KeptTokens(NamedTuple):
    """The first `cut` tokens of each point, which are not drawn."""

    tokens: Int[Tensor, "B T"]
    start: Int[Tensor, "B"]
    cut: Int[Tensor, "B"]

    def at_step(self, t: int, row: Int[Tensor, "A"], log_prob: Float[Tensor, "A V"]) -> Float[Tensor, "A V"]:
        """The log-probabilities with which these rows draw: of the token that is kept, where there is one, 0."""
        token = self.tokens[row, self.start[row] + t][:, None]
        only = torch.full_like(log_prob, -torch.inf).scatter_(1, token, 0.0)
        return torch.where((t < self.cut[row])[:, None], only, log_prob)


def _continue(
    base: Base,
    prompts: Sequences,
    draws: int,
    length: int,
    log_prob: Float[Tensor, "P V"],
    state: State,
    rng: Rng,
    *,
    place: Int[Tensor, "B"] | None = None,
    kept: _KeptTokens | None = None,
) -> tuple[Sequences, Float[Tensor, "B S"]]:
    """`draws` sequences of at most `length` tokens for each prompt, from the state after it, with the log-probability of each
    token by position. `place` is the row of the state of each draw, by default that of its prompt."""
    space, device = base.space, log_prob.device
    rows, interval = prompts.repeat(draws), steps_between_checks(device)
    alive = torch.arange(len(rows), device=device)  # open rows, and finished ones that are not dropped yet
    if place is None and draws > 1:
        place = alive // draws
    open_ = torch.ones_like(alive, dtype=torch.bool)
    choices, first_total = rng.tokens(len(rows), device), log_prob.logsumexp(-1)
    steps: list[_Step] = []
    last_kept = 0 if kept is None else int(kept.cut.max())
    for t in range(length):
        row_log_prob = log_prob if place is None else log_prob[place]
        token = choices.categorical(row_log_prob if kept is None or t >= last_kept else kept.at_step(t, alive, row_log_prob))
        steps.append(_Step(alive, token, row_log_prob.gather(1, token[:, None])[:, 0]))
        if t + 1 == length:
            break
        if space.eos is not None and (t + 1) % interval == 0:
            open_ = open_ & ~space.is_eos(torch.stack([step.token for step in steps[-interval:]])).any(0)
            num_open = int(open_.sum())
            if num_open == 0:
                break
            if num_open < COMPACT_BELOW * len(alive):
                keep = open_.nonzero()[:, 0]
                alive, token, open_ = alive[keep], token[keep], open_[keep]
                place = keep if place is None else place[keep]
                choices.keep(keep)
        state, token, place = _branch(base, state, len(log_prob), token, place)
        log_prob, state = base.advance(state, token)
    x, log_probs = _assemble(space, rows, steps)
    finite = torch.isfinite(log_probs).all(-1)
    wrong, unnormalised = torch.stack([(~finite).sum(), (first_total.abs() > UNNORMALISED).sum()]).tolist()
    if unnormalised:
        raise ValueError(
            f"The base {name_of(base)} gives probabilities that do not sum to 1 after {unnormalised} of {len(prompts)} "
            f"prompts: their log-sum is {float(first_total.abs().max()):.4g}, not 0. The draws were dropped; "
            f"normalise what `begin` and `advance` give, for instance by `log_softmax(-1)`."
        )
    if wrong:
        raise ValueError(
            f"The base gave no probability to {wrong} of {len(log_probs)} draws: its log-probabilities are not finite. "
            f"The draws were dropped; look for NaN weights (training that diverged)."
        )
    return x, log_probs


def _branch(
    base: Base, state: State, held: int, token: Int[Tensor, "A"], place: Int[Tensor, "A"] | None
) -> tuple[State, Int[Tensor, "K"], Int[Tensor, "A"] | None]:
    """The state with a row for each different prefix, if that saves much, else for each draw; its next tokens; and the new
    `place`, the row of the state of each draw (None if each draw has its own). On an accelerator each draw gets its own: to
    find equal prefixes, the host would wait."""
    if place is None:
        return state, token, None
    if held < SHARE_BELOW * len(token) and token.device.type == "cpu":
        vocabulary = base.space.vocab_size
        prefix, shared = torch.unique(place * vocabulary + token, return_inverse=True)
        if len(prefix) < SHARE_BELOW * len(token):
            return base.select(state, prefix // vocabulary), prefix % vocabulary, shared
    return base.select(state, place), token, None


def _assemble(space: Space, rows: Sequences, steps: list[_Step]) -> tuple[Sequences, Float[Tensor, "B S"]]:
    """The sequences and the log-probabilities of their tokens, without the tokens drawn after an end symbol."""
    tokens = torch.zeros(len(rows), len(steps), dtype=torch.long, device=rows.start.device)
    log_probs = torch.zeros(tokens.shape, dtype=widest_float(tokens.device), device=tokens.device)
    first = 0
    for _, group in groupby(steps, key=lambda step: id(step.row)):
        (row, *_), token, log_prob = zip(*group, strict=True)
        columns = slice(first, first + len(token))
        tokens[row, columns], log_probs[row, columns] = torch.stack(token, 1), torch.stack(log_prob, 1).to(log_probs.dtype)
        first = columns.stop
    position, ended = torch.arange(len(steps), device=tokens.device), space.is_eos(tokens)
    length = torch.where(ended, position + 1, len(steps)).amin(1)
    inside = position < length[:, None]
    padded, stop = torch.nn.functional.pad(rows.tokens, (0, len(steps))), rows.start + length
    padded.scatter_(1, rows.start[:, None] + position, torch.where(inside, tokens, 0))
    return Sequences(padded[:, : int(stop.max())], rows.start, stop), torch.where(inside, log_probs, 0.0)


@checked_sampler
@dataclass(frozen=True)
class Ancestral:
    """Exact draws of a base, token by token; the target must not be tilted."""

    max_new_tokens: int | None = None
    """Stop each draw after so many tokens; by default at the end symbol or the length limit of the base."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_new_tokens", note=" Nothing was drawn.")

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        if target.energy is not flat:
            raise ValueError(
                "Ancestral draws from a base and cannot use an energy. Nothing was drawn; pass Tilted(base), or choose "
                "Importance, SIR, Rejection, Metropolis or Particles for a tilted model."
            )
        x, log_base = draw(target.base, prompts, draws, rng=rng, max_new_tokens=self.max_new_tokens)
        return Draws(x, torch.zeros_like(log_base), log_base, estimates_z=True, independent=True, cost=len(x))
