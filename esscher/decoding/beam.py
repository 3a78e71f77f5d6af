"""Beam search on any base: batched over prompts, on the base's own state, with a length penalty.

At each step the `width` likeliest unfinished prefixes of a prompt go on; what ends among the `width` likeliest is kept apart,
the best of it by

    log a(x) / length^penalty,

the end symbol counted. A prompt is finished when no unfinished prefix can still get among these, however long it became, so
nothing is lost by stopping; wide enough a beam is exhaustive search. A prompt that is finished stops costing.

Letters beside those of `esscher.space`: A prompts that still search, W beams, U those that go on, C their candidates, L
tokens of the longest point.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.decoding.decoder import Decoded
from esscher.randomness import Rng
from esscher.samplers.ancestral import rows_at_once
from esscher.space import Sequences, concatenate
from esscher.target import Base, State, Tilted, flat


@dataclass(frozen=True)
class Candidates:
    """The `width` best points of each prompt, the best first; where there are fewer, a score is -inf and the point empty."""

    x: Sequences  # P * W rows, prompt-major
    log_base: Float[Tensor, "P W"]
    score: Float[Tensor, "P W"]


@dataclass(frozen=True)
class Beam:
    """The best of the candidates of a beam; where the target is tilted, the one whose score less its energy is highest."""

    width: int = 5
    length_penalty: float = 1.0
    longest: int | None = None

    def __post_init__(self) -> None:
        check_beam(self.width, self.length_penalty, self.longest)

    def __call__(self, target: Tilted, prompts: Sequences, *, rng: Rng) -> Decoded:
        found = beam_search(target.base, prompts, self.width, length_penalty=self.length_penalty, longest=self.longest)
        score = found.score
        if target.energy is not flat:
            there = score.isfinite()
            weight = target.log_weight(found.x.rows(there.flatten().to(found.x.tokens.device)))
            score = score.masked_scatter(there, score[there] + weight.double().cpu())
        best = score.argmax(1)
        rows = torch.arange(len(best))
        x = found.x.rows((rows * self.width + best).to(found.x.tokens.device))
        return Decoded(x, found.log_base[rows, best], score[rows, best])


def greedy() -> Beam:
    """The likeliest token at each step."""
    return Beam(1, 0.0)


def check_beam(width: int, length_penalty: float, longest: int | None) -> None:
    """Refuse settings of no beam."""
    if width < 1:
        raise ValueError(f"A beam has at least one prefix, not {width}. Nothing was decoded.")
    if not length_penalty >= 0:
        raise ValueError(f"The length penalty is at least 0, not {length_penalty}. Nothing was decoded.")
    if longest is not None and longest < 1:
        raise ValueError(f"A point has at least one token, not longest = {longest}. Nothing was decoded.")


@torch.no_grad()
def beam_search(
    base: Base, prompts: Sequences, width: int, *, length_penalty: float = 1.0, longest: int | None = None
) -> Candidates:
    """The candidates of every prompt."""
    check_beam(width, length_penalty, longest)
    length = base.space.max_length if longest is None else min(longest, base.space.max_length)
    together = max(1, rows_at_once(base.space) // width)
    parts = [_search(base, some, width, length_penalty, length) for some in prompts.split(together)]
    if not parts:
        return Candidates(prompts, torch.zeros(0, width), torch.zeros(0, width))
    log_base, score = (torch.cat([getattr(part, name) for part in parts]) for name in ("log_base", "score"))
    return Candidates(concatenate([part.x for part in parts]), log_base, score)


@dataclass(frozen=True)
class _Ended:
    """The best ended points of each prompt so far, the best first."""

    score: Float[Tensor, "A W"]
    log_prob: Float[Tensor, "A W"]
    tokens: Int[Tensor, "A W L"]
    length: Int[Tensor, "A W"]

    @classmethod
    def none(cls, prompts: int, width: int, length: int, device: torch.device) -> "_Ended":
        missing = torch.full((prompts, width), -torch.inf, dtype=torch.float64, device=device)
        tokens = torch.zeros(prompts, width, length, dtype=torch.long, device=device)
        return cls(missing, missing.clone(), tokens, torch.zeros_like(missing, dtype=torch.long))

    def joined(self, other: "_Ended") -> "_Ended":
        """The best of both."""
        sides = zip(vars(self).values(), vars(other).values(), strict=True)
        score, log_prob, tokens, length = (torch.cat(both, 1) for both in sides)
        best, place = score.topk(self.score.shape[1])
        chosen = tokens.gather(1, place[..., None].expand(-1, -1, tokens.shape[2]))
        return _Ended(best, log_prob.gather(1, place), chosen, length.gather(1, place))

    def rows(self, index: Int[Tensor, "K"]) -> "_Ended":
        return _Ended(self.score[index], self.log_prob[index], self.tokens[index], self.length[index])


@dataclass(frozen=True)
class _Open:
    """Unfinished prefixes: which prompt each row of them is of, their probabilities, and the base's state after them."""

    prompt: Int[Tensor, "A"]
    log_prob: Float[Tensor, "A W"]
    tokens: Int[Tensor, "A W L"]
    following: Float[Tensor, "B V"]  # log-probabilities of the next token, A * W rows
    state: State


