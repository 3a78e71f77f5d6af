"""The log-probability of given tokens under a softmax over many: logits come and go in pieces, all at once they never exist.

The gradient is made in the same visit to a piece, so that no logit is kept for it or made twice: the one of the hidden
vectors for each row, the one of weight and bias as a sum over rows for an incoming gradient of 1. When the gradient comes,
the sum is scaled by what most rows are given, and only the rows that are given something else (0 where a mask left them out,
weights of an importance sample) are visited once more. The result is exact for any incoming gradient; it is cheapest for a
mean, and costs two products more, of five, when every row is given its own.

Low precision and autocast multiply in their type and keep sums in float32, which is also the type of the answer. What it
leaves out: second derivatives, which raise an error.

Letters beside those of `esscher.space`: N rows, D width of a hidden vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

LOGITS_AT_ONCE = 2**24  # logits that other parts make in one piece: 64 MB
LOGITS_IN_CACHE = 2**22  # logits of a piece here: 16 MB
LEAST_ROWS = 256  # of a piece over a large vocabulary: with fewer, reading the weights anew costs more than the cache saves


def softmax_score(
    hidden: Float[Tensor, "N D"], weight: Float[Tensor, "V D"], bias: Float[Tensor, "V"] | None, tokens: Int[Tensor, "N"]
) -> Float[Tensor, "N"]:
    """log softmax(weight h + bias) at one token for each hidden vector h, once differentiable in all three."""
    place = hidden.device.type
    if torch.is_autocast_enabled(place) and hidden.dtype != torch.float64:
        kind = torch.get_autocast_dtype(place)
        hidden, weight, bias = hidden.to(kind), weight.to(kind), None if bias is None else bias.to(kind)
    with torch.autocast(place, enabled=False):
        if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (hidden, weight, bias)):
            return _Score.apply(hidden, weight, bias, tokens)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            found = [_score(piece)[0] for piece in _pieces(hidden, weight, bias, tokens)]
            return torch.cat(found) if found else hidden.new_empty(0, dtype=_exact(hidden.dtype))


class _Piece(NamedTuple):
    """Some rows and their logits, which are overwritten by whoever reads them, and by the next piece."""

    rows: slice
    hidden: Float[Tensor, "R D"]
    tokens: Int[Tensor, "R 1"]
    logits: Float[Tensor, "R V"]


def _pieces(
    hidden: Float[Tensor, "N D"], weight: Float[Tensor, "V D"], bias: Float[Tensor, "V"] | None, tokens: Int[Tensor, "N"]
) -> Iterator[_Piece]:
    """The rows piece by piece; logits are of the type that sums are kept in."""
    at_once = LOGITS_IN_CACHE if hidden.device.type == "cpu" else LOGITS_AT_ONCE
    step = max(LEAST_ROWS, at_once // len(weight))
    room = hidden.new_empty(min(step, len(hidden)), len(weight))
    for first in range(0, len(hidden), step):
        rows = slice(first, first + step)
        some = hidden[rows]
        if bias is None:
            logits = torch.mm(some, weight.T, out=room[: len(some)])
        else:
            logits = torch.addmm(bias, some, weight.T, out=room[: len(some)])
        yield _Piece(rows, some, tokens[rows, None], logits.to(_exact(logits.dtype)))


def _score(piece: _Piece) -> tuple[Float[Tensor, "R"], Float[Tensor, "R V"], Float[Tensor, "R 1"]]:
    """The scores; the probabilities times a number for each row, written over the logits; and these numbers."""
    own, top = piece.logits.gather(1, piece.tokens), piece.logits.amax(1, keepdim=True)
    shares = piece.logits.sub_(top).exp_()
    total = shares.sum(1, keepdim=True)
    return (own - top - total.log())[:, 0], shares, total


def _score_and_slope(piece: _Piece) -> tuple[Float[Tensor, "R"], Float[Tensor, "R V"], Float[Tensor, "R 1"]]:
    """The scores; their derivatives in the logits but for a factor, written over the logits; and the factor of each row."""
    found, shares, total = _score(piece)
    return found, shares.scatter_add_(1, piece.tokens, -total), -1 / total


@dataclass
class _Sums:
    """The gradients of weight and bias in the making, as far as they are wanted."""

    weight: Float[Tensor, "V D"] | None
    bias: Float[Tensor, "V"] | None

    def add(self, slope: Float[Tensor, "R V"], hidden: Float[Tensor, "R D"], scale: Float[Tensor, "R 1"]) -> None:
        """Add the share of some rows, each times its scale."""
        if self.weight is not None and self.weight.dtype == hidden.dtype:
            self.weight.addmm_(slope.T, hidden * scale)
        elif self.weight is not None:  # a product has the type of its factors: only their sum is exact
            self.weight.add_(slope.to(hidden.dtype).T @ (hidden * scale).to(hidden.dtype))
        if self.bias is not None:
            self.bias.addmv_(slope.T, scale[:, 0].to(slope.dtype))


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor) -> Tensor:
        by_hidden, by_weight, by_bias, _ = ctx.needs_input_grad
        found = torch.empty(len(hidden), dtype=_exact(hidden.dtype), device=hidden.device)
        towards = torch.empty_like(hidden) if by_hidden else None
        exact = found.dtype
        sums = _Sums(
            torch.zeros(weight.shape, dtype=exact, device=weight.device) if by_weight else None,
            torch.zeros(len(weight), dtype=exact, device=weight.device) if by_bias else None,
        )
        for piece in _pieces(hidden, weight, bias, tokens):
            found[piece.rows], slope, scale = _score_and_slope(piece)
            if towards is not None:
                towards[piece.rows] = (slope.to(weight.dtype) @ weight).mul_(scale)
            sums.add(slope, piece.hidden, scale)
        ctx.save_for_backward(hidden, weight, bias, tokens, towards, sums.weight, sums.bias)
        return found

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "Second derivatives were asked for (create_graph=True), and softmax_score has only first ones. No gradient was "
                "computed; take log_softmax of all logits instead."
            )
        hidden, weight, bias, tokens, towards, *made = ctx.saved_tensors
        by_hidden = None if towards is None else (towards * given[:, None]).to(hidden.dtype)
        if all(one is None for one in made):
            return by_hidden, None, None, None
        usual = _usual(given)
        sums = _Sums(*(None if one is None else one * usual for one in made))
        rows = (given != usual).nonzero()[:, 0]
        if len(rows):
            rest = (given - usual)[rows, None]
            with torch.autocast(hidden.device.type, enabled=False):
                for piece in _pieces(hidden[rows], weight, bias, tokens[rows]):
                    _, slope, scale = _score_and_slope(piece)
                    sums.add(slope, piece.hidden, scale * rest[piece.rows])
        by_weight, by_bias = (None if one is None else one.to(weight.dtype) for one in (sums.weight, sums.bias))
        return by_hidden, by_weight, by_bias, None


def _usual(given: Float[Tensor, "N"]) -> Float[Tensor, ""]:
    """The gradient of at least half of the rows if there is one, else 0: what the sums over all rows are worth."""
    if len(given) == 0:
        return given.new_zeros(())
    most = given.mode().values
    return torch.where(2 * (given == most).sum() >= len(given), most, torch.zeros_like(most))


def _exact(kind: torch.dtype) -> torch.dtype:
    """The type of sums over values of this type."""
    return torch.promote_types(kind, torch.float32)
