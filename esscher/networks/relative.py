"""Attention with relative positions (Dai et al. 2019): its score, its gradient, and the sinusoids of distances.

    A_ij = (q_i + u) . k_j + (q_i + v) . r_(i-j)

The second term is made for all pairs from as many products as there are distances: row i of the products, read from another
place, is row i of the term (`shifted`). Nothing is padded or copied, and the first term is added to that view by the same
product that makes it. The gradient is written out, because that of a view read at a slant would be slow. Queries that do not
stand one after the other pick their distances by an index; marks of queries and keys add a product of their own to the score.

Letters beside those of `esscher.space`: H heads, D width of a head, N rows (of a batch, or of chunks), M rows of the mask, of
which N is a multiple, T queries, K keys, R distances, S kinds of marks.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

LONGEST_WAVE = 10_000.0
SCORES_AT_ONCE = 2**19  # 2 MB: a few rows of one head


def sinusoids(distance: Int[Tensor, "R"], width: int, dtype: torch.dtype) -> Float[Tensor, "R W"]:
    """Sines of each distance, then cosines, at wavelengths that grow geometrically; an odd width ends with a sine."""
    half = (width + 1) // 2
    speed = LONGEST_WAVE ** -(torch.arange(half, dtype=torch.float64, device=distance.device) * 2 / width)
    angle = distance.double()[:, None] * speed
    return torch.cat([angle.sin(), angle.cos()], -1)[:, :width].to(dtype)


def relative_attention(
    query: Float[Tensor, "H N T D"],
    key: Float[Tensor, "H N K D"],
    value: Float[Tensor, "H N K D"],
    place: Float[Tensor, "H R D"],
    biases: Float[Tensor, "2 H D"],
    mask: Bool[Tensor, "M T K"] | None,
    keep: Float[Tensor, "H N T K"] | None = None,
    index: Int[Tensor, "M T K"] | None = None,
    marks: tuple[Float[Tensor, "H N T S"], Float[Tensor, "N K S"]] | None = None,
) -> Float[Tensor, "H N T D"]:
    """What each query sees; `place` has a row for each distance, the largest first: that of the last query to the first key.

    It ends with distance 0 or with the last key's distance to the first query: what is not in it must be masked. With an
    `index` it has the row that is told for each pair instead. True in the mask hides a pair. `keep` multiplies the shares
    (dropout). The products of `marks`, of queries and of keys, are added to the scores; those of keys have no gradient.
    """
    asked, told = (None, None) if marks is None else marks
    seen: Tensor = _RelativeAttention.apply(query, key, value, place, biases, mask, keep, index, asked, told)  # type: ignore[no-untyped-call]
    return seen


def shifted(products: Float[Tensor, "X T R"], keys: int) -> Float[Tensor, "X T {keys}"]:
    """A view whose entry (i, j) is the product of query i with its distance to key j; where it has none, it is any other."""
    rows, queries, distances = products.shape
    stride = (queries * distances, distances - 1, 1)
    return products.as_strided((rows, queries, keys), stride, products.storage_offset() + queries - 1)


class _RelativeAttention(torch.autograd.Function):
    """Shares are kept for the gradient; scores and products are not, and exist for a few rows of one head at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        place: Tensor,
        biases: Tensor,
        mask: Tensor | None,
        keep: Tensor | None,
        index: Tensor | None,
        asked: Tensor | None,
        told: Tensor | None,
    ) -> Tensor:
        scale = query.shape[3] ** -0.5
        to_content = (query + biases[0, :, None, None]).mul_(scale)
        to_place = (query + biases[1, :, None, None]).mul_(scale)
        if asked is not None and told is not None:
            to_content = torch.cat([to_content, asked * scale], -1)
            key = torch.cat([key, told.expand(len(key), -1, -1, -1)], -1)
        share, seen = query.new_empty(*query.shape[:3], key.shape[2]), torch.empty_like(to_place)
        for at in _groups(share, mask):
            score = _score(to_content[at], to_place[at], key[at], place[at[0]], _of(index, at[1], share), share[at])
            hidden = _of(mask, at[1], share)
            if hidden is not None:
                score.view(-1, *hidden.shape).masked_fill_(hidden, -torch.inf)
            torch.softmax(score, -1, out=score)
            used = score if keep is None else score * keep[at]
            torch.bmm(used, value[at], out=seen[at])
        ctx.save_for_backward(to_content, to_place, key, value, place, share, seen, keep, mask, index)
        return seen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, found: Tensor) -> tuple[Tensor | None, ...]:
        to_content, to_place, key, value, place, share, seen, keep, mask, index = ctx.saved_tensors
        width = to_place.shape[3]
        scale = width**-0.5
        for_content, for_to_place = torch.empty_like(to_content), torch.empty_like(to_place)
        for_key, for_value, for_place = key.new_empty(key.shape), value.new_empty(value.shape), place.new_zeros(place.shape)
        inner = (found * seen).sum(-1, keepdim=True)
        for at in _groups(share, mask):
            used = share[at] if keep is None else share[at] * keep[at]
            torch.bmm(used.transpose(1, 2), found[at], out=for_value[at])
            for_score = torch.bmm(found[at], value[at].transpose(1, 2))
            if keep is not None:
                for_score.mul_(keep[at])
            for_score.sub_(inner[at]).mul_(share[at])
            torch.bmm(for_score.transpose(1, 2), to_content[at], out=for_key[at])
            torch.bmm(for_score, key[at], out=for_content[at])
            slanted = unshifted(for_score, place.shape[1], _of(index, at[1], share)).flatten(0, 1)
            for_place[at[0]].addmm_(slanted.T, to_place[at].flatten(0, 1))
            torch.mm(slanted, place[at[0]], out=for_to_place[at].flatten(0, 1))
        for_query = for_content[..., :width]
        for_asked = for_content[..., width:] * scale if key.shape[3] > width else None
        for_biases = torch.stack([for_query.sum((1, 2)), for_to_place.sum((1, 2))]).mul_(scale)
        for_query = for_query.add_(for_to_place).mul_(scale)
        return for_query, for_key[..., :width], for_value, for_place, for_biases, None, None, None, for_asked, None


