"""Log-probabilities of given tokens under a softmax over many tokens, or a mixture of softmaxes, in chunks of logits.

The forward pass of a chunk also computes the gradient, so that no logit is kept or computed twice: that of the hidden vectors
per row, that of weight and bias as a sum over rows for an incoming gradient of 1. The backward pass scales the sum by the most
common incoming gradient, and visits again only the rows with another one. The result is exact for any incoming gradient; it is
cheapest for a mean, and costs two more matrix products, of five, when every row has its own.

The K rows of logits of a mixture are in one chunk: the gradient of each is that of its softmax times its posterior probability.
`softmax_log_probs_and_logsumexp` keeps up to `LOGITS_KEPT` logits for the backward pass; more are computed again. Low precision
and autocast multiply in their dtype and accumulate in float32, the dtype of the result. Second derivatives raise an error.

Letters: N tokens to score, K components, M rows of logits (N for a softmax, N K for a mixture with all components), R rows of a
chunk, P tokens of a chunk, D width of a hidden vector.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

Weight = Float[Tensor, "V D"]
Bias = Float[Tensor, "V"] | None
LogPrior = Float[Tensor, "N K"] | None

LOGITS_PER_CHUNK = 2**24  # logits of a chunk on accelerators, and in other modules: 64 MB
LOGITS_IN_CACHE = 2**22  # logits of a chunk on CPUs: 16 MB
LEAST_ROWS = 256  # rows of a chunk: with fewer, reading a large weight again costs more than the cache saves
LOGITS_KEPT = 2**26  # logits that are kept for the backward pass: 256 MB


def softmax_log_probs(hidden: Float[Tensor, "N D"], weight: Weight, bias: Bias, tokens: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
    """log softmax(weight h + bias) of one token for each hidden vector h, once differentiable in all three."""
    return _log_probs(hidden, weight, bias, tokens, None, 0.0)


def mixture_log_probs(
    hidden: Float[Tensor, "N K D"],
    log_prior: Float[Tensor, "N K"],
    weight: Weight,
    bias: Bias,
    tokens: Int[Tensor, "N"],
    floor: float = 0.0,
) -> Float[Tensor, "N"]:
    """log(floor + sum over k of prior_k softmax(weight h_k + bias)) of one token for each row, once differentiable in all four.
    Components whose log-prior is -inf are not computed; each row has at least one other."""
    present = log_prior > -torch.inf
    rows = hidden.flatten(0, 1) if bool(present.all()) else hidden[present]
    return _log_probs(rows, weight, bias, tokens, log_prior.to(accumulation_dtype(log_prior.dtype)), floor)


def _log_probs(
    hidden: Float[Tensor, "M D"], weight: Weight, bias: Bias, tokens: Int[Tensor, "N"], log_prior: LogPrior, floor: float
) -> Float[Tensor, "N"]:
    hidden, weight, bias = to_autocast_dtype(hidden, weight, bias)
    with torch.autocast(hidden.device.type, enabled=False):
        parts = (hidden, weight, bias, log_prior)
        if torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in parts):
            return _ChunkedLogProbs.apply(hidden, weight, bias, tokens, log_prior, floor)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            chunks = _chunks(hidden, weight, bias, tokens, log_prior)
            log_probs = [_mix(_softmax(chunk)[0], chunk.log_prior, floor)[0] for chunk in chunks]
            return torch.cat(log_probs) if log_probs else hidden.new_empty(0, dtype=accumulation_dtype(hidden.dtype))


class _Chunk(NamedTuple):
    """Some rows and their logits, which are overwritten by whoever reads them, and by the next chunk."""

    positions: slice  # its tokens among all tokens
    rows: slice  # its rows of logits among all rows
    hidden: Float[Tensor, "R D"]
    tokens: Int[Tensor, "R 1"]
    logits: Float[Tensor, "R V"]
    log_prior: Float[Tensor, "P K"] | None


def _chunks(
    hidden: Float[Tensor, "M D"], weight: Weight, bias: Bias, tokens: Int[Tensor, "N"], log_prior: LogPrior
) -> Iterator[_Chunk]:
    """The rows in chunks; logits have the dtype of sums."""
    at_once = LOGITS_IN_CACHE if hidden.device.type == "cpu" else LOGITS_PER_CHUNK
    step = max(LEAST_ROWS, at_once // len(weight))
    counts = None if log_prior is None else (log_prior > -torch.inf).sum(1)
    row_tokens = tokens if counts is None else tokens.repeat_interleave(counts)
    chunks: Iterable[tuple[slice, slice]] = [(rows, rows) for rows in _row_chunks(len(hidden), step)]
    if counts is not None:
        chunks = _mixture_chunks(counts, step)
    buffer = hidden.new_empty(min(max(step, 1 if log_prior is None else log_prior.shape[1]), len(hidden)), len(weight))
    for positions, rows in chunks:
        vectors = hidden[rows]
        if bias is None:
            logits = torch.mm(vectors, weight.T, out=buffer[: len(vectors)])
        else:
            logits = torch.addmm(bias, vectors, weight.T, out=buffer[: len(vectors)])
        priors = None if log_prior is None else log_prior[positions]
        yield _Chunk(positions, rows, vectors, row_tokens[rows, None], logits.to(accumulation_dtype(logits.dtype)), priors)


def _row_chunks(rows: int, step: int) -> list[slice]:
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]


def _mixture_chunks(counts: Int[Tensor, "N"], step: int) -> Iterator[tuple[slice, slice]]:
    """Tokens and rows of each chunk, for `counts` rows per token: whole tokens, up to `step` rows unless one alone has more."""
    ends, position, row = counts.cumsum(0).tolist(), 0, 0
    while position < len(ends):
        after = max(position + 1, bisect_right(ends, row + step))
        yield slice(position, after), slice(row, ends[after - 1])
        position, row = after, ends[after - 1]


def _mix(
    log_probs: Float[Tensor, "R"], log_prior: Float[Tensor, "P K"] | None, floor: float
) -> tuple[Float[Tensor, "P"], Float[Tensor, "P K"] | None]:
    """The log-probabilities of the tokens, from those under each component; and their derivatives in these, the posteriors."""
    if log_prior is None:
        return log_probs, None
    joint = log_prior.masked_scatter(log_prior > -torch.inf, log_probs) + log_prior
    total = joint.logsumexp(1)
    if floor:
        total = torch.logaddexp(total, torch.full_like(total, math.log(floor)))
    return total, (joint - total[:, None]).exp()


def _softmax(chunk: _Chunk) -> tuple[Float[Tensor, "R"], Float[Tensor, "R V"], Float[Tensor, "R 1"]]:
    """Log-probabilities of the tokens; unnormalized probabilities, written over the logits; and their sum for each row."""
    token_logit, top = chunk.logits.gather(1, chunk.tokens), chunk.logits.amax(1, keepdim=True)
    exps = chunk.logits.sub_(top).exp_()
    total = exps.sum(1, keepdim=True)
    return (token_logit - top - total.log())[:, 0], exps, total


def _log_probs_and_slope(
    chunk: _Chunk, floor: float
) -> tuple[Float[Tensor, "P"], Float[Tensor, "R V"], Float[Tensor, "R 1"], Float[Tensor, "P K"] | None]:
    """The log-probabilities; their derivatives in the logits up to a factor, written over the logits; the factor of each row;
    and the derivatives in the log-priors of a mixture."""
    row_log_probs, exps, total = _softmax(chunk)
    log_probs, posterior = _mix(row_log_probs, chunk.log_prior, floor)
    scale = -1 / total
    if posterior is not None and chunk.log_prior is not None:
        scale *= posterior[chunk.log_prior > -torch.inf][:, None]
    return log_probs, exps.scatter_add_(1, chunk.tokens, -total), scale, posterior


@dataclass
class _GradientSums:
    """Running sums of the gradients of weight and bias, where they are needed."""

    weight: Float[Tensor, "V D"] | None
    bias: Float[Tensor, "V"] | None

    def add(self, slope: Float[Tensor, "R V"], hidden: Float[Tensor, "R D"], scale: Float[Tensor, "R 1"]) -> None:
        """Add the contribution of some rows, each times its scale."""
        if self.weight is not None and self.weight.dtype == hidden.dtype:
            self.weight.addmm_(slope.T, hidden * scale)
        elif self.weight is not None:  # a product has the dtype of its factors: only their sum is exact
            self.weight.add_(slope.to(hidden.dtype).T @ (hidden * scale).to(hidden.dtype))
        if self.bias is not None:
            self.bias.addmv_(slope.T, scale[:, 0].to(slope.dtype))


class _ChunkedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, log_prior: Tensor | None, floor: float
    ) -> Tensor:
        by_hidden, by_weight, by_bias, *_ = ctx.needs_input_grad
        dtype = accumulation_dtype(hidden.dtype)
        log_probs = torch.empty(len(tokens), dtype=dtype, device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if by_hidden else None
        posteriors = None if log_prior is None else torch.empty_like(log_prior)
        sums = _GradientSums(
            torch.zeros(weight.shape, dtype=dtype, device=weight.device) if by_weight else None,
            torch.zeros(len(weight), dtype=dtype, device=weight.device) if by_bias else None,
        )
        for chunk in _chunks(hidden, weight, bias, tokens, log_prior):
            log_probs[chunk.positions], slope, scale, posterior = _log_probs_and_slope(chunk, floor)
            if posteriors is not None and posterior is not None:
                posteriors[chunk.positions] = posterior
            if grad_hidden is not None:
                grad_hidden[chunk.rows] = (slope.to(weight.dtype) @ weight).mul_(scale)
            sums.add(slope, chunk.hidden, scale)
        ctx.floor = floor
        ctx.save_for_backward(hidden, weight, bias, tokens, log_prior, grad_hidden, posteriors, sums.weight, sums.bias)
        return log_probs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, Tensor | None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "Second derivatives were asked for (create_graph=True), and softmax_log_probs has only first ones. No gradient "
                "was computed; take log_softmax of all logits instead."
            )
        hidden, weight, bias, tokens, log_prior, grad_hidden, posteriors, *stored_sums = ctx.saved_tensors
        token_of_row = None if log_prior is None else (log_prior > -torch.inf).nonzero()[:, 0]
        row_grad = grad if token_of_row is None else grad[token_of_row]
        grad_hidden = None if grad_hidden is None else (grad_hidden * row_grad[:, None]).to(hidden.dtype)
        grad_prior = None if posteriors is None else posteriors * grad[:, None]
        if all(part is None for part in stored_sums):
            return grad_hidden, None, None, None, grad_prior, None
        mode = grad.mode().values if len(grad) else grad.new_zeros(())
        common = torch.where(2 * (grad == mode).sum() >= len(grad), mode, torch.zeros_like(mode))  # of at least half, or 0
        sums = _GradientSums(*(None if part is None else part * common for part in stored_sums))
        other = grad != common
        if bool(other.any()):
            rows = other if token_of_row is None else other[token_of_row]
            rest = (row_grad - common)[rows, None]
            priors = None if log_prior is None else log_prior[other]
            with torch.autocast(hidden.device.type, enabled=False):
                for chunk in _chunks(hidden[rows], weight, bias, tokens[other], priors):
                    _, slope, scale, _ = _log_probs_and_slope(chunk, ctx.floor)
                    sums.add(slope, chunk.hidden, scale * rest[chunk.rows])
        grad_weight, grad_bias = (None if part is None else part.to(weight.dtype) for part in (sums.weight, sums.bias))
        return grad_hidden, grad_weight, grad_bias, None, grad_prior, None


def to_autocast_dtype(first: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """The tensors in the dtype of autocast, if it is on: for functions of several of them that torch does not cast itself."""
    device = first.device.type
    if not torch.is_autocast_enabled(device) or first.dtype == torch.float64:
        return first, *others
    dtype = torch.get_autocast_dtype(device)
    return tuple(None if part is None else part.to(dtype) for part in (first, *others))


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums over values of this dtype: float32 or better."""
    return torch.promote_types(dtype, torch.float32)


