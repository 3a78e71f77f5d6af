"""Permutation language modelling (Yang et al. 2019), and masked language modelling on the same network as a control.

    PermutationLM()    -log p(x_z | what comes before it in a random order z) per target; one token in `one_in` is a target
    MaskedLM()         -log p(x_t | the text with masked tokens) per masked token (Devlin et al. 2019)

Tokens that are no targets are visible to all tokens; targets follow them in a random order. Symbols outside the vocabulary
(separators, summaries) have a place in the order and are never targets. `SpanSampler` chooses targets in spans of n units, with
probability proportional to 1 / n, each within a stretch of n x `one_in` tokens; the remaining targets are single tokens. Units
are words in the published text and pieces in the authors' program, which looks for the start of a word in the wrong place.
Letters beside those of `esscher.core.space`: Q targets of a row.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from esscher.bases.network import NetworkBase
from esscher.bases.wrappers import WithMemory
from esscher.core.objective import Loss
from esscher.core.randomness import Rng
from esscher.core.space import Sequences
from esscher.core.target import Base, Tilted
from esscher.networks.token_mixers import NEVER_VISIBLE
from esscher.networks.xlnet import FactorizationOrder
from esscher.objectives.config import MaskedLMConfig, PermutationLMConfig, TextTokenizer
from esscher.objectives.likelihood import count_tokens, loss_with_penalty


@dataclass(frozen=True)
class WordBoundaries:
    """Which tokens of a vocabulary begin, and which end, with whitespace."""

    opens: Bool[Tensor, "V"]
    closes: Bool[Tensor, "V"]

    def begins(self, tokens: Int[Tensor, "T"]) -> Bool[Tensor, "T"]:
        """Whether a word begins with each token; symbols outside the vocabulary are words."""
        known = tokens < len(self.opens)
        number = torch.where(known, tokens, 0)
        after = torch.where(known, self.closes.to(tokens.device)[number], True).roll(1)
        if len(after):
            after[0] = True
        return after | self.opens.to(tokens.device)[number] | ~known


def word_boundaries(tokenizer: TextTokenizer) -> WordBoundaries | None:
    """Where words begin among the tokens of a tokenizer; None where every token is a word. The end symbol separates words."""
    if tokenizer.name == "word":
        return None
    pieces = [tokenizer.decode([[number]])[0] or " " for number in range(tokenizer.vocab_size)]
    opens, closes = (torch.tensor([piece[part].isspace() for piece in pieces]) for part in (0, -1))
    return WordBoundaries(opens, closes)


@dataclass(frozen=True)
class SpanSampler:
    """Draws spans of targets; without `words` every token begins a word."""

    unit: Literal["words", "pieces"]
    longest: int = 5
    words: WordBoundaries | None = None

    def __post_init__(self) -> None:
        if self.unit not in ("words", "pieces"):
            raise ValueError(f"Unknown unit of spans {self.unit!r}; the known ones are words and pieces.")
        if self.longest < 1:
            raise ValueError(f"The longest span has at least one unit, not {self.longest}.")

    def chosen(
        self, tokens: Int[Tensor, "T"], may: Bool[Tensor, "T"], count: int, one_in: float, *, rng: Rng
    ) -> Bool[Tensor, "T"]:
        """Choose `count` targets among the tokens that may be predicted, or all of these if they are fewer."""
        begins = [True] * len(tokens) if self.words is None else self.words.begins(tokens).tolist()
        allowed, target = may.tolist(), [False] * len(tokens)
        missing, place = min(count, sum(allowed)), 0
        sizes = (rng.categorical(-torch.arange(1, self.longest + 1).double().log()[None], max(1, len(tokens)))[0] + 1).tolist()
        for size in sizes:
            stretch = max(size, min(round(size * one_in), len(tokens)))
            first = place + int(rng.categorical(torch.zeros(1, stretch - size + 1))[0, 0])
            last = self._end(begins, first, size)
            if last is None or missing == 0:
                break
            for position in range(last[0], last[1]):
                if allowed[position] and missing:
                    target[position], missing = True, missing - 1
            place = max(last[1], place + stretch)
        single = [position for position in rng.permutation(len(tokens)).tolist() if allowed[position] and not target[position]]
        for position in single[:missing]:
            target[position] = True
        return torch.tensor(target, dtype=torch.bool, device=tokens.device)

    def _end(self, begins: list[bool], first: int, size: int) -> tuple[int, int] | None:
        """Start and stop of the span that begins at the next word; None if the text ends before."""
        while first < len(begins) and not begins[first]:
            first += 1
        if first >= len(begins):
            return None
        last, units = first + 1, 1
        while last < len(begins) and (units < size or (self.unit == "words" and not begins[last])):
            units += 1 if self.unit == "pieces" else begins[last]
            last += 1
        return first, last


UNCHANGED_PROBABILITY, RANDOM_PROBABILITY = 0.1, 0.1  # of masked tokens that stay, or become a random token
NO_TARGET = -1


AnyOrderBase = NetworkBase | WithMemory


@dataclass(frozen=True)
class PermutationLM:
    """Mean negative log-likelihood per target, in a random order for each row; without spans the targets are the last tokens
    of the order. From left to right the targets are random tokens, each given all before it. Rows have blocks of `block`
    tokens, which see no later block. With `reversed_half` the second half of the rows runs from right to left."""

    config: PermutationLMConfig = field(default_factory=PermutationLMConfig)
    words: WordBoundaries | None = None
    block: int | None = None
    reversed_half: bool = False

    def __post_init__(self) -> None:
        if self.block is not None and self.block < 1:
            raise ValueError(f"A block has at least one token, not {self.block}.")

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        base = require_any_order(target.base)
        count_tokens(data)
        inside, token = data.inside, data.tokens < base.space.vocab_size
        rows = [self._row(*row, rng) for row in zip(data.tokens, inside, token, data.counted & token, strict=True)]
        rank, chosen = (torch.stack(parts) for parts in zip(*rows, strict=True))
        targets, target_tokens = _gather_targets(data.tokens, chosen)
        order = FactorizationOrder(rank, targets, reversed_half=self.reversed_half)
        return _mean_loss(base, base.log_probs_in_order(data.tokens * inside, order, target_tokens), target_tokens)

    def _row(
        self, tokens: Int[Tensor, "T"], inside: Bool[Tensor, "T"], token: Bool[Tensor, "T"], may: Bool[Tensor, "T"], rng: Rng
    ) -> tuple[Int[Tensor, "T"], Bool[Tensor, "T"]]:
        """The rank of each token of a row in the order, and which tokens are targets."""
        config, size = self.config, self.block or max(1, len(tokens))
        rank, chosen = torch.full_like(tokens, NEVER_VISIBLE), torch.zeros_like(may)
        for number, first in enumerate(range(0, len(tokens), size)):
            part = slice(first, first + size)
            order = rng.permutation(len(tokens[part])).argsort().to(tokens.device)
            count = max(1, round(int(may[part].sum()) / config.one_in))
            if config.order == "left-to-right" or config.spans == "none":
                last = order.masked_fill(~may[part], NO_TARGET).argsort(descending=True)[:count]
                chosen[part] = torch.zeros_like(may[part]).index_fill(0, last, True) & may[part]
            else:
                spans = SpanSampler(config.spans, config.max_span_length, self.words)
                chosen[part] = spans.chosen(tokens[part], may[part], count, config.one_in, rng=rng)
            if config.order == "left-to-right":
                rank[part] = torch.arange(len(order), device=order.device) + number * (size + 1)
                continue
            visible = token[part] & ~chosen[part]
            rank[part] = torch.where(visible, -1, order) + number * (size + 1)
        return torch.where(inside, rank, NEVER_VISIBLE), chosen


@dataclass(frozen=True)
class MaskedLM:
    """Mean negative log-likelihood per masked token; some of these stay visible, or become a random token. With `reversed_half`
    the second half of the rows runs from right to left."""

    config: MaskedLMConfig = field(default_factory=MaskedLMConfig)
    reversed_half: bool = False

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        base = require_any_order(target.base)
        count_tokens(data)
        size, inside = base.space.vocab_size, data.inside
        may = data.counted & (data.tokens < size)
        place = torch.stack([rng.permutation(may.shape[1]) for _ in range(len(may))]).to(may.device)
        rank = place.masked_fill(~may, NEVER_VISIBLE).argsort(1).argsort(1)
        masked = (rank < (may.sum(1) * self.config.mask_probability).round().clamp(min=1)[:, None]) & may  # at least one a row
        shares = torch.tensor(
            [[1 - UNCHANGED_PROBABILITY - RANDOM_PROBABILITY, UNCHANGED_PROBABILITY, RANDOM_PROBABILITY]]
        ).log()
        fate = rng.categorical(shares, may.numel()).view(may.shape).to(may.device)
        other = rng.categorical(torch.zeros(1, size), may.numel()).view(may.shape).to(may.device)
        blank = torch.full_like(data.tokens, base.any_order.blank)
        corrupted = torch.where(fate == 0, blank, torch.where(fate == 1, data.tokens, other))
        targets, target_tokens = _gather_targets(data.tokens, masked)
        inputs = torch.where(masked, corrupted, data.tokens) * inside
        order = FactorizationOrder(torch.where(inside, 0, NEVER_VISIBLE), targets, "content", self.reversed_half)
        return _mean_loss(base, base.log_probs_in_order(inputs, order, target_tokens), target_tokens)


def require_any_order(base: Base) -> AnyOrderBase:
    """The base, if it predicts in any order; an error otherwise."""
    if not isinstance(base, AnyOrderBase):
        raise ValueError(f"A {type(base).__name__} predicts in one order only. Nothing was computed; use a base of kind xlnet.")
    assert base.any_order is not None  # raises the error for other networks
    return base


def _gather_targets(tokens: Int[Tensor, "B T"], chosen: Bool[Tensor, "B T"]) -> tuple[Int[Tensor, "B Q"], Int[Tensor, "B Q"]]:
    """Positions and tokens of the targets; tokens are -1 where a row has fewer than others."""
    places = pad_sequence([row.nonzero()[:, 0] for row in chosen], batch_first=True, padding_value=NO_TARGET)
    target_tokens = tokens.gather(1, places.clamp(min=0)).masked_fill(places < 0, NO_TARGET)
    return places.clamp(min=0), target_tokens


def _mean_loss(base: AnyOrderBase, log_probs: Float[Tensor, "B Q"], target_tokens: Int[Tensor, "B Q"]) -> Loss:
    count = int((target_tokens >= 0).sum())
    value = -log_probs.sum() / count
    return loss_with_penalty(base, value, {"nll": float(value.detach())}, count)
