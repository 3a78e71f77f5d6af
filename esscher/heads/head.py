"""What every head offers, from hidden vectors to distributions, what heads share, and the plain softmax.

A head tells all logits, or scores one token for each hidden vector without keeping them; softmax of its logits is its
distribution, so any head fits any network. The logsumexp of the logits is their level: no probability depends on it, so it is
free to say something else (`esscher.objectives.eforcing`). Hidden vectors keep their shape, [..., T, D] where they are of
sequences, for a head that does something along a sequence; tokens below 0 are not asked for. A head may use the vectors that
the network reads tokens by; it then only refers to their table, which stays the network's: its own parameters are what it adds.

Letters beside those of `esscher.space`: N rows, D width of a hidden vector.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from esscher.heads.levels import softmax_score_and_level
from esscher.heads.softmax import softmax_score

COPY_FROM = 32  # steps for which it pays to lay weights out for small products

Logits = Callable[[Tensor], Tensor]
"""Hidden vectors to logits: `Float[Tensor, "*S D"] -> Float[Tensor, "*S V"]`."""


@runtime_checkable
class Head(Protocol):
    """What a network asks of the `nn.Module` that makes its logits."""

    def logits(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
        """Unnormalised log-probabilities of every token."""
        ...

    def score(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        """The log-probability of one token for each hidden vector, 0 where it is below 0; all logits at once are never kept."""
        ...

    def score_and_level(
        self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]
    ) -> tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]:
        """The same, and the level of the logits, both 0 where a token is below 0."""
        ...

    def prepared(self, steps: int) -> Logits:
        """`logits` for so many steps to come, by the weights as they are now; nothing is dropped, in training neither."""
        ...


class Headed(nn.Module):
    """What all networks with a head share: the last part of a pass."""

    head: Head

    def output(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
        return self.head.logits(hidden)

    def score(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return self.head.score(hidden, tokens)

    def score_and_level(
        self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]
    ) -> tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]:
        return self.head.score_and_level(hidden, tokens)


class TableHead(nn.Module):
    """What heads share whose weight is the first rows of a `table` of input vectors, or, without one, their own."""

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


class SoftmaxHead(TableHead):
    """A softmax over weight h + bias; with a `table` of input vectors, its first rows are the weight."""

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

    def score(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        asked = tokens >= 0
        return placed(softmax_score(hidden[asked], self._weight, self.bias, tokens[asked]), asked)

    def score_and_level(
        self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]
    ) -> tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]:
        asked = tokens >= 0
        score, level = softmax_score_and_level(hidden[asked], self._weight, self.bias, tokens[asked])
        return placed(score, asked), placed(level, asked)

    def prepared(self, steps: int) -> Logits:
        return partial(linear, weight=laid_out(self._weight, steps), bias=self.bias)


def placed(found: Float[Tensor, "N"], asked: Bool[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """The scores where they were asked for, and 0 elsewhere."""
    return found.new_zeros(asked.shape).masked_scatter(asked, found)


def laid_out(weight: Float[Tensor, "V D"], steps: int) -> Float[Tensor, "V D"]:
    """The same weights, for many steps in the order of memory that products with few rows want: the longer side last."""
    return weight.T.contiguous().T if steps >= COPY_FROM and len(weight) >= weight.shape[1] else weight