def _groups(share: Float[Tensor, "H N T K"], mask: Tensor | None) -> Iterator[tuple[int, slice]]:
    """One head and some rows at a time, so many that their scores stay in a cache; each group holds whole masks, unless every
    row has a mask of its own."""
    heads, rows = share.shape[:2]
    unit = 1 if mask is None or len(mask) == rows else len(mask)
    each = unit * max(1, SCORES_AT_ONCE // max(1, unit * share.shape[2] * share.shape[3]))
    for head in range(heads):
        for first in range(0, rows, each):
            yield head, slice(first, min(rows, first + each))


def _of(pairs: Tensor | None, rows: slice, share: Float[Tensor, "H N T K"]) -> Tensor | None:
    """What is told of pairs for some rows: their own part of it, where every row has one."""
    return pairs if pairs is None or len(pairs) < share.shape[1] else pairs[rows]


def _score(
    to_content: Float[Tensor, "N T X"],
    to_place: Float[Tensor, "N T D"],
    key: Float[Tensor, "N K X"],
    place: Float[Tensor, "R D"],
    index: Int[Tensor, "M T K"] | None,
    score: Float[Tensor, "N T K"],
) -> Float[Tensor, "N T K"]:
    """Both terms, written where they shall stand."""
    products = torch.mm(to_place.flatten(0, 1), place.T).view(*to_place.shape[:2], -1)
    by_place = shifted(products, key.shape[1]) if index is None else products.gather(2, _spread(index, len(products)))
    return torch.baddbmm(by_place, to_content, key.transpose(1, 2), out=score)


def _spread(index: Int[Tensor, "M T K"], rows: int) -> Int[Tensor, "N T K"]:
    """An index for so many rows."""
    return index.expand(rows, -1, -1) if len(index) in (1, rows) else index.repeat(rows // len(index), 1, 1)


def unshifted(
    score: Float[Tensor, "X T K"], distances: int, index: Int[Tensor, "M T K"] | None = None
) -> Float[Tensor, "X T {distances}"]:
    """The other way: the gradient of `shifted`, or of picking by an index, where that of entries with no distance is 0.

    With as many distances as keys the view's rows overlap in one entry, which is such a one for all rows but the last.
    """
    rows, queries, keys = score.shape
    products = score.new_zeros(rows, queries * distances)
    if index is not None:
        return products.view(rows, queries, distances).scatter_add_(2, _spread(index, rows), score)
    if distances > keys:
        shifted(products.view(rows, queries, distances), keys).copy_(score)
    else:
        products[:, queries - 1 : -1].view(rows, queries, keys - 1).copy_(score[:, :, :-1])
        products[:, -1] = score[:, -1, -1]
    return products.view(rows, queries, distances)
