"""Attention with relative positions (Dai et al. 2019): its score, its gradient, and the sinusoids of distances.

    A_ij = (q_i + u) . k_j + (q_i + v) . r_(i-j)

The second term is made for all pairs from as many products as there are distances: row i of the products, read from another
place, is row i of the term (`shifted`). Nothing is padded or copied, and the first term is added to that view by the same
product that makes it. The gradient is written out, because that of a view read at a slant would be slow.

Letters beside those of `esscher.space`: H heads, D width of a head, N rows (of a batch, or of chunks), M rows of the mask, of
which N is a multiple, T queries, K keys, R distances.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

LONGEST_WAVE = 10_000.0


def sinusoids(distance: Int[Tensor, "R"], width: int, dtype: torch.dtype) -> Float[Tensor, "R W"]:
    """Sines of each distance, then cosines, at wavelengths that grow geometrically; an odd width ends with a sine."""
    half = (width + 1) // 2
    speed = LONGEST_WAVE ** -(torch.arange(half, dtype=torch.float64, device=distance.device) * 2 / width)
    angle = (distance.double()[:, None] * speed).to(torch.float64)
    return torch.cat([angle.sin(), angle.cos()], -1)[:, :width].to(dtype)


def relative_attention(
    query: Float[Tensor, "H N T D"],
    key: Float[Tensor, "H N K D"],
    value: Float[Tensor, "H N K D"],
    place: Float[Tensor, "H R D"],
    biases: Float[Tensor, "2 H D"],
    mask: Bool[Tensor, "M T K"] | None,
    keep: Float[Tensor, "H N T K"] | None = None,
) -> Float[Tensor, "H N T D"]:
    """What each query sees; `place` has a row for each distance, the largest first: that of the last query to the first key.

    It ends with distance 0 or with the last key's distance to the first query: what is not in it must be masked. True in the
    mask hides a pair. `keep` multiplies the shares (dropout).
    """
    seen: Tensor = _RelativeAttention.apply(query, key, value, place, biases, mask, keep)  # type: ignore[no-untyped-call]
    return seen


def shifted(products: Float[Tensor, "X T R"], keys: int) -> Float[Tensor, "X T {keys}"]:
    """A view whose entry (i, j) is the product of query i with its distance to key j; where it has none, it is any other."""
    rows, queries, distances = products.shape
    stride = (queries * distances, distances - 1, 1)
    return products.as_strided((rows, queries, keys), stride, products.storage_offset() + queries - 1)


class _RelativeAttention(torch.autograd.Function):
    """Shares are kept for the gradient; scores and products are not."""

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
    ) -> Tensor:
        (heads, rows, queries, width), keys = query.shape, key.shape[2]
        scale = width**-0.5
        to_content = (query + biases[0, :, None, None]).mul_(scale)
        to_place = (query + biases[1, :, None, None]).mul_(scale)
        products = torch.bmm(to_place.flatten(1, 2), place.transpose(1, 2)).view(heads * rows, queries, -1)
        score = torch.baddbmm(shifted(products, keys), to_content.flatten(0, 1), key.flatten(0, 1).transpose(1, 2))
        del products
        if mask is not None:
            score.view(heads, -1, *mask.shape).masked_fill_(mask, -torch.inf)
        share = torch.softmax(score, -1, out=score)
        used = share if keep is None else share * keep.flatten(0, 1)
        seen = torch.bmm(used, value.flatten(0, 1)).view(heads, rows, queries, -1)
        ctx.save_for_backward(to_content, to_place, key, value, place, share, seen, keep)
        return seen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, found: Tensor) -> tuple[Tensor | None, ...]:
        to_content, to_place, key, value, place, share, seen, keep = ctx.saved_tensors
        heads, rows, queries, width = to_content.shape
        scale, flat = width**-0.5, found.flatten(0, 1)
        used = share if keep is None else share * keep.flatten(0, 1)
        for_value = torch.bmm(used.transpose(1, 2), flat).view_as(value)
        del used
        for_score = torch.bmm(flat, value.flatten(0, 1).transpose(1, 2))
        if keep is not None:
            for_score.mul_(keep.flatten(0, 1))
        inner = (found * seen).sum(-1).flatten(0, 1)[..., None]
        for_score.sub_(inner).mul_(share)
        for_key = torch.bmm(for_score.transpose(1, 2), to_content.flatten(0, 1)).view_as(key)
        for_query = torch.bmm(for_score, key.flatten(0, 1)).view_as(to_content)
        slanted = unshifted(for_score, place.shape[1]).view(heads, rows * queries, -1)
        for_place = torch.bmm(slanted.transpose(1, 2), to_place.flatten(1, 2))
        for_to_place = torch.bmm(slanted, place).view_as(to_place)
        for_biases = torch.stack([for_query.sum((1, 2)), for_to_place.sum((1, 2))]).mul_(scale)
        return for_query.add_(for_to_place).mul_(scale), for_key, for_value, for_place, for_biases, None, None


def unshifted(score: Float[Tensor, "X T K"], distances: int) -> Float[Tensor, "X T {distances}"]:
    """The other way: the gradient of `shifted`, where that of entries with no distance is 0.

    With as many distances as keys the view's rows overlap in one entry, which is such a one for all rows but the last.
    """
    rows, queries, keys = score.shape
    products = score.new_zeros(rows, queries * distances)
    if distances > keys:
        shifted(products.view(rows, queries, distances), keys).copy_(score)
    else:
        products[:, queries - 1 : -1].view(rows, queries, keys - 1).copy_(score[:, :, :-1])
        products[:, -1] = score[:, -1, -1]
    return products.view(rows, queries, distances)
