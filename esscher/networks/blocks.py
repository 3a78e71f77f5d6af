"""Blocks of a Transformer, pre-norm with RMSNorm, GELU and no biases: for a whole pass, and for a step on a cache.

A pass attends through `scaled_dot_product_attention`; a step reads keys and values from a cache that is allocated once.
Rotary positions turn queries and keys (`Turn`); how far a position sees is its `Sight`; where a step writes, its `Place`.

Letters beside those of `esscher.space`: W width, H heads, D = W / H, S slots of a cache.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, scaled_dot_product_attention

INITIAL_STD = 0.02
SLOWEST_TURN = 10_000.0  # base of the wavelengths of rotary positions (Su et al. 2021)


class Turn(NamedTuple):
    """Rotary positions: the pair (i, i + D/2) of a vector turns by an angle that grows with the position."""

    cos: Float[Tensor, "*S D"]
    sin: Float[Tensor, "*S D"]  # negative in the first half

    @classmethod
    def of_positions(cls, count: int, width: int) -> "Turn":
        """The angles of positions 0, 1, ... for heads of this width."""
        half = width // 2
        speed = SLOWEST_TURN ** -(torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(count, dtype=torch.float64)[:, None] * speed
        cos, sin = angle.cos(), angle.sin()
        return cls(torch.cat([cos, cos], -1).float(), torch.cat([-sin, sin], -1).float())

    def at(self, position: "int | slice | Int[Tensor, 'B']") -> "Turn":
        """Those of some positions."""
        return Turn(self.cos[position], self.sin[position])

    def like(self, other: Tensor) -> "Turn":
        """The same beside another tensor."""
        return Turn(self.cos.to(other), self.sin.to(other))

    def __call__(self, vectors: Float[Tensor, "*S D"]) -> Float[Tensor, "*S D"]:
        return torch.addcmul(vectors * self.cos, vectors.roll(vectors.shape[-1] // 2, -1), self.sin)

    def over(self, vectors: Float[Tensor, "*S D"]) -> None:
        """The same in place."""
        other = vectors.roll(vectors.shape[-1] // 2, -1)
        vectors.mul_(self.cos).addcmul_(other, self.sin)


class Sight(NamedTuple):
    """What a position of a pass may attend to: those before it, or all of its row that the mask leaves."""

    causal: bool
    mask: Bool[Tensor, "B 1 1 T"] | None = None


BACKWARD = Sight(causal=True)


class Known(NamedTuple):
    """The keys and values of a layer with room for more. Each is memory of its own: what is small is used again without page
    faults, which cost more than the copy where beams or draws are chosen at every step."""

    keys: Float[Tensor, "B H S D"]
    values: Float[Tensor, "B H S D"]

    @classmethod
    def nothing(cls, like: Tensor, rows: int, heads: int, slots: int, width: int) -> "Known":
        return cls(like.new_empty(rows, heads, slots, width), like.new_empty(rows, heads, slots, width))

    @property
    def slots(self) -> int:
        return self.keys.shape[2]

    def select(self, index: Int[Tensor, "K"], filled: int) -> "Known":
        """The chosen rows, copied; slots that are not filled stay unwritten."""
        chosen = Known.nothing(self.keys, len(index), self.keys.shape[1], self.slots, self.keys.shape[3])
        for old, new in zip(self, chosen, strict=True):
            torch.index_select(old[:, :, :filled], 0, index, out=new[:, :, :filled])
        return chosen


class Place:
    """Where a step writes into a cache, all rows into slot `longest` or each into its own; and what of it a row may read."""

    def __init__(self, longest: int, length: Int[Tensor, "B"] | None = None):
        self.filled, self.slot = longest + 1, length
        self.mask = None
        if self.slot is not None:
            self.mask = (torch.arange(self.filled, device=self.slot.device) <= self.slot[:, None])[:, None, None]
            self.row = torch.arange(len(self.slot), device=self.slot.device)

    def write(self, cache: Known, pair: Float[Tensor, "B 2 H D"]) -> None:
        for part, new in zip(cache, pair.unbind(1), strict=True):
            if self.slot is None:
                part[:, :, self.filled - 1] = new
            else:
                part[:, :, self.filled - 1] = 0.0  # fresh memory may hold NaN, which a mask does not stop
                part[self.row, :, self.slot] = new


class Block(nn.Module):
    """Attention and a two-layer network, each added to what came in."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float):
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.before_attention, self.before_feedforward = nn.RMSNorm(width), nn.RMSNorm(width)
        self.ask = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width, bias=False)
        self.widen = nn.Linear(width, feedforward, bias=False)
        self.narrow = nn.Linear(feedforward, width, bias=False)

    def forward(
        self, x: Float[Tensor, "B T W"], turn: Turn | None, sight: Sight, *, dropping: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The block's output for a whole pass, its keys and its values, both [B, H, T, D]."""
        rate = self.rate if dropping else 0.0
        x, keys, values = self.attended(x, turn, sight, rate)
        return self.fed(x, rate), keys, values

    def attended(
        self, x: Float[Tensor, "B T W"], turn: Turn | None, sight: Sight, rate: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The first half of a pass, and the keys and values."""
        parts = self.ask(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys = parts[:2] if turn is None else turn(parts[:2])
        seen = scaled_dot_product_attention(queries, keys, parts[2], sight.mask, rate, sight.causal)
        return x + dropout(self.mix(seen.transpose(1, 2).flatten(2)), rate), keys, parts[2]

    def fed(self, x: Float[Tensor, "B T W"], rate: float) -> Float[Tensor, "B T W"]:
        """The second half."""
        inner = gelu(self.widen(self.before_feedforward(x)))
        return x + dropout(self.narrow(inner), rate)

    def step(self, x: Float[Tensor, "B W"], turn: Turn | None, cache: Known, place: Place) -> Float[Tensor, "B W"]:
        """The same for one position, written over x and into the cache."""
        return self.step_fed(self.step_attended(x, turn, cache, place))

    def step_attended(self, x: Float[Tensor, "B W"], turn: Turn | None, cache: Known, place: Place) -> Float[Tensor, "B W"]:
        """The first half of a step."""
        parts = self.ask(self.before_attention(x)).view(len(x), 3, self.heads, -1)
        if turn is not None:
            turn.over(parts[:, :2])
        place.write(cache, parts[:, 1:])
        keys, values = (part[:, :, : place.filled] for part in cache)
        query = parts[:, 0, :, None] * parts.shape[-1] ** -0.5
        score = query @ keys.transpose(-1, -2)  # for one query faster than a kernel made for many
        if place.mask is not None:
            score.masked_fill_(~place.mask, -torch.inf)
        return x.addmm_((score.softmax(-1) @ values).reshape(x.shape), self.mix.weight.T)

    def step_fed(self, x: Float[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """The second half."""
        inner = gelu(self.widen(self.before_feedforward(x)))
        return x.addmm_(inner, self.narrow.weight.T)


def initialise(network: nn.Module, layers: int) -> None:
    """Small normal weights; those that add up over the layers are smaller the more layers there are."""
    for name, weight in network.named_parameters():
        if weight.dim() > 1 and ".projections." not in name:
            deep = name.endswith(("mix.weight", "mix_source.weight", "narrow.weight"))
            nn.init.normal_(weight, std=INITIAL_STD / (2 * layers) ** 0.5 if deep else INITIAL_STD)