def step_log_probs(logits: Float[Tensor, "*B V"]) -> Float[Tensor, "*B V"]:
    """Log-probabilities of the next token in float32 or better, normalised whatever the dtype of the logits."""
    return torch.log_softmax(logits, -1, dtype=accumulation_dtype(logits.dtype))


def no_autocast(device: torch.device) -> torch.autocast:
    """Within it, operators compute in the dtype of their inputs: for decoding steps, whose caches are written in place, and for
    functions that cast their inputs themselves."""
    return torch.autocast(device.type, enabled=False)


def softmax_log_probs_and_logsumexp(
    hidden: Float[Tensor, "N D"], weight: Weight, bias: Bias, tokens: Int[Tensor, "N"]
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
    """log softmax(weight h + bias) of one token for each hidden vector h, and the logsumexp of weight h + bias."""
    hidden, weight, bias = to_autocast_dtype(hidden, weight, bias)
    with torch.autocast(hidden.device.type, enabled=False):
        token_logit, logsumexp = _TokenLogitAndLogsumexp.apply(hidden, weight, bias, tokens)  # type: ignore[no-untyped-call]
    return token_logit - logsumexp, logsumexp


class _TokenLogitAndLogsumexp(torch.autograd.Function):
    """The logit of each token, and the logsumexp of all logits."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor) -> tuple[Tensor, Tensor]:
        token_logit = torch.empty(len(tokens), dtype=accumulation_dtype(hidden.dtype), device=hidden.device)
        logsumexp = torch.empty_like(token_logit)
        keep_logits = any(ctx.needs_input_grad) and len(hidden) * len(weight) <= LOGITS_KEPT
        stored_logits = []
        for rows in _row_chunks(len(hidden), max(LEAST_ROWS, LOGITS_IN_CACHE // len(weight))):
            logits = linear(hidden[rows], weight, bias)
            stored_logits += [logits] if keep_logits else []
            logits = logits.to(token_logit.dtype)
            token_logit[rows] = logits.gather(1, tokens[rows, None])[:, 0]
            logsumexp[rows] = logits.logsumexp(1)
        ctx.save_for_backward(hidden, weight, bias, tokens, logsumexp, *stored_logits)
        return token_logit, logsumexp

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logit: Tensor, grad_logsumexp: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        hidden, weight, bias, tokens, logsumexp, *stored_logits = ctx.saved_tensors
        by_hidden, by_weight, by_bias, _ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if by_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=logsumexp.dtype) if by_weight else None
        grad_bias = torch.zeros_like(bias, dtype=logsumexp.dtype) if by_bias else None
        for number, rows in enumerate(_row_chunks(len(hidden), max(LEAST_ROWS, LOGITS_IN_CACHE // len(weight)))):
            logits = stored_logits[number] if stored_logits else linear(hidden[rows], weight, bias)
            slope = (logits.to(logsumexp.dtype) - logsumexp[rows, None]).exp_().mul_(grad_logsumexp[rows, None])
            slope.scatter_add_(1, tokens[rows, None], grad_logit[rows, None])
            if grad_bias is not None:
                grad_bias += slope.sum(0)
            slope = slope.to(weight.dtype)
            if grad_hidden is not None:
                torch.mm(slope, weight, out=grad_hidden[rows])
            if grad_weight is not None and grad_weight.dtype == slope.dtype:
                grad_weight.addmm_(slope.T, hidden[rows])
            elif grad_weight is not None:  # a product has the dtype of its factors: only their sum is exact
                grad_weight += slope.T @ hidden[rows]
        grad_weight, grad_bias = (None if part is None else part.to(weight.dtype) for part in (grad_weight, grad_bias))
        return grad_hidden, grad_weight, grad_bias, None
