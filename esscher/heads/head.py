"""The interface of heads (hidden vectors to distributions over tokens), what heads share, and the plain softmax head.

The softmax of a head's logits is its distribution; their logsumexp changes no probability, so training may give it a meaning
(`esscher.objectives.exposure_bias`). Hidden vectors keep their shape, [..., T, D] for sequences, for heads that act along a
sequence. Tokens below 0 are not scored. A head with tied weights refers to the embedding table without registering it.

Letters: N rows, D width of a hidden vector.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from esscher.heads.chunked_log_softmax import softmax_log_probs, softmax_log_probs_and_logsumexp

MIN_STEPS_TO_RELAYOUT = 32  # number of steps from which a copy of the weights in another memory layout pays off

LogitsFn = Callable[[Tensor], Tensor]
"""Hidden vectors to logits: `Float[Tensor, "*S D"] -> Float[Tensor, "*S V"]`."""
LogProbsAndLogsumexp = tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]


@runtime_checkable
class Head(Protocol):
    """What a network requires of the `nn.Module` that computes its logits."""

    def logits(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
        """Unnormalized log-probabilities of all tokens."""

    def log_probs(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        """The log-probability of one token per hidden vector, 0 where it is below 0; never holds all logits."""

    def log_probs_and_logsumexp(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> LogProbsAndLogsumexp:
        """`log_probs` and the logsumexp of the logits, both 0 where a token is below 0."""

    def logits_fn(self, steps: int) -> LogitsFn:
        """`logits` for `steps` decoding steps, with the current weights and without dropout."""


class NetworkWithHead(nn.Module):
    """Base class of networks whose output is a `head`."""

    head: Head

    def output(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
        return self.head.logits(hidden)

    def log_probs(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return self.head.log_probs(hidden, tokens)

    def log_probs_and_logsumexp(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> LogProbsAndLogsumexp:
        return self.head.log_probs_and_logsumexp(hidden, tokens)

    @property
    def _like(self) -> Tensor:
        """An empty tensor with the dtype and device of the weights."""
        weight = next(self.parameters())
        return torch.empty(0, dtype=weight.dtype, device=weight.device)


class TiedWeightHead(nn.Module):
    """Base class of heads whose weight is the first rows of an embedding `table`, or, without one, their own."""

    weight: Tensor  # absent with a table

    def __init__(self, vocab_size: int, width: int, table: nn.Embedding | None):
        super().__init__()
        self.vocab_size, self._table = vocab_size, (table,)  # a tuple, so that the table is not registered here
        if table is not None and (table.embedding_dim != width or table.num_embeddings < vocab_size):
            raise ValueError(
                f"A table of {table.num_embeddings} vectors of width {table.embedding_dim} cannot be the output weights of "
                f"{vocab_size} tokens and width {width}. Nothing was built; untie them."
            )

    @property
    def _weight(self) -> Float[Tensor, "V D"]:
        (table,) = self._table
        return self.weight if table is None else table.weight[: self.vocab_size]


class SoftmaxHead(TiedWeightHead):
    """softmax(weight h + bias); with an embedding `table`, its first rows are the weight."""

    def __init__(self, vocab_size: int, width: int, table: nn.Embedding | None = None, *, bias: bool):
        super().__init__(vocab_size, width, table)
        self.bias: nn.Parameter | None
        if table is None:
            fresh = nn.Linear(width, vocab_size, bias=bias)
            self.weight, self.bias = fresh.weight, fresh.bias
        else:
            self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def logits(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
        return linear(hidden, self._weight, self.bias)

    def log_probs(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        scored = tokens >= 0
        return scatter_scored(softmax_log_probs(hidden[scored], self._weight, self.bias, tokens[scored]), scored)

    def log_probs_and_logsumexp(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> LogProbsAndLogsumexp:
        scored = tokens >= 0
        log_probs, logsumexp = softmax_log_probs_and_logsumexp(hidden[scored], self._weight, self.bias, tokens[scored])
        return scatter_scored(log_probs, scored), scatter_scored(logsumexp, scored)

    def logits_fn(self, steps: int) -> LogitsFn:
        return partial(linear, weight=matmul_layout(self._weight, steps), bias=self.bias)


def scatter_scored(values: Float[Tensor, "N"], scored: Bool[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """The values at the scored positions, and 0 elsewhere."""
    return values.new_zeros(scored.shape).masked_scatter(scored, values)


def matmul_layout(weight: Float[Tensor, "V D"], steps: int) -> Float[Tensor, "V D"]:
    """The same weights; for many steps in the memory layout that is fastest for products with few rows: longer side last."""
    return weight.T.contiguous().T if steps >= MIN_STEPS_TO_RELAYOUT and len(weight) >= weight.shape[1] else weight
