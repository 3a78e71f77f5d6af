"""The log-probability of given tokens under a softmax over many, and the level of its logits, their logsumexp.

Both have gradients of their own, which come later, so that they cannot be made in the same visit as in
`esscher.heads.softmax`: few logits are kept for them, many are made again in pieces. What it leaves out: second derivatives.

Letters as in `esscher.heads.softmax`.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from esscher.heads.softmax import LEAST_ROWS, LOGITS_IN_CACHE, as_multiplied, exact

LOGITS_KEPT = 2**26  # logits that are kept for the gradient: 256 MB


def softmax_score_and_level(
    hidden: Float[Tensor, "N D"], weight: Float[Tensor, "V D"], bias: Float[Tensor, "V"] | None, tokens: Int[Tensor, "N"]
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
    """log softmax(weight h + bias) at one token for each hidden vector h, and the logsumexp of weight h + bias."""
    hidden, weight, bias = as_multiplied(hidden, weight, bias)
    with torch.autocast(hidden.device.type, enabled=False):
        own, level = _OwnAndLevel.apply(hidden, weight, bias, tokens)  # type: ignore[no-untyped-call]
    return own - level, level


def _cuts(rows: int, vocab_size: int) -> Iterator[slice]:
    step = max(LEAST_ROWS, LOGITS_IN_CACHE // vocab_size)
    for first in range(0, rows, step):
        yield slice(first, min(first + step, rows))


class _OwnAndLevel(torch.autograd.Function):
    """The logit of each token, and the logsumexp of all."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor) -> tuple[Tensor, Tensor]:
        own = torch.empty(len(tokens), dtype=exact(hidden.dtype), device=hidden.device)
        level = torch.empty_like(own)
        keeps = any(ctx.needs_input_grad) and len(hidden) * len(weight) <= LOGITS_KEPT
        kept = []
        for rows in _cuts(len(hidden), len(weight)):
            logits = linear(hidden[rows], weight, bias)
            kept += [logits] if keeps else []
            logits = logits.to(own.dtype)
            own[rows] = logits.gather(1, tokens[rows, None])[:, 0]
            level[rows] = logits.logsumexp(1)
        ctx.save_for_backward(hidden, weight, bias, tokens, level, *kept)
        return own, level

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_own: Tensor, by_level: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        hidden, weight, bias, tokens, level, *kept = ctx.saved_tensors
        of_hidden, of_weight, of_bias, _ = ctx.needs_input_grad
        towards = torch.empty_like(hidden) if of_hidden else None
        sums = torch.zeros_like(weight, dtype=level.dtype) if of_weight else None
        bias_sums = torch.zeros_like(bias, dtype=level.dtype) if of_bias else None
        for number, rows in enumerate(_cuts(len(hidden), len(weight))):
            logits = kept[number] if kept else linear(hidden[rows], weight, bias)
            slope = (logits.to(level.dtype) - level[rows, None]).exp_().mul_(by_level[rows, None])
            slope.scatter_add_(1, tokens[rows, None], by_own[rows, None])
            if bias_sums is not None:
                bias_sums += slope.sum(0)
            slope = slope.to(weight.dtype)
            if towards is not None:
                torch.mm(slope, weight, out=towards[rows])
            if sums is not None and sums.dtype == slope.dtype:
                sums.addmm_(slope.T, hidden[rows])
            elif sums is not None:  # a product has the type of its factors: only their sum is exact
                sums += slope.T @ hidden[rows]
        by_weight, by_bias = (None if one is None else one.to(weight.dtype) for one in (sums, bias_sums))
        return towards, by_weight, by_bias, None
