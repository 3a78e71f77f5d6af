"""Adaptive input and adaptive softmax for large vocabularies: rare tokens share narrower vectors, and cost little.

Tokens are numbered by frequency, the most frequent first. `cutoffs` part them into clusters: cluster 0 is the tokens below
the first cutoff, the last one those from the last cutoff on. Vectors of cluster i have width `width // shrink**i` and a
projection to the network's width; with shrink 1 there is no projection, and one table for all clusters.

The softmax is in two steps (Grave et al. 2017): one over the tokens of cluster 0 and a symbol for each other cluster, then
one within the token's cluster, which is computed only for tokens of that cluster. Row i - 1 of `cluster_weight` is the symbol
of cluster i; Transformer-XL as released has these rows in the opposite order, so flip them when its weights are loaded.

The input also reads the opening symbol, number `vocab_size`: the last row of the last table. What it leaves out: sorting a
vocabulary by frequency, which is the tokenizer's business.

Letters beside those of `esscher.space`: N rows, D the network's width, E width of a cluster's vectors, C tokens of a cluster.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from esscher.heads.head import Logits, laid_out, placed
from esscher.heads.levels import softmax_score_and_level
from esscher.heads.softmax import softmax_score

INITIAL_STD, PROJECTION_STD = 0.02, 0.01

TiedProjections = Literal["none", "tails", "all"]
"""Which clusters project the output as they project the input; `"tails"` is all but cluster 0."""


@dataclass(frozen=True)
class Clusters:
    """How a vocabulary is parted, and how wide the vectors of each part are."""

    vocab_size: int
    width: int
    cutoffs: tuple[int, ...]
    shrink: int

    def __post_init__(self) -> None:
        if any(one >= other for one, other in pairwise((0, *self.cutoffs, self.vocab_size))):
            raise ValueError(
                f"Cutoffs rise from above 0 to below the vocabulary's {self.vocab_size} tokens; {self.cutoffs} do not. Nothing "
                f"was built; leave out those that are too large, and sort the others."
            )
        if self.shrink < 1 or self.width // self.shrink ** len(self.cutoffs) < 1:
            raise ValueError(
                f"Vectors of width {self.width} cannot be narrower by the factor shrink = {self.shrink} in each of "
                f"{len(self.cutoffs)} further clusters. Nothing was built; every width must be at least 1."
            )

    @property
    def starts(self) -> tuple[int, ...]:
        """The first token of each cluster."""
        return (0, *self.cutoffs)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The tokens of each cluster."""
        return tuple(stop - start for start, stop in pairwise((*self.starts, self.vocab_size)))

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of each cluster's vectors."""
        return tuple(self.width // self.shrink**number for number in range(len(self.starts)))

    @property
    def projected(self) -> bool:
        """Whether vectors need projections to the network's width."""
        return self.shrink > 1

    def of(self, tokens: Int[Tensor, "*S"]) -> Int[Tensor, "*S"]:
        """The cluster of each token; that of the opening symbol is the last."""
        return sum((tokens >= cutoff for cutoff in self.cutoffs), torch.zeros_like(tokens))


class AdaptiveInput(nn.Module):
    """The input vectors of tokens and of the opening symbol, times the root of the network's width."""

    def __init__(self, vocab_size: int, width: int, cutoffs: tuple[int, ...], shrink: int = 1):
        super().__init__()
        self.clusters = Clusters(vocab_size, width, cutoffs, shrink)
        self.tables = nn.ModuleList([nn.Embedding(rows, own) for rows, own in _shapes(self.clusters, more=1)])
        shapes = [(width, own) for _, own in _shapes(self.clusters)] if self.clusters.projected else []
        self.projections = nn.ParameterList([_drawn(shape, PROJECTION_STD) for shape in shapes])
        for table in self.tables:
            nn.init.normal_(table.get_parameter("weight"), std=INITIAL_STD)

    def forward(self, tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S D"]:
        if len(self.tables) == 1:
            return self._vectors(0, tokens)
        flat = tokens.flatten()
        cluster = self.clusters.of(flat)
        rows = [(cluster == number).nonzero()[:, 0] for number in range(len(self.tables))]
        vectors = [
            self._vectors(i, flat[some] - start) for i, (some, start) in enumerate(zip(rows, self.clusters.starts, strict=True))
        ]
        sorted_by_cluster = torch.cat(vectors)
        found = torch.empty_like(sorted_by_cluster).index_copy(0, torch.cat(rows), sorted_by_cluster)
        return found.view(*tokens.shape, self.clusters.width)

    def _vectors(self, table: int, tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S D"]:
        vectors = self.tables[table](tokens)
        if self.clusters.projected:
            vectors = linear(vectors, self.projections[table])
        return vectors * self.clusters.width**0.5


class _Cluster(NamedTuple):
    """A softmax of the two steps; the first one has the symbols of the other clusters after its tokens."""

    projection: Float[Tensor, "D E"] | None
    weight: Float[Tensor, "C E"]
    bias: Float[Tensor, "C"]

    def project(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S E"]:
        return hidden if self.projection is None else hidden @ self.projection

    def logits(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S C"]:
        return linear(self.project(hidden), self.weight, self.bias)

    def score(self, hidden: Float[Tensor, "N D"], tokens: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
        return softmax_score(self.project(hidden), self.weight, self.bias, tokens)

    def score_and_level(
        self, hidden: Float[Tensor, "N D"], tokens: Int[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
        return softmax_score_and_level(self.project(hidden), self.weight, self.bias, tokens)


class AdaptiveSoftmax(nn.Module):
    """A head whose rare tokens stand in clusters; with an `input`, its vectors are the weights, and some of its projections."""

    def __init__(
        self,
        vocab_size: int,
        width: int,
        cutoffs: tuple[int, ...] = (),
        shrink: int = 1,
        input: AdaptiveInput | None = None,
        tied_projections: TiedProjections = "none",
    ):
        super().__init__()
        self._input = (input,)  # a tuple, so that the input is not registered here
        self.clusters = Clusters(vocab_size, width, cutoffs, shrink)
        self._check_tying(tied_projections)
        tails = len(cutoffs)
        if tails:
            self.cluster_weight, self.cluster_bias = _drawn((tails, width), INITIAL_STD), nn.Parameter(torch.zeros(tails))
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        shapes = _shapes(self.clusters) if input is None else []
        self.weights = nn.ParameterList([_drawn(shape, INITIAL_STD) for shape in shapes])
        own = range({"none": tails + 1, "tails": 1, "all": 0}[tied_projections] if self.clusters.projected else 0)
        self.projections = nn.ParameterList([_drawn((width, self.clusters.widths[i]), PROJECTION_STD) for i in own])

    def logits(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
        return _logits(hidden, clusters=self._parts())

    def score(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        asked = tokens >= 0
        some, own = hidden[asked], tokens[asked]
        head, *tails = self._parts()
        return placed(self._within(tails, head.score(some, self._symbols(own)), some, own), asked)

    def score_and_level(
        self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]
    ) -> tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]:
        asked = tokens >= 0
        some, own = hidden[asked], tokens[asked]
        head, *tails = self._parts()
        score, level = head.score_and_level(some, self._symbols(own))
        return placed(self._within(tails, score, some, own), asked), placed(level, asked)

    def _symbols(self, tokens: Int[Tensor, "N"]) -> Int[Tensor, "N"]:
        """What the first softmax has for each token: itself, or the symbol of its cluster."""
        cluster = self.clusters.of(tokens)
        return torch.where(cluster == 0, tokens, self.clusters.sizes[0] - 1 + cluster)

    def _within(
        self, tails: list[_Cluster], found: Float[Tensor, "N"], hidden: Float[Tensor, "N D"], tokens: Int[Tensor, "N"]
    ) -> Float[Tensor, "N"]:
        """The scores of symbols, with those of tokens within their clusters added."""
        cluster = self.clusters.of(tokens)
        for number, tail in enumerate(tails, 1):
            rows = (cluster == number).nonzero()[:, 0]
            within = tail.score(hidden[rows], tokens[rows] - self.clusters.starts[number])
            found = found.index_add(0, rows, within)
        return found

    def prepared(self, steps: int) -> Logits:
        return partial(_logits, clusters=[part._replace(weight=laid_out(part.weight, steps)) for part in self._parts()])

    def _parts(self) -> list[_Cluster]:
        biases = self.bias.split_with_sizes(self.clusters.sizes)
        head, *tails = [
            _Cluster(self._projection(number), weight, bias)
            for number, (weight, bias) in enumerate(zip(self._weights(), biases, strict=True))
        ]
        if tails:
            symbols = torch.cat([head.weight, self.cluster_weight]), torch.cat([head.bias, self.cluster_bias])
            head = _Cluster(head.projection, *symbols)
        return [head, *tails]

    def _weights(self) -> list[Float[Tensor, "C E"]]:
        """The weights of each cluster's tokens; the opening symbol's are left out."""
        (input,) = self._input
        tables = list(self.weights) if input is None else [table.get_parameter("weight") for table in input.tables]
        sizes = self.clusters.sizes[-1:] if len(tables) > 1 else self.clusters.sizes
        *last, _ = tables[-1].split_with_sizes([*sizes, len(tables[-1]) - sum(sizes)])
        return [*tables[:-1], *last]

    def _projection(self, number: int) -> Float[Tensor, "D E"] | None:
        if not self.clusters.projected:
            return None
        if number < len(self.projections):
            return self.projections[number]
        (input,) = self._input
        assert input is not None
        return input.projections[number]

    def _check_tying(self, tied_projections: TiedProjections) -> None:
        if tied_projections not in ("none", "tails", "all"):
            raise ValueError(f"Unknown tied_projections {tied_projections!r}; the known ones are none, tails and all.")
        (input,) = self._input
        if input is None and tied_projections != "none":
            raise ValueError(f"Without an input there are no projections to tie: tied_projections = {tied_projections!r}.")
        if input is not None and input.clusters != self.clusters:
            raise ValueError(
                f"The vectors of the input are of {input.clusters}, those of the softmax of {self.clusters}. Nothing was "
                f"built; only equal ones can be tied."
            )


def _logits(hidden: Float[Tensor, "*S D"], clusters: list[_Cluster]) -> Float[Tensor, "*S V"]:
    """Logits of all tokens: those of a cluster share its symbol's logit by their probabilities within it."""
    head, *tails = clusters
    found = head.logits(hidden)
    tokens = found.shape[-1] - len(tails)
    parts = [found[..., tokens + i, None] + tail.logits(hidden).log_softmax(-1) for i, tail in enumerate(tails)]
    return torch.cat([found[..., :tokens], *parts], -1)


def _shapes(clusters: Clusters, *, more: int = 0) -> list[tuple[int, int]]:
    """Rows and width of each table of vectors, the last with so many rows more; clusters of one width share a table."""
    if clusters.shrink == 1:
        return [(clusters.vocab_size + more, clusters.width)]
    *others, (rows, width) = zip(clusters.sizes, clusters.widths, strict=True)
    return [*others, (rows + more, width)]


def _drawn(shape: tuple[int, int], std: float) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).normal_(std=std))
