"""One position at a time: what a stack of mixers and feed-forward parts does for a step, by weights laid out for it.

A pass and a step are the same computation; a step has one position for each row, so it is made of small products, and every
call counts. Weights are taken from their modules once, when a state is made: query, key and value become one product, and the
scale of attention is in the weights. A state therefore belongs to the weights at `begin`. With u and v the two biases of
relative attention, the query that is made is q + u, and (q + v) . r = (q + u) . r + (v - u) . r, the last term of which is
the place's own.

Letters as in `esscher.networks.mixers`; R distances.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, layer_norm, nn
from torch.nn.functional import gelu, relu

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Activation] = {"relu": relu, "gelu": gelu, "gelu-tanh": partial(gelu, approximate="tanh")}
"""What stands between the two layers of a feed-forward part."""


class Place:
    """Where a step writes into a cache: all rows in the same slot, or each in its own."""

    def __init__(self, longest: int, length: Int[Tensor, "B"] | None):
        self.filled, self.slot, self.least = longest + 1, length, longest
        if length is not None:
            self.least = int(length.min())
            self.row = torch.arange(len(length), device=length.device)

    def write(self, cache: Float[Tensor, "P H B S D"], known: Float[Tensor, "P H B D"]) -> None:
        last = cache.select(3, self.filled - 1)
        if self.slot is None:
            last.copy_(known)
        else:
            last.zero_()  # fresh memory may hold NaN, which a mask does not stop
            cache[:, :, self.row, self.slot] = known


def uneven(longest: int, length: Int[Tensor, "B"] | None) -> tuple[int, Int[Tensor, "B"] | None]:
    """The slots of the longest row, and those of each; None where all rows have filled as many."""
    if length is None or len(length) == 0:
        return longest, None
    low, high = (int(bound) for bound in length.aminmax())
    return high, None if low == high else length


@runtime_checkable
class MixerStep(Protocol):
    """A mixer for one position: it writes what others need of it into the cache, and adds what it sees there to `onto`."""

    def __call__(
        self, x: Float[Tensor, "B W"], cache: Float[Tensor, "P H B S D"], place: Place, onto: Float[Tensor, "B W"]
    ) -> Float[Tensor, "B W"]: ...


@dataclass(frozen=True)
class AttentionStep:
    """Relative attention of one position to its last R, or, with a `chunk`, to its chunk and the one before."""

    into: tuple[Float[Tensor, "*B X"], Float[Tensor, "W X"]]  # bias and weight of query, scaled, key and value
    out: Float[Tensor, "Y W"]
    places: Float[Tensor, "H D R"]  # the largest distance first
    place_bias: Float[Tensor, "H 1 R"]  # what the score of a place has beside its product with the query
    chunk: int | None

    def __call__(
        self, x: Float[Tensor, "B W"], cache: Float[Tensor, "2 H B S D"], place: Place, onto: Float[Tensor, "B W"]
    ) -> Float[Tensor, "B W"]:
        rows, (heads, width, distances) = len(x), self.places.shape
        bias, weight = self.into
        parts = torch.addmm(bias, x, weight).view(rows, 3, heads, width).permute(1, 2, 0, 3)
        query = parts[0]
        place.write(cache, parts[1:])
        low = max(0, place.least - distances + 1 if self.chunk is None else (place.least // self.chunk - 1) * self.chunk)
        slots = place.filled - low
        if place.slot is None:
            score = torch.baddbmm(self.place_bias[:, :, distances - slots :], query, self.places[:, :, distances - slots :])
        else:
            score = self._own(torch.baddbmm(self.place_bias, query, self.places), place.slot, range(low, place.filled))
        keys, values = cache[:, :, :, low : place.filled].flatten(1, 2).unbind()
        score = score.view(-1, 1, slots).baddbmm_(query.reshape(-1, 1, width), keys.transpose(1, 2))
        seen = torch.bmm(score.softmax(-1), values).view(heads, rows, width)
        return torch.addmm(onto, seen.transpose(0, 1).reshape(rows, -1), self.out)

    def _own(self, by_place: Float[Tensor, "H B R"], own: Int[Tensor, "B"], slots: range) -> Float[Tensor, "H B S"]:
        """The scores of slots when each row stands in a slot of its own."""
        most = by_place.shape[2] - 1
        slot = torch.arange(slots.start, slots.stop, device=own.device)
        distance = own[:, None] - slot
        furthest = most if self.chunk is None else (own % self.chunk + self.chunk)[:, None]
        hidden = (distance < 0) | (distance > furthest)
        index = (most - distance).clamp(0, most)
        return by_place.gather(2, index.expand(len(by_place), -1, -1)).masked_fill_(hidden, -torch.inf)


class Norm(NamedTuple):
    """A layer norm by its weights."""

    shape: tuple[int, ...]
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    @classmethod
    def of(cls, norm: nn.LayerNorm) -> "Norm":
        return cls(norm.normalized_shape, norm.weight, norm.bias, norm.eps)


@dataclass(frozen=True)
class BlockStep:
    """A mixer and a two-layer network, each added to what came in, with norms after the sums or before the parts."""

    mixer: MixerStep
    norms: tuple[Norm, Norm]
    widen: tuple[Tensor, Tensor]  # bias, and weight as [W, F]
    narrow: tuple[Tensor, Tensor]
    pre: bool
    act: Activation = relu

    def __call__(self, x: Float[Tensor, "B W"], cache: Tensor, place: Place) -> Float[Tensor, "B W"]:
        (bias, weight), (other_bias, other_weight), (first, second) = self.widen, self.narrow, self.norms
        if self.pre:
            x = self.mixer(layer_norm(x, *first), cache, place, x)
            inner = self.act(torch.addmm(bias, layer_norm(x, *second), weight))
            return torch.addmm(other_bias, inner, other_weight).add_(x)
        x = layer_norm(self.mixer(x, cache, place, x), *first)
        inner = self.act(torch.addmm(bias, x, weight))
        return layer_norm(torch.addmm(other_bias, inner, other_weight).add_(x), *second)
