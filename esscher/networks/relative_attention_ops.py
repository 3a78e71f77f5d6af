"""Relative attention (Dai et al. 2019) as an autograd function, the sinusoids of distances, and the chunks of local attention.

    A_ij = (q_i + u) . k_j + (q_i + v) . r_(i-j)

The second term needs one product per distance: row i of the products, read at an offset, is row i of the term
(`relative_shift`, a view). The gradient is written out, because autograd through the strided view would be slow. Queries that
are not consecutive pick their distances by an index; segment marks add another product.

Letters: H heads, D width of a head, N rows (of a batch, or rows times chunks), M rows of the mask, of which N is a multiple, T
queries, K keys, R distances, S kinds of segment marks, C positions of a chunk, J = 2 C or 3 C with its neighbours, I heads and
G = I N rows of a group.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from esscher.core.device import widest
from esscher.heads.chunked_log_softmax import accumulation_dtype, no_autocast, to_autocast_dtype

MAX_WAVELENGTH = 10_000.0
SCORES_PER_CHUNK = 2**19  # 2 MB: a few rows of one head, which stay in the cache of the processor


def sinusoids(distance: Int[Tensor, "R"], width: int, dtype: torch.dtype) -> Float[Tensor, "R W"]:
    """Sines and then cosines of each distance, at geometrically growing wavelengths; an odd width has one cosine less."""
    half = (width + 1) // 2
    frequency = MAX_WAVELENGTH ** -(widest(torch.arange(half, device=distance.device)) * 2 / width)
    angle = widest(distance)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], -1)[:, :width].to(dtype)


def relative_attention(
    query: Float[Tensor, "H N T D"],
    key: Float[Tensor, "H N K D"],
    value: Float[Tensor, "H N K D"],
    rel_pos: Float[Tensor, "H R D"],
    biases: Float[Tensor, "2 H D"],
    mask: Bool[Tensor, "M T K"] | None,
    keep: Float[Tensor, "H N T K"] | None = None,
    index: Int[Tensor, "M T K"] | None = None,
    marks: tuple[Float[Tensor, "H N T S"], Float[Tensor, "N K S"]] | None = None,
) -> Float[Tensor, "H N T D"]:
    """Attention of each query, once differentiable in query, key, value, rel_pos, biases and the marks of queries. `rel_pos`
    has a row for each distance, from that of the last query to the first key down to 0, or down to that of the first query to
    the last key; other pairs must be masked. With an `index`, a pair has that row. True in `mask` hides a pair. `keep`
    multiplies the attention weights (dropout). The product of the `marks` of query and key is added to the score. Under
    autocast all of it is in the dtype of autocast."""
    query_marks, key_marks = (None, None) if marks is None else marks
    query, key, value, rel_pos, biases, keep, query_marks, key_marks = to_autocast_dtype(
        query, key, value, rel_pos, biases, keep, query_marks, key_marks
    )
    with no_autocast(query.device):
        attended: Tensor = _RelativeAttention.apply(  # type: ignore[no-untyped-call]
            query, key, value, rel_pos, biases, mask, keep, index, query_marks, key_marks
        )
    return attended


def relative_shift(products: Float[Tensor, "X T R"], keys: int) -> Float[Tensor, "X T {keys}"]:
    """A view whose entry (i, j) is the product of query i with its distance to key j, and arbitrary where that is missing."""
    rows, queries, distances = products.shape
    stride = (queries * distances, distances - 1, 1)
    return products.as_strided((rows, queries, keys), stride, products.storage_offset() + queries - 1)


class _RelativeAttention(torch.autograd.Function):
    """Attention weights are kept for the gradient; on a CPU, scores exist for a few rows of one head at a time."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, rel_pos: Tensor, biases: Tensor, *pairs: Tensor | None
    ) -> Tensor:
        mask, keep, index, query_marks, key_marks = pairs
        scale = query.shape[3] ** -0.5
        content = (query + biases[0, :, None, None]).mul_(scale)
        position = (query + biases[1, :, None, None]).mul_(scale)
        if query_marks is not None and key_marks is not None:
            content = torch.cat([content, query_marks * scale], -1)
            key = torch.cat([key, key_marks.expand(len(key), -1, -1, -1)], -1)
        share, attended = query.new_empty(*query.shape[:3], key.shape[2]), _empty_groups(position)
        for at in _groups(share, mask):
            part = partial(_group, at=at)
            score = _score(part(content), position[at], part(key), rel_pos[at[0]], _rows_of(index, at[1], share), part(share))
            masked = _rows_of(mask, at[1], share)
            if masked is not None:
                score.view(-1, *masked.shape).masked_fill_(masked, -torch.inf)
            torch.softmax(score, -1, out=score)
            used = score if keep is None else score * part(keep)
            torch.bmm(used, part(value), out=part(attended))
        ctx.save_for_backward(content, position, key, value, rel_pos, share, attended, keep, mask, index)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with no_autocast(grad.device):
            return _relative_attention_backward(grad, *ctx.saved_tensors)


