"""The log-probability of given tokens under a softmax over many, or a mixture of softmaxes: logits come and go in pieces.

The gradient is made in the same visit to a piece, so that no logit is kept for it or made twice: the one of the hidden
vectors for each row, the one of weight and bias as a sum over rows for an incoming gradient of 1. When the gradient comes,
the sum is scaled by what most rows are given, and only the rows that are given something else (0 where a mask left them out,
weights of an importance sample) are visited once more. The result is exact for any incoming gradient; it is cheapest for a
mean, and costs two products more, of five, when every row is given its own.

A mixture has K rows of logits for a token, all in one piece: the slope of each is that of its own softmax times its share in
the token's probability. A component whose prior is 0 is no row at all, and costs nothing.

Low precision and autocast multiply in their type and keep sums in float32, which is also the type of the answer. What it
leaves out: second derivatives, which raise an error.

Letters beside those of `esscher.space`: N tokens to score, K components, M rows of logits (N of a softmax, N K of a mixture
whose components all are there), R rows of a piece, D width of a hidden vector.
"""

import math
from bisect import bisect_right
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
    return _scored(hidden, weight, bias, tokens, None, 0.0)


def mixture_score(
    hidden: Float[Tensor, "N K D"],
    log_prior: Float[Tensor, "N K"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    tokens: Int[Tensor, "N"],
    floor: float = 0.0,
) -> Float[Tensor, "N"]:
    """log(floor + sum over k of prior_k softmax(weight h_k + bias)) at one token for each row, once differentiable in all four.

    A component whose log-prior is -inf is not computed; each row has at least one other.
    """
    present = log_prior > -torch.inf
    rows = hidden.flatten(0, 1) if bool(present.all()) else hidden[present]
    return _scored(rows, weight, bias, tokens, log_prior.to(exact(log_prior.dtype)), floor)


def _scored(
    hidden: Float[Tensor, "M D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    tokens: Int[Tensor, "N"],
    log_prior: Float[Tensor, "N K"] | None,
    floor: float,
) -> Float[Tensor, "N"]:
    hidden, weight, bias = as_multiplied(hidden, weight, bias)
    with torch.autocast(hidden.device.type, enabled=False):
        if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (hidden, weight, bias, log_prior)):
            return _Score.apply(hidden, weight, bias, tokens, log_prior, floor)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            pieces = _pieces(hidden, weight, bias, tokens, log_prior)
            found = [_mixed(_score(piece)[0], piece.log_prior, floor)[0] for piece in pieces]
            return torch.cat(found) if found else hidden.new_empty(0, dtype=exact(hidden.dtype))


class _Piece(NamedTuple):
    """Some rows and their logits, which are overwritten by whoever reads them, and by the next piece."""

    places: slice  # of the tokens among all tokens
    rows: slice  # of the logits among all rows
    hidden: Float[Tensor, "R D"]
    tokens: Int[Tensor, "R 1"]
    logits: Float[Tensor, "R V"]
    log_prior: Float[Tensor, "P K"] | None


def _pieces(
    hidden: Float[Tensor, "M D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    tokens: Int[Tensor, "N"],
    log_prior: Float[Tensor, "N K"] | None,
) -> Iterator[_Piece]:
    """The rows piece by piece; logits are of the type that sums are kept in."""
    at_once = LOGITS_IN_CACHE if hidden.device.type == "cpu" else LOGITS_AT_ONCE
    step = max(LEAST_ROWS, at_once // len(weight))
    counts = None if log_prior is None else (log_prior > -torch.inf).sum(1)
    answers = tokens if counts is None else tokens.repeat_interleave(counts)
    cuts = _cuts(len(hidden), step) if counts is None else _cuts_of_mixtures(counts.cumsum(0).tolist(), step)
    room = hidden.new_empty(min(max(step, 1 if log_prior is None else log_prior.shape[1]), len(hidden)), len(weight))
    for places, rows in cuts:
        some = hidden[rows]
        if bias is None:
            logits = torch.mm(some, weight.T, out=room[: len(some)])
        else:
            logits = torch.addmm(bias, some, weight.T, out=room[: len(some)])
        priors = None if log_prior is None else log_prior[places]
        yield _Piece(places, rows, some, answers[rows, None], logits.to(exact(logits.dtype)), priors)


def _cuts(rows: int, step: int) -> Iterator[tuple[slice, slice]]:
    """Which tokens and which rows make a piece, where each token has one row."""
    for first in range(0, rows, step):
        yield slice(first, first + step), slice(first, first + step)


def _cuts_of_mixtures(ends: list[int], step: int) -> Iterator[tuple[slice, slice]]:
    """The same where the rows of a token end at `ends`: whole tokens, of up to `step` rows unless one alone has more."""
    place, row = 0, 0
    while place < len(ends):
        after = max(place + 1, bisect_right(ends, row + step))
        yield slice(place, after), slice(row, ends[after - 1])
        place, row = after, ends[after - 1]


def _mixed(
    scores: Float[Tensor, "R"], log_prior: Float[Tensor, "P K"] | None, floor: float
) -> tuple[Float[Tensor, "P"], Float[Tensor, "P K"] | None]:
    """The tokens' scores of those of their components, and their derivatives in these."""
    if log_prior is None:
        return scores, None
    joint = log_prior.masked_scatter(log_prior > -torch.inf, scores) + log_prior
    total = joint.logsumexp(1)
    if floor:
        total = torch.logaddexp(total, torch.full_like(total, math.log(floor)))
    return total, (joint - total[:, None]).exp()


def _score(piece: _Piece) -> tuple[Float[Tensor, "R"], Float[Tensor, "R V"], Float[Tensor, "R 1"]]:
    """The scores; the probabilities times a number for each row, written over the logits; and these numbers."""
    own, top = piece.logits.gather(1, piece.tokens), piece.logits.amax(1, keepdim=True)
    shares = piece.logits.sub_(top).exp_()
    total = shares.sum(1, keepdim=True)
    return (own - top - total.log())[:, 0], shares, total


def _score_and_slope(
    piece: _Piece, floor: float
) -> tuple[Float[Tensor, "P"], Float[Tensor, "R V"], Float[Tensor, "R 1"], Float[Tensor, "P K"] | None]:
    """The tokens' scores; their derivatives in the logits but for a factor, written over the logits; the factor of each row;
    and the derivatives in the log-priors of a mixture."""
    scores, shares, total = _score(piece)
    found, share = _mixed(scores, piece.log_prior, floor)
    scale = -1 / total
    if share is not None and piece.log_prior is not None:
        scale *= share[piece.log_prior > -torch.inf][:, None]
    return found, shares.scatter_add_(1, piece.tokens, -total), scale, share


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
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, log_prior: Tensor | None, floor: float
    ) -> Tensor:
        by_hidden, by_weight, by_bias, *_ = ctx.needs_input_grad
        kind = exact(hidden.dtype)
        found = torch.empty(len(tokens), dtype=kind, device=hidden.device)
        towards = torch.empty_like(hidden) if by_hidden else None
        shares = None if log_prior is None else torch.empty_like(log_prior)
        sums = _Sums(
            torch.zeros(weight.shape, dtype=kind, device=weight.device) if by_weight else None,
            torch.zeros(len(weight), dtype=kind, device=weight.device) if by_bias else None,
        )
        for piece in _pieces(hidden, weight, bias, tokens, log_prior):
            found[piece.places], slope, scale, share = _score_and_slope(piece, floor)
            if shares is not None and share is not None:
                shares[piece.places] = share
            if towards is not None:
                towards[piece.rows] = (slope.to(weight.dtype) @ weight).mul_(scale)
            sums.add(slope, piece.hidden, scale)
        ctx.floor = floor
        ctx.save_for_backward(hidden, weight, bias, tokens, log_prior, towards, shares, sums.weight, sums.bias)
        return found

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, Tensor | None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "Second derivatives were asked for (create_graph=True), and softmax_score has only first ones. No gradient was "
                "computed; take log_softmax of all logits instead."
            )
        hidden, weight, bias, tokens, log_prior, towards, shares, *made = ctx.saved_tensors
        owner = None if log_prior is None else (log_prior > -torch.inf).nonzero()[:, 0]  # the token of each row
        of_rows = given if owner is None else given[owner]
        by_hidden = None if towards is None else (towards * of_rows[:, None]).to(hidden.dtype)
        by_prior = None if shares is None else shares * given[:, None]
        if all(one is None for one in made):
            return by_hidden, None, None, None, by_prior, None
        usual = _usual(given)
        sums = _Sums(*(None if one is None else one * usual for one in made))
        unusual = given != usual
        if bool(unusual.any()):
            chosen = unusual if owner is None else unusual[owner]
            rest = (of_rows - usual)[chosen, None]
            priors = None if log_prior is None else log_prior[unusual]
            with torch.autocast(hidden.device.type, enabled=False):
                for piece in _pieces(hidden[chosen], weight, bias, tokens[unusual], priors):
                    _, slope, scale, _ = _score_and_slope(piece, ctx.floor)
                    sums.add(slope, piece.hidden, scale * rest[piece.rows])
        by_weight, by_bias = (None if one is None else one.to(weight.dtype) for one in (sums.weight, sums.bias))
        return by_hidden, by_weight, by_bias, None, by_prior, None


def _usual(given: Float[Tensor, "N"]) -> Float[Tensor, ""]:
    """The gradient of at least half of the rows if there is one, else 0: what the sums over all rows are worth."""
    if len(given) == 0:
        return given.new_zeros(())
    most = given.mode().values
    return torch.where(2 * (given == most).sum() >= len(given), most, torch.zeros_like(most))


def as_multiplied(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The factors in the type that autocast multiplies in, if it is on."""
    place = hidden.device.type
    if not torch.is_autocast_enabled(place) or hidden.dtype == torch.float64:
        return hidden, weight, bias
    kind = torch.get_autocast_dtype(place)
    return hidden.to(kind), weight.to(kind), None if bias is None else bias.to(kind)


def exact(kind: torch.dtype) -> torch.dtype:
    """The type of sums over values of this type."""
    return torch.promote_types(kind, torch.float32)
