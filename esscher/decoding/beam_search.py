"""Beam search on any base: batched over prompts, on the base's own state, with a length penalty.

Finished sequences are ranked by log a(x) / length^penalty, with the end symbol in the length. A prompt is done when no
unfinished prefix can still be among the best, however long, so stopping loses nothing; a wide enough beam is exhaustive search.
Letters beside those of `esscher.core.space`: A prompts that are not done, W beams, C candidates, L tokens of the longest
sequence.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.config import check_at_least
from esscher.core.device import on_device_of, widest, widest_float
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, concatenate
from esscher.core.target import Base, State, Tilted, flat
from esscher.decoding.decoders import NOT_DECODED, DecoderOutput
from esscher.samplers.ancestral import rows_at_once


@dataclass(frozen=True)
class BeamCandidates:
    """The `width` best sequences of each prompt, the best first; missing ones are empty and have the score -inf."""

    x: Sequences  # P * W rows, prompt-major
    log_base: Float[Tensor, "P W"]
    score: Float[Tensor, "P W"]


@dataclass(frozen=True)
class BeamSearch:
    """The best candidate of a beam; for a tilted target, the one whose score minus its energy is highest."""

    width: int = 5
    """Prefixes that go on at each step."""
    length_penalty: float = 1.0
    """The power of the length that log-probabilities are divided by; 0 leaves them."""
    max_new_tokens: int | None = None
    """Stop after so many tokens; by default at the length limit of the base."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "width", "max_new_tokens", note=NOT_DECODED)
        check_at_least(self, 0, "length_penalty", note=NOT_DECODED)

    def __call__(self, target: Tilted, prompts: Sequences, *, rng: Rng) -> DecoderOutput:
        beams = self.candidates(target.base, prompts)
        score, device = beams.score, beams.x.tokens.device
        if target.energy is not flat:
            present = score.isfinite()
            log_weight = target.log_weight(on_device_of(beams.x.rows(present.flatten().to(device)), target))
            score = score.masked_scatter(present, score[present] + log_weight.cpu().double())
        best, rows = score.argmax(1), torch.arange(len(score))
        x = beams.x.rows((rows * self.width + best).to(device))
        return DecoderOutput(x, beams.log_base[rows, best], score[rows, best])

    @torch.no_grad()
    def candidates(self, base: Base, prompts: Sequences) -> BeamCandidates:
        """The candidates of each prompt, without an energy."""
        device, prompts = prompts.tokens.device, on_device_of(prompts, base)
        length = base.space.max_length if self.max_new_tokens is None else min(self.max_new_tokens, base.space.max_length)
        prompts_at_once = max(1, rows_at_once(base.space) // self.width)
        parts = [_search(base, group, self.width, self.length_penalty, length) for group in prompts.split(prompts_at_once)]
        if not parts:
            return BeamCandidates(prompts, torch.zeros(0, self.width), torch.zeros(0, self.width))
        log_base, score = (torch.cat([getattr(part, name) for part in parts]).double() for name in ("log_base", "score"))
        return BeamCandidates(concatenate([part.x for part in parts]).to(device), log_base, score)


@dataclass(frozen=True)
class Greedy:
    """The likeliest token at each step."""

    max_new_tokens: int | None = None
    """Stop after so many tokens; by default at the length limit of the base."""

    def __call__(self, target: Tilted, prompts: Sequences, *, rng: Rng) -> DecoderOutput:
        return BeamSearch(1, 0.0, self.max_new_tokens)(target, prompts, rng=rng)


def beam_search(
    base: Base, prompts: Sequences, width: int, *, length_penalty: float = 1.0, max_new_tokens: int | None = None
) -> BeamCandidates:
    """The candidates of each prompt, by `BeamSearch` without an energy."""
    return BeamSearch(width, length_penalty, max_new_tokens).candidates(base, prompts)


@dataclass(frozen=True)
class _FinishedBeams:
    """The best finished sequences of each prompt so far, the best first."""

    score: Float[Tensor, "A W"]
    log_prob: Float[Tensor, "A W"]
    tokens: Int[Tensor, "A W L"]
    length: Int[Tensor, "A W"]

    @classmethod
    def none(cls, prompts: int, width: int, length: int, device: torch.device) -> "_FinishedBeams":
        missing = torch.full((prompts, width), -torch.inf, dtype=widest_float(device), device=device)
        tokens = torch.zeros(prompts, width, length, dtype=torch.long, device=device)
        return cls(missing, missing.clone(), tokens, torch.zeros_like(missing, dtype=torch.long))

    def best_of(self, other: "_FinishedBeams") -> "_FinishedBeams":
        """The best of both."""
        sides = zip(vars(self).values(), vars(other).values(), strict=True)
        score, log_prob, tokens, length = (torch.cat(both, 1) for both in sides)
        best, place = score.topk(self.score.shape[1])
        chosen = tokens.gather(1, place[..., None].expand(-1, -1, tokens.shape[2]))
        return _FinishedBeams(best, log_prob.gather(1, place), chosen, length.gather(1, place))

    def rows(self, index: Int[Tensor, "K"]) -> "_FinishedBeams":
        return _FinishedBeams(self.score[index], self.log_prob[index], self.tokens[index], self.length[index])


@dataclass(frozen=True)
class _OpenBeams:
    """Unfinished prefixes: the prompt of each row, their log-probabilities, and the base's state after them."""

    prompt: Int[Tensor, "A"]
    log_prob: Float[Tensor, "A W"]
    tokens: Int[Tensor, "A W L"]
    following: Float[Tensor, "B V"]  # log-probabilities of the next token, A * W rows
    state: State


def _search(base: Base, prompts: Sequences, width: int, penalty: float, length: int) -> BeamCandidates:
    """Search all prompts in one batch."""
    following, state = base.begin(prompts)
    device, count = following.device, len(prompts)
    nothing = torch.zeros(count, 1, dtype=widest_float(device), device=device)
    tokens = torch.zeros(count, 1, length, dtype=torch.long, device=device)
    open_ = _OpenBeams(torch.arange(count, device=device), nothing, tokens, following, state)
    finished = _FinishedBeams.none(count, width, length, device)
    done = _FinishedBeams.none(count, width, length, device)
    for step in range(length):
        grown, beam, token = _expand(open_, width, step)
        ends = base.space.is_eos(token.flatten()).view(token.shape) if step + 1 < length else torch.ones_like(token).bool()
        in_beam = torch.arange(token.shape[1], device=device) < width
        log_prob = torch.where(ends & in_beam, grown.log_prob, -torch.inf)
        finished = finished.best_of(replace(grown, score=log_prob / (step + 1) ** penalty, log_prob=log_prob))
        rest = torch.where(ends, -torch.inf, grown.log_prob)
        best, column = rest.topk(min(width, rest.shape[1]))
        # log-probabilities only fall, and no sequence is longer than `length`: this bounds the scores of unfinished prefixes
        over = (best[:, 0] == -torch.inf) | (finished.score[:, -1] >= best[:, 0] / length**penalty)
        order, num_over = over.argsort(descending=True, stable=True), int(over.sum())  # the only wait for an accelerator
        stopping, going = order[:num_over], order[num_over:]
        for part, whole in zip(vars(finished).values(), vars(done).values(), strict=True):
            whole[open_.prompt[stopping]] = part[stopping]
        if len(going) == 0:
            break
        finished, column = finished.rows(going), column[going]
        beam, token = beam[going].gather(1, column), token[going].gather(1, column)
        rows = (going[:, None] * open_.log_prob.shape[1] + beam).flatten()
        following, state = base.advance(base.select(open_.state, rows), token.flatten())
        prefixes = grown.tokens[going].gather(1, column[..., None].expand(-1, -1, length))
        open_ = _OpenBeams(open_.prompt[going], best[going], prefixes, following, state)
    return _candidates(prompts, done)


def _expand(open_: _OpenBeams, width: int, step: int) -> tuple[_FinishedBeams, Int[Tensor, "A C"], Int[Tensor, "A C"]]:
    """The likeliest prefixes with one more token, enough that `width` of them are unfinished; and their beam and token."""
    prompts, beams = open_.log_prob.shape
    few = min(2 * width, open_.following.shape[1])
    likely, token = open_.following.topk(few)
    total = (open_.log_prob.reshape(-1, 1) + widest(likely)).view(prompts, beams * few)
    best, place = total.topk(min(2 * width, beams * few))
    beam, chosen = place // few, token.view(prompts, -1).gather(1, place)
    tokens = open_.tokens.gather(1, beam[..., None].expand(-1, -1, open_.tokens.shape[2]))
    tokens[:, :, step] = chosen
    return _FinishedBeams(best, best, tokens, torch.full_like(chosen, step + 1)), beam, chosen


def _candidates(prompts: Sequences, done: _FinishedBeams) -> BeamCandidates:
    width, longest = done.score.shape[1], int(done.length.max())
    rows = prompts.repeat(width)
    length = torch.where(done.score.isfinite(), done.length, 0).flatten()
    tokens = torch.nn.functional.pad(rows.tokens, (0, longest))
    position = torch.arange(longest, device=tokens.device)
    inside = position < length[:, None]
    row = torch.arange(len(rows), device=tokens.device)[:, None].expand_as(inside)[inside]
    tokens[row, (rows.start[:, None] + position)[inside]] = done.tokens.flatten(0, 1)[:, :longest][inside]
    return BeamCandidates(Sequences(tokens, rows.start, rows.start + length), done.log_prob.cpu(), done.score.cpu())