def _relative_attention_backward(
    grad: Tensor,
    content: Tensor,
    position: Tensor,
    key: Tensor,
    value: Tensor,
    rel_pos: Tensor,
    share: Tensor,
    attended: Tensor,
    *pairs: Tensor | None,
) -> tuple[Tensor | None, ...]:
    keep, mask, index = pairs
    width = position.shape[3]
    scale = width**-0.5
    grad_content, grad_position, grad_key = _empty_groups(content), _empty_groups(position), key.new_empty(key.shape)
    grad_value = value.new_empty(value.shape)
    grad_rel_pos = torch.zeros_like(rel_pos, dtype=accumulation_dtype(rel_pos.dtype))
    inner = (grad * attended).sum(-1, keepdim=True)
    for at in _groups(share, mask):
        part, heads = partial(_group, at=at), len(rel_pos[at[0]])
        used = part(share) if keep is None else part(share) * part(keep)
        torch.bmm(used.transpose(1, 2), part(grad), out=part(grad_value))
        grad_score = torch.bmm(part(grad), part(value).transpose(1, 2))
        if keep is not None:
            grad_score.mul_(part(keep))
        grad_score.sub_(part(inner)).mul_(part(share))
        torch.bmm(grad_score.transpose(1, 2), part(content), out=part(grad_key))
        torch.bmm(grad_score, part(key), out=part(grad_content))
        shifted = relative_shift_backward(grad_score, rel_pos.shape[1], _rows_of(index, at[1], share))
        shifted = shifted.view(heads, -1, rel_pos.shape[1])
        if grad_rel_pos.dtype == shifted.dtype:
            grad_rel_pos[at[0]].baddbmm_(shifted.transpose(1, 2), position[at].flatten(1, 2))
        else:  # a product has the dtype of its factors: only the sum over groups is exact
            grad_rel_pos[at[0]].add_(shifted.transpose(1, 2) @ position[at].flatten(1, 2))
        torch.bmm(shifted, rel_pos[at[0]], out=grad_position[at].flatten(1, 2))
    grad_query = grad_content[..., :width]
    grad_marks = grad_content[..., width:] * scale if key.shape[3] > width else None
    grad_biases = torch.stack([grad_query.sum((1, 2)), grad_position.sum((1, 2))]).mul_(scale)
    grad_query = grad_query.add_(grad_position).mul_(scale)
    return (
        grad_query,
        grad_key[..., :width],
        grad_value,
        grad_rel_pos.to(rel_pos.dtype),
        grad_biases,
        None,
        None,
        None,
        grad_marks,
        None,
    )


Group = tuple[slice, slice]
"""Heads, and rows: one head and some rows, or all of both."""