def _search(base: Base, prompts: Sequences, width: int, penalty: float, length: int) -> Candidates:
    """All prompts at once."""
    following, state = base.begin(prompts)
    device, count = following.device, len(prompts)
    nothing = torch.zeros(count, 1, dtype=torch.float64, device=device)
    tokens = torch.zeros(count, 1, length, dtype=torch.long, device=device)
    open_ = _Open(torch.arange(count, device=device), nothing, tokens, following, state)
    ended = _Ended.none(count, width, length, device)
    done = _Ended.none(count, width, length, device)
    for step in range(length):
        grown, beam, token = _grown(open_, width, step)
        ends = base.space.ends(token.flatten()).view(token.shape) if step + 1 < length else torch.ones_like(token).bool()
        in_beam = torch.arange(token.shape[1], device=device) < width
        ended = ended.joined(_scored(grown, ends & in_beam, step + 1, penalty))
        rest = torch.where(ends, -torch.inf, grown.log_prob)
        best, kept = rest.topk(min(width, rest.shape[1]))
        over = _over(ended.score, best, penalty, length)
        for part, whole in zip(vars(ended).values(), vars(done).values(), strict=True):
            whole[open_.prompt[over]] = part[over]
        going = (~over).nonzero()[:, 0]
        if len(going) == 0:
            break
        ended = ended.rows(going)
        open_ = _advanced(base, open_, grown.tokens, beam, token, going, best, kept)
    return _candidates(prompts, done)


def _grown(open_: _Open, width: int, step: int) -> tuple[_Ended, Int[Tensor, "A C"], Int[Tensor, "A C"]]:
    """The likeliest prefixes with one token more, enough that `width` of them have not ended; and their beam and token."""
    prompts, beams = open_.log_prob.shape
    few = min(2 * width, open_.following.shape[1])
    likely, token = open_.following.topk(few)
    total = (open_.log_prob.reshape(-1, 1) + likely.double()).view(prompts, beams * few)
    best, place = total.topk(min(2 * width, beams * few))
    beam, chosen = place // few, token.view(prompts, -1).gather(1, place)
    tokens = open_.tokens.gather(1, beam[..., None].expand(-1, -1, open_.tokens.shape[2]))
    tokens[:, :, step] = chosen
    return _Ended(best, best, tokens, torch.full_like(chosen, step + 1)), beam, chosen


def _scored(grown: _Ended, ends: Bool[Tensor, "A C"], length: int, penalty: float) -> _Ended:
    """Those that have ended, by their score."""
    log_prob = torch.where(ends, grown.log_prob, -torch.inf)
    return replace(grown, score=log_prob / length**penalty, log_prob=log_prob)


def _over(score: Float[Tensor, "A W"], best: Float[Tensor, "A U"], penalty: float, length: int) -> Bool[Tensor, "A"]:
    """Whether nothing unfinished can get among the ended: log-probabilities fall, and no point is longer than `length`."""
    return (best[:, 0] == -torch.inf) | (score[:, -1] >= best[:, 0] / length**penalty)


def _advanced(
    base: Base,
    open_: _Open,
    tokens: Int[Tensor, "A C L"],
    beam: Int[Tensor, "A C"],
    token: Int[Tensor, "A C"],
    going: Int[Tensor, "K"],
    best: Float[Tensor, "A U"],
    kept: Int[Tensor, "A U"],
) -> _Open:
    """The prompts that go on, each with the chosen prefixes, after one step of the base."""
    kept, beams = kept[going], open_.log_prob.shape[1]
    beam, token = beam[going].gather(1, kept), token[going].gather(1, kept)
    rows = (going[:, None] * beams + beam).flatten()
    following, state = base.advance(base.select(open_.state, rows), token.flatten())
    chosen = tokens[going].gather(1, kept[..., None].expand(-1, -1, tokens.shape[2]))
    return _Open(open_.prompt[going], best[going], chosen, following, state)


def _candidates(prompts: Sequences, done: _Ended) -> Candidates:
    width, longest = done.score.shape[1], int(done.length.max())
    rows = prompts.repeat(width)
    length = torch.where(done.score.isfinite(), done.length, 0).flatten()
    tokens = torch.nn.functional.pad(rows.tokens, (0, longest))
    position = torch.arange(longest, device=tokens.device)
    inside = position < length[:, None]
    row = torch.arange(len(rows), device=tokens.device)[:, None].expand_as(inside)[inside]
    tokens[row, (rows.start[:, None] + position)[inside]] = done.tokens.flatten(0, 1)[:, :longest][inside]
    return Candidates(Sequences(tokens, rows.start, rows.start + length), done.log_prob.cpu(), done.score.cpu())
