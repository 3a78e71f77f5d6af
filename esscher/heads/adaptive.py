"""Adaptive input and adaptive softmax (Grave et al. 2017) for large vocabularies: rare tokens have narrower vectors.

Tokens are numbered by frequency, the most frequent first; `cutoffs` divide them into clusters. Vectors of cluster i have width
`width // div_value**i` and a projection to the width of the network; with div_value 1 there is no projection, and one table.
The softmax has two steps: over the tokens of cluster 0 and a symbol for each other cluster, then within the cluster. Row i - 1
of `cluster_weight` is the symbol of cluster i; Transformer-XL as released has these rows in the opposite order. The input also
reads the BOS symbol, number `vocab_size`, the last row of the last table. Sorting by frequency is left to the tokenizer.

Letters: N rows, D width of the network, E width of the vectors of a cluster, C tokens of a cluster.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from esscher.heads.chunked_log_softmax import (
    accumulation_dtype,
    softmax_log_probs,
    softmax_log_probs_and_logsumexp,
    step_log_probs,
)
from esscher.heads.config import TiedProjections, check_choice
from esscher.heads.head import LogitsFn, LogProbsAndLogsumexp, matmul_layout, scatter_scored

INITIAL_STD, PROJECTION_STD = 0.02, 0.01


@dataclass(frozen=True)
class Clusters:
    """How a vocabulary is divided, and how wide the vectors of each cluster are."""

    vocab_size: int
    width: int
    cutoffs: tuple[int, ...]
    div_value: int

    def __post_init__(self) -> None:
        if any(start >= stop for start, stop in pairwise((0, *self.cutoffs, self.vocab_size))):
            raise ValueError(
                f"Cutoffs rise from above 0 to below the vocabulary's {self.vocab_size} tokens; {self.cutoffs} do not. Nothing "
                f"was built; leave out those that are too large, and sort the others."
            )
        if self.div_value < 1 or self.width // self.div_value ** len(self.cutoffs) < 1:
            raise ValueError(
                f"Vectors of width {self.width} cannot be divided by div_value = {self.div_value} in each of "
                f"{len(self.cutoffs)} further clusters. Nothing was built; every width must be at least 1."
            )

    @property
    def starts(self) -> tuple[int, ...]:
        """The first token of each cluster."""
        return (0, *self.cutoffs)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of tokens of each cluster."""
        return tuple(stop - start for start, stop in pairwise((*self.starts, self.vocab_size)))

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of the vectors of each cluster."""
        return tuple(self.width // self.div_value**number for number in range(len(self.starts)))

    @property
    def projected(self) -> bool:
        """Whether vectors are projected to the width of the network."""
        return self.div_value > 1

    def of(self, tokens: Int[Tensor, "*S"]) -> Int[Tensor, "*S"]:
        """The cluster of each token; the BOS symbol is in the last one."""
        return sum((tokens >= cutoff for cutoff in self.cutoffs), torch.zeros_like(tokens))


class AdaptiveInput(nn.Module):
    """Embeddings of the tokens and the BOS symbol, times the square root of the width of the network."""

    def __init__(self, vocab_size: int, width: int, cutoffs: tuple[int, ...], div_value: int = 1):
        super().__init__()
        self.clusters = Clusters(vocab_size, width, cutoffs, div_value)
        self.tables = nn.ModuleList([nn.Embedding(*shape) for shape in _table_shapes(self.clusters, more=1)])
        shapes = [(width, table_width) for _, table_width in _table_shapes(self.clusters)] if self.clusters.projected else []
        self.projections = nn.ParameterList([_normal_parameter(shape, PROJECTION_STD) for shape in shapes])
        for table in self.tables:
            nn.init.normal_(table.get_parameter("weight"), std=INITIAL_STD)

    def forward(self, tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S D"]:
        if len(self.tables) == 1:
            return self._vectors(0, tokens)
        flat = tokens.flatten()
        cluster = self.clusters.of(flat)
        rows = [(cluster == number).nonzero()[:, 0] for number in range(len(self.tables))]
        vectors = torch.cat([self._vectors(i, flat[rows[i]] - start) for i, start in enumerate(self.clusters.starts)])
        embeddings = torch.empty_like(vectors).index_copy(0, torch.cat(rows), vectors)
        return embeddings.view(*tokens.shape, self.clusters.width)

    def _vectors(self, table: int, tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S D"]:
        vectors = self.tables[table](tokens)
        if self.clusters.projected:
            vectors = linear(vectors, self.projections[table]).to(vectors.dtype)  # that of the weights, as of any embedding
        return vectors * self.clusters.width**0.5


class _Cluster(NamedTuple):
    """One softmax of the two steps; cluster 0 has the symbols of the other clusters after its tokens."""

    projection: Float[Tensor, "D E"] | None
    weight: Float[Tensor, "C E"]
    bias: Float[Tensor, "C"]

    def project(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S E"]:
        return hidden if self.projection is None else hidden @ self.projection

    def logits(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S C"]:
        return linear(self.project(hidden), self.weight, self.bias)

    def log_probs(self, hidden: Float[Tensor, "N D"], tokens: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
        return softmax_log_probs(self.project(hidden), self.weight, self.bias, tokens)


class AdaptiveSoftmax(nn.Module):
    """A head with clusters of rare tokens; an `input` lends it its vectors as weights, and the `tied_projections`."""

    def __init__(
        self,
        vocab_size: int,
        width: int,
        cutoffs: tuple[int, ...] = (),
        div_value: int = 1,
        input: AdaptiveInput | None = None,
        tied_projections: TiedProjections = "none",
    ):
        super().__init__()
        self._input = (input,)  # a tuple, so that the input is not registered here
        self.clusters = Clusters(vocab_size, width, cutoffs, div_value)
        check_choice("tied_projections", tied_projections, get_args(TiedProjections))
        if input is None and tied_projections != "none":
            raise ValueError(f"Without an input there are no projections to tie: tied_projections = {tied_projections!r}.")
        if input is not None and input.clusters != self.clusters:
            raise ValueError(
                f"The input has {input.clusters}, the softmax {self.clusters}. Nothing was built; only equal ones can be tied."
            )
        tails = len(cutoffs)
        if tails:
            self.cluster_weight = _normal_parameter((tails, width), INITIAL_STD)
            self.cluster_bias = nn.Parameter(torch.zeros(tails))
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        shapes = _table_shapes(self.clusters) if input is None else []
        self.weights = nn.ParameterList([_normal_parameter(shape, INITIAL_STD) for shape in shapes])
        untied = {"none": tails + 1, "tails": 1, "all": 0}[tied_projections] if self.clusters.projected else 0
        shapes = [(width, cluster_width) for cluster_width in self.clusters.widths[:untied]]
        self.projections = nn.ParameterList([_normal_parameter(shape, PROJECTION_STD) for shape in shapes])

    def logits(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
        return _logits(hidden, clusters=self._parts())

    def log_probs(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        scored = tokens >= 0
        hidden, tokens, (head, *tails) = hidden[scored], tokens[scored], self._parts()
        log_probs = head.log_probs(hidden, self._head_targets(tokens))
        return scatter_scored(self._add_cluster_log_probs(tails, log_probs, hidden, tokens), scored)

    def log_probs_and_logsumexp(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> LogProbsAndLogsumexp:
        scored = tokens >= 0
        hidden, tokens, (head, *tails) = hidden[scored], tokens[scored], self._parts()
        targets = self._head_targets(tokens)
        log_probs, logsumexp = softmax_log_probs_and_logsumexp(head.project(hidden), head.weight, head.bias, targets)
        log_probs = self._add_cluster_log_probs(tails, log_probs, hidden, tokens)
        return scatter_scored(log_probs, scored), scatter_scored(logsumexp, scored)

    def _head_targets(self, tokens: Int[Tensor, "N"]) -> Int[Tensor, "N"]:
        """The index of each token in the first softmax: the token, or the symbol of its cluster."""
        cluster = self.clusters.of(tokens)
        return torch.where(cluster == 0, tokens, self.clusters.sizes[0] - 1 + cluster)

    def _add_cluster_log_probs(
        self, tails: list[_Cluster], log_probs: Float[Tensor, "N"], hidden: Float[Tensor, "N D"], tokens: Int[Tensor, "N"]
    ) -> Float[Tensor, "N"]:
        """Add the log-probability of each token within its cluster to that of the cluster."""
        cluster = self.clusters.of(tokens)
        for number, tail in enumerate(tails, 1):
            rows = (cluster == number).nonzero()[:, 0]
            within = tail.log_probs(hidden[rows], tokens[rows] - self.clusters.starts[number])
            log_probs = log_probs.index_add(0, rows, within)
        return log_probs

    def logits_fn(self, steps: int) -> LogitsFn:
        return partial(_logits, clusters=[part._replace(weight=matmul_layout(part.weight, steps)) for part in self._parts()])

    def _parts(self) -> list[_Cluster]:
        """The weights of each softmax, without the BOS symbol."""
        (input,), sizes = self._input, self.clusters.sizes
        tables = list(self.weights) if input is None else [table.get_parameter("weight") for table in input.tables]
        last_sizes = sizes[-1:] if len(tables) > 1 else sizes
        *last, _ = tables[-1].split_with_sizes([*last_sizes, len(tables[-1]) - sum(last_sizes)])
        projections: list[Tensor | None] = [None] * len(sizes)
        if self.clusters.projected:
            tied = [] if input is None else list(input.projections)[len(self.projections) :]
            projections = [*self.projections, *tied]
        parts = zip(projections, [*tables[:-1], *last], self.bias.split_with_sizes(sizes), strict=True)
        head, *tails = [_Cluster(*part) for part in parts]
        if tails:
            symbols = torch.cat([head.weight, self.cluster_weight]), torch.cat([head.bias, self.cluster_bias])
            head = _Cluster(head.projection, *symbols)
        return [head, *tails]


def _logits(hidden: Float[Tensor, "*S D"], clusters: list[_Cluster]) -> Float[Tensor, "*S V"]:
    """Logits of all tokens: logit of the cluster plus log-probability within it, in float32 or better."""
    head, *tails = clusters
    logits = head.logits(hidden)
    logits = logits.to(accumulation_dtype(logits.dtype))
    tokens = logits.shape[-1] - len(tails)
    parts = [logits[..., tokens + i, None] + step_log_probs(tail.logits(hidden)) for i, tail in enumerate(tails)]
    return torch.cat([logits[..., :tokens], *parts], -1)


def _table_shapes(clusters: Clusters, *, more: int = 0) -> list[tuple[int, int]]:
    """Rows and width of each table, the last with `more` rows; clusters of one width share a table."""
    if clusters.div_value == 1:
        return [(clusters.vocab_size + more, clusters.width)]
    *others, (rows, width) = zip(clusters.sizes, clusters.widths, strict=True)
    return [*others, (rows + more, width)]


def _normal_parameter(shape: tuple[int, int], std: float) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).normal_(std=std))
