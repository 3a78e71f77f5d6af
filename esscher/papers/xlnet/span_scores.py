"""Joint log-probabilities of spans of a text given all the rest, by a network that predicts in any order (thesis, 4.2.6).

    permuted_spans       sum of log p(x_t | the rest, the tokens of the span before x_t): the query stream, left to right
    independent_spans    sum of log p(x_t | the rest): all tokens of the span are blanks, as denoising is trained
    filled_spans         as `permuted_spans`, but by the denoising network, which fills one blank after the other

All three are normalised over spans, hence comparable; the second one cannot know that tokens of a span depend on each other.
Letters: B rows, T positions, N positions of a span.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.bases.network import NetworkBase
from esscher.networks.xlnet import FactorizationOrder

PERMUTED, DENOISING = "permutation LM", "denoising"
SpanScore = Callable[[NetworkBase, Int[Tensor, "B T"], Int[Tensor, "B N"]], Float[Tensor, "B"]]


def permuted_spans(base: NetworkBase, tokens: Int[Tensor, "B T"], span: Int[Tensor, "B N"]) -> Float[Tensor, "B"]:
    """Each token of the span given the rest and the tokens before it in the span."""
    place = torch.arange(span.shape[1], device=tokens.device).expand_as(span)
    rank = torch.full_like(tokens, -1).scatter(1, span, place)
    return base.log_probs_in_order(tokens, FactorizationOrder(rank, span), tokens.gather(1, span)).double().sum(1)


def independent_spans(base: NetworkBase, tokens: Int[Tensor, "B T"], span: Int[Tensor, "B N"]) -> Float[Tensor, "B"]:
    """Each token of the span given the rest alone."""
    return _blanked(base, tokens, span, span)


def filled_spans(base: NetworkBase, tokens: Int[Tensor, "B T"], span: Int[Tensor, "B N"]) -> Float[Tensor, "B"]:
    """Each token of the span given the rest and the tokens before it in the span, which are no blanks any more."""
    size = span.shape[1]
    return torch.stack([_blanked(base, tokens, span[:, first:], span[:, first : first + 1]) for first in range(size)]).sum(0)


def _blanked(
    base: NetworkBase, tokens: Int[Tensor, "B T"], blanks: Int[Tensor, "B M"], targets: Int[Tensor, "B N"]
) -> Float[Tensor, "B"]:
    inputs = tokens.scatter(1, blanks, base.any_order.blank)
    order = FactorizationOrder(torch.zeros_like(tokens), targets, "content")
    return base.log_probs_in_order(inputs, order, tokens.gather(1, targets)).double().sum(1)
