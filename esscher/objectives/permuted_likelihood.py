"""Likelihood in an order of positions drawn by chance (Yang et al. 2019), and its control: tokens restored from what is left.

    PermutedLikelihood()    -log p(x_z | what comes before it in the order z) per target; targets are one token in `one_in`
    Denoising()             -log p(x_t | the text without a share of its tokens) per hidden token (Devlin et al. 2019)

Tokens that are not predicted are seen by all and see each other; targets come after them in a random order. In blocks, nothing
sees a later block. Symbols beside the vocabulary (separators, summaries) have a place in the order and are never predicted.
With one target for each token the mean over all orders is the likelihood in all of them.

Letters beside those of `esscher.space`: Q targets of a row, n tokens of a row.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from esscher.networks.mixers import FAR
from esscher.networks.xlnet import Arrangement, XLNetNetwork
from esscher.objective import Loss
from esscher.objectives.likelihood import loss_of, tokens_of
from esscher.objectives.spans import Spans
from esscher.randomness import Rng
from esscher.space import Sequences
from esscher.target import Base, Tilted

KEPT, ANOTHER = 0.1, 0.1  # shares of the hidden tokens that are shown after all, or replaced by any other
NOTHING = -1


@runtime_checkable
class AnyOrderBase(Base, Protocol):
    """A base that predicts any tokens of a text given others."""

    @property
    def any_order(self) -> XLNetNetwork:
        """Its network; an error where that predicts in one order only."""
        ...

    def arranged(self, inputs: Int[Tensor, "B T"], arrangement: Arrangement, asked: Int[Tensor, "B Q"]) -> Float[Tensor, "B Q"]:
        """The log-probability of each asked token in the place of a target, 0 where it is below 0, given inputs in an order."""
        ...


@dataclass(frozen=True)
class PermutedLikelihood:
    """Mean negative log-likelihood per target, in an order by chance for each row.

    Without `spans` the targets are the last of the order; with them, which tokens are targets is drawn first. `block` tokens at
    the start of a row see nothing of the rest. With `turned` the second half of the rows runs from right to left.
    """

    one_in: float = 6.0
    spans: Spans | None = None
    block: int | None = None
    turned: bool = False

    def __post_init__(self) -> None:
        if not self.one_in >= 1:
            raise ValueError(f"One token in one_in is predicted, so it is at least 1, not {self.one_in}.")
        if self.block is not None and self.block < 1:
            raise ValueError(f"A block has at least one token, not {self.block}.")

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        base = any_order(target.base)
        tokens_of(data)
        inside, token = _inside(data), data.tokens < base.space.vocab_size
        rows = [self._row(*row, rng) for row in zip(data.tokens, inside, token, data.counted & token, strict=True)]
        rank, chosen = (torch.stack(parts) for parts in zip(*rows, strict=True))
        targets, asked = _gathered(data.tokens, chosen)
        found = base.arranged(data.tokens * inside, Arrangement(rank, targets, turned=self.turned), asked)
        return _mean(base, found, asked)

    def _row(
        self,
        tokens: Int[Tensor, "T"],
        inside: Bool[Tensor, "T"],
        token: Bool[Tensor, "T"],
        may: Bool[Tensor, "T"],
        rng: Rng,
    ) -> tuple[Int[Tensor, "T"], Bool[Tensor, "T"]]:
        """The rank of each token of a row, and which are targets."""
        size = self.block or max(1, len(tokens))
        rank, chosen = torch.full_like(tokens, FAR), torch.zeros_like(may)
        for number, first in enumerate(range(0, len(tokens), size)):
            part = slice(first, first + size)
            turn = rng.permutation(len(tokens[part])).argsort().to(tokens.device)
            chosen[part] = self._targets(tokens[part], may[part], turn, rng)
            shown = token[part] & ~chosen[part]
            rank[part] = torch.where(shown, -1, turn) + number * (size + 1)
        return torch.where(inside, rank, FAR), chosen

    def _targets(self, tokens: Int[Tensor, "T"], may: Bool[Tensor, "T"], turn: Int[Tensor, "T"], rng: Rng) -> Bool[Tensor, "T"]:
        """Which tokens of a block are predicted."""
        count = max(1, round(int(may.sum()) / self.one_in))
        if self.spans is not None:
            return self.spans.chosen(tokens, may, count, self.one_in, rng=rng)
        last = turn.masked_fill(~may, NOTHING).argsort(descending=True)[:count]
        return torch.zeros_like(may).index_fill(0, last, True) & may


@dataclass(frozen=True)
class Denoising:
    """Mean negative log-likelihood per hidden token, of which some are shown after all, or replaced by any other token.

    With `turned` the second half of the rows runs from right to left.
    """

    share: float = 0.15
    turned: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"The share of hidden tokens lies in (0, 1], not {self.share}.")

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        base = any_order(target.base)
        tokens_of(data)
        size, inside = base.space.vocab_size, _inside(data)
        may = data.counted & (data.tokens < size)
        hidden = _some(may, self.share, rng)
        shares = torch.tensor([[1 - KEPT - ANOTHER, KEPT, ANOTHER]]).log()
        fate = rng.categorical(shares, may.numel()).view(may.shape).to(may.device)
        other = rng.categorical(torch.zeros(1, size), may.numel()).view(may.shape).to(may.device)
        blank = torch.full_like(data.tokens, base.any_order.blank)
        told = torch.where(fate == 0, blank, torch.where(fate == 1, data.tokens, other))
        targets, asked = _gathered(data.tokens, hidden)
        inputs = torch.where(hidden, told, data.tokens) * inside
        rank = torch.where(inside, 0, FAR)
        found = base.arranged(inputs, Arrangement(rank, targets, "content", self.turned), asked)
        return _mean(base, found, asked)


def any_order(base: Base) -> AnyOrderBase:
    """The base, which must predict in any order."""
    if not isinstance(base, AnyOrderBase):
        raise ValueError(f"A {type(base).__name__} predicts in one order only. Nothing was computed; use a base of kind xlnet.")
    assert base.any_order is not None
    return base


def _inside(data: Sequences) -> Bool[Tensor, "B T"]:
    return torch.arange(data.tokens.shape[1], device=data.tokens.device) < data.stop[:, None]


def _some(may: Bool[Tensor, "B T"], share: float, rng: Rng) -> Bool[Tensor, "B T"]:
    """A share of what may be hidden, at least one token of each row that has one."""
    place = torch.stack([rng.permutation(may.shape[1]) for _ in range(len(may))]).to(may.device).masked_fill(~may, FAR)
    count = (may.sum(1) * share).round().clamp(min=1)
    return (place.argsort(1).argsort(1) < count[:, None]) & may


def _gathered(tokens: Int[Tensor, "B T"], chosen: Bool[Tensor, "B T"]) -> tuple[Int[Tensor, "B Q"], Int[Tensor, "B Q"]]:
    """Where the chosen tokens stand and which they are, -1 where a row has fewer than others."""
    places = pad_sequence([row.nonzero()[:, 0] for row in chosen], batch_first=True, padding_value=NOTHING)
    asked = tokens.gather(1, places.clamp(min=0)).masked_fill(places < 0, NOTHING)
    return places.clamp(min=0), asked


def _mean(base: AnyOrderBase, found: Float[Tensor, "B Q"], asked: Int[Tensor, "B Q"]) -> Loss:
    count = int((asked >= 0).sum())
    value = -found.sum() / count
    return loss_of(base, value, {"nll": float(value.detach())}, count)