def _groups(share: Float[Tensor, "H N T K"], mask: Tensor | None) -> Iterator[Group]:
    """On a CPU, groups of rows of one head whose scores fit in the cache; a group has whole masks, unless every row has its
    own. Elsewhere all at once, in few kernels."""
    heads, rows = share.shape[:2]
    if share.device.type != "cpu":
        yield slice(heads), slice(rows)
        return
    unit = 1 if mask is None or len(mask) == rows else len(mask)
    step = unit * max(1, SCORES_PER_CHUNK // max(1, unit * share.shape[2] * share.shape[3]))
    for head in range(heads):
        for first in range(0, rows, step):
            yield slice(head, head + 1), slice(first, min(rows, first + step))


def _empty_groups(like: Float[Tensor, "H N T X"]) -> Float[Tensor, "H N T X"]:
    """Room to which groups are written: a group of it must be a view."""
    return torch.empty_like(like) if like.device.type == "cpu" else like.new_empty(like.shape)


def _group(x: Shaped[Tensor, "H N T X"], at: Group) -> Shaped[Tensor, "G T X"]:
    return x[at].flatten(0, 1)


def _rows_of(pairs: Tensor | None, rows: slice, share: Float[Tensor, "H N T K"]) -> Tensor | None:
    """A mask or index for some rows: their part of it if every row has its own."""
    return pairs if pairs is None or len(pairs) < share.shape[1] else pairs[rows]


def _score(
    content: Float[Tensor, "G T X"],
    position: Float[Tensor, "I N T D"],
    key: Float[Tensor, "G K X"],
    rel_pos: Float[Tensor, "I R D"],
    index: Int[Tensor, "M T K"] | None,
    out: Float[Tensor, "G T K"],
) -> Float[Tensor, "G T K"]:
    """The sum of both terms of the score, written to `out`."""
    products = torch.bmm(position.flatten(1, 2), rel_pos.transpose(1, 2)).view(*content.shape[:2], -1)
    by_distance = relative_shift(products, key.shape[1]) if index is None else products.gather(2, _expand(index, len(products)))
    return torch.baddbmm(by_distance, content, key.transpose(1, 2), out=out)


def _expand(index: Int[Tensor, "M T K"], rows: int) -> Int[Tensor, "N T K"]:
    """The index repeated for all rows."""
    return index.expand(rows, -1, -1) if len(index) in (1, rows) else index.repeat(rows // len(index), 1, 1)


def relative_shift_backward(
    score: Float[Tensor, "X T K"], distances: int, index: Int[Tensor, "M T K"] | None = None
) -> Float[Tensor, "X T {distances}"]:
    """The gradient of `relative_shift`, or of picking by an index; 0 for entries without a distance. With as many distances as
    keys the rows of the view overlap in one entry, which has a distance in the last row only."""
    rows, queries, keys = score.shape
    products = score.new_zeros(rows, queries * distances)
    if index is not None:
        return products.view(rows, queries, distances).scatter_add_(2, _expand(index, rows), score)
    if distances > keys:
        relative_shift(products.view(rows, queries, distances), keys).copy_(score)
    else:
        products[:, queries - 1 : -1].view(rows, queries, keys - 1).copy_(score[:, :, :-1])
        products[:, -1] = score[:, -1, -1]
    return products.view(rows, queries, distances)


@dataclass(frozen=True)
class LocalChunks:
    """Rows in chunks, each beside its neighbours: `queries` positions, numbered from `first` in their row, after a `past`, with
    dummies before and after them. With `ahead` the neighbours include the next chunk."""

    size: int
    first: int
    queries: int
    past: int
    ahead: bool

    @property
    def lead(self) -> int:
        """Number of dummies before the first query."""
        return self.first % self.size

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-(self.lead + self.queries) // self.size)

    @property
    def _tail(self) -> int:
        return self.count * self.size - self.lead - self.queries

    def split(self, x: Shaped[Tensor, "*S B T W"], fill: Any = 0) -> Shaped[Tensor, "*S N C W"]:
        """Queries in chunks."""
        x = pad(x, (0, 0, self.lead, self._tail), value=fill)
        return x.reshape(*x.shape[:-3], -1, self.size, x.shape[-1])

    def split_with_neighbours(self, x: Shaped[Tensor, "*S B K W"], fill: Any = 0) -> Shaped[Tensor, "*S N J W"]:
        """Keys in chunks, each with its neighbours."""
        after = self.size if self.ahead else 0
        x = pad(x, (0, 0, self.size + self.lead - self.past, self._tail + after), value=fill)  # negative padding crops
        chunks = x.reshape(*x.shape[:-2], -1, self.size, x.shape[-1])
        neighbours = [chunks.narrow(-3, shift, self.count) for shift in range(3 if self.ahead else 2)]
        return torch.cat(neighbours, -2).flatten(-4, -3)

    def merge(self, x: Shaped[Tensor, "*S N C W"]) -> Shaped[Tensor, "*S B T W"]:
        """The inverse of `split`."""
        rows = x.reshape(*x.shape[:-3], -1, self.count * self.size, x.shape[-1])
        return rows.narrow(-2, self.lead, self.queries)
