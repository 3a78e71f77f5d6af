"""A causal Transformer: pre-norm with RMSNorm, GELU, no biases, rotary or learnt positions, fused attention.

A pass attends through `scaled_dot_product_attention`; a step reads keys and values from a cache that is
allocated once, at `begin`. Each row fills its own slots 0, 1, 2, ... so prompts of different lengths need
no slots of padding; while all rows have the same length, no mask and no scatter are needed either.

Letters beside those of `esscher.space`: W width, H heads, D = W / H, L layers, S slots of the cache.
"""

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, scaled_dot_product_attention

from esscher.bases.config import TransformerConfig
from esscher.bases.heads import Headed, Logits
from esscher.bases.opening import opened
from esscher.bases.output import build_head, build_input
from esscher.space import Sequences

INITIAL_STD = 0.02
SLOWEST_TURN = 10_000.0  # base of the wavelengths of rotary positions (Su et al. 2021)


class _Turn(NamedTuple):
    """Rotary positions: the pair (i, i + D/2) of a vector turns by an angle that grows with the position."""

    cos: Float[Tensor, "*S D"]
    sin: Float[Tensor, "*S D"]  # negative in the first half

    def __call__(self, vectors: Float[Tensor, "*S D"]) -> Float[Tensor, "*S D"]:
        return torch.addcmul(vectors * self.cos, vectors.roll(vectors.shape[-1] // 2, -1), self.sin)

    def over(self, vectors: Float[Tensor, "*S D"]) -> None:
        """The same in place."""
        other = vectors.roll(vectors.shape[-1] // 2, -1)
        vectors.mul_(self.cos).addcmul_(other, self.sin)


@dataclass(frozen=True)
class _State:
    """`cache[l, 0]` holds the keys of layer l and `cache[l, 1]` its values; slot t of a row is what it read t-th."""

    cache: Float[Tensor, "L 2 B H S D"]
    logits: Logits
    longest: int  # slots that the longest row has filled
    length: Int[Tensor, "B"] | None  # slots that each row has filled; None when all have filled `longest`


class _Sight(NamedTuple):
    """What a position of a pass may attend to: those before it, or all of its row that the mask leaves."""

    causal: bool
    mask: Bool[Tensor, "B 1 1 T"] | None = None


BACKWARD = _Sight(causal=True)


class _Block(nn.Module):
    """Attention and a two-layer network, each added to what came in."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        width = config.width
        self.heads, self.rate = config.heads, config.dropout
        self.before_attention, self.before_feedforward = nn.RMSNorm(width), nn.RMSNorm(width)
        self.ask = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width, bias=False)
        self.widen = nn.Linear(width, config.feedforward, bias=False)
        self.narrow = nn.Linear(config.feedforward, width, bias=False)

    def forward(
        self, x: Float[Tensor, "B T W"], turn: _Turn | None, sight: "_Sight", *, dropping: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The block's output for a whole pass, its keys and its values, both [B, H, T, D]."""
        rate = self.rate if dropping else 0.0
        parts = self.ask(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys = parts[:2] if turn is None else turn(parts[:2])
        seen = scaled_dot_product_attention(queries, keys, parts[2], sight.mask, rate, sight.causal)
        x = x + dropout(self.mix(seen.transpose(1, 2).flatten(2)), rate)
        inner = gelu(self.widen(self.before_feedforward(x)))
        return x + dropout(self.narrow(inner), rate), keys, parts[2]

    def step(
        self, x: Float[Tensor, "B W"], turn: _Turn | None, cache: Float[Tensor, "2 B H S D"], place: "_Place"
    ) -> Float[Tensor, "B W"]:
        """The same for one position, written over x and into the cache."""
        parts = self.ask(self.before_attention(x)).view(len(x), 3, self.heads, -1)
        if turn is not None:
            turn.over(parts[:, :2])
        place.write(cache, parts[:, 1:])
        keys, values = cache[..., : place.filled, :]
        query = parts[:, 0, :, None] * parts.shape[-1] ** -0.5
        score = query @ keys.transpose(-1, -2)  # for one query faster than a kernel made for many
        if place.mask is not None:
            score.masked_fill_(~place.mask, -torch.inf)
        x.addmm_((score.softmax(-1) @ values).reshape(x.shape), self.mix.weight.T)
        inner = gelu(self.widen(self.before_feedforward(x)))
        return x.addmm_(inner, self.narrow.weight.T)


class _Place:
    """Where a step writes into the cache, and what of it a row may read."""

    def __init__(self, state: _State):
        self.filled, self.slot = state.longest + 1, state.length
        self.mask = None
        if self.slot is not None:
            self.mask = (torch.arange(self.filled, device=self.slot.device) <= self.slot[:, None])[:, None, None]
            self.row = torch.arange(len(self.slot), device=self.slot.device)

    def write(self, cache: Float[Tensor, "2 B H S D"], pair: Float[Tensor, "B 2 H D"]) -> None:
        if self.slot is None:
            cache[:, :, :, self.filled - 1] = pair.transpose(0, 1)
        else:
            cache[:, :, :, self.filled - 1] = 0.0  # fresh memory may hold NaN, which a mask does not stop
            cache[:, self.row, :, self.slot] = pair


class TransformerNetwork(Headed):
    """A causal Transformer that reads tokens and an opening symbol."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: TransformerConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size, self.max_positions = config, vocab_size, config.max_positions
        self.embedding = build_input(config, vocab_size, config.width)
        self.blocks = nn.ModuleList([_Block(config) for _ in range(config.layers)])
        self.last = nn.RMSNorm(config.width)
        if config.positions == "learned":
            self.position = nn.Embedding(config.max_positions, config.width)
        else:
            for name, values in turns(config)._asdict().items():
                self.register_buffer(name, values, persistent=False)
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1 and ".projections." not in name:
                deep = name.endswith(("mix.weight", "narrow.weight"))  # they add up over the layers
                nn.init.normal_(weight, std=INITIAL_STD / (2 * config.layers) ** 0.5 if deep else INITIAL_STD)

    def hidden(self, x: Sequences) -> Float[Tensor, "B T W"]:
        return self._pass(opened(x, self.vocab_size)[:, :-1], None)

    def surveyed(self, x: Sequences) -> Float[Tensor, "B U W"]:
        """The vectors of the opening symbol and of each token when all of a row is seen from everywhere: an encoder's."""
        inputs = opened(x, self.vocab_size)
        inside = torch.arange(inputs.shape[1], device=inputs.device) <= x.stop[:, None]
        mask = None if bool(inside.all()) else inside[:, None, None]
        return self._pass(inputs, None, _Sight(causal=False, mask=mask))

    def begin(self, prompts: Sequences, room: int) -> tuple[Float[Tensor, "B V"], _State]:
        inputs = opened(prompts, self.vocab_size)
        rows, longest = inputs.shape
        config = self.config
        shape = (config.layers, 2, rows, config.heads, longest - 1 + room, config.width // config.heads)
        cache = self.last.weight.new_empty(shape)
        hidden = self._pass(inputs, cache)
        after = hidden[torch.arange(rows, device=inputs.device), prompts.start]
        logits = self.head.prepared(room)
        return logits(after), _of_lengths(cache, logits, longest, prompts.start + 1)

    def advance(self, state: _State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], _State]:
        if state.longest == state.cache.shape[4]:
            raise ValueError(f"The state is full: it had room for {state.longest} positions, one for each token to come.")
        place = _Place(state)
        position = state.longest if state.length is None else state.length
        x, turn = self.embedding(token), None
        if self.config.positions == "learned":
            x += self.position.weight[position]
        else:
            turn = _Turn(self.cos[position][..., None, None, :], self.sin[position][..., None, None, :])
        for block, cache in zip(self.blocks, state.cache, strict=True):
            cast(_Block, block).step(x, turn, cache, place)
        length = None if state.length is None else state.length + 1
        return state.logits(self.last(x)), _State(state.cache, state.logits, state.longest + 1, length)

    def select(self, state: _State, index: Int[Tensor, "K"]) -> _State:
        old = state.cache
        cache = old.new_empty(*old.shape[:2], len(index), *old.shape[3:])
        cache[..., : state.longest, :] = old[..., : state.longest, :].index_select(2, index)
        length = None if state.length is None else state.length[index]
        return _of_lengths(cache, state.logits, state.longest, length)

    def _pass(
        self, inputs: Int[Tensor, "B T"], cache: Float[Tensor, "L 2 B H S D"] | None, sight: _Sight = BACKWARD
    ) -> Float[Tensor, "B T W"]:
        """The vectors after each input; with a cache to fill nothing is dropped."""
        width, dropping = inputs.shape[1], self.training and cache is None
        x, turn = self.embedding(inputs), None
        if self.config.positions == "learned":
            x = x + self.position.weight[:width]
        else:
            turn = _Turn(self.cos[:width], self.sin[:width])
        x = dropout(x, self.config.dropout, dropping)
        for number, block in enumerate(self.blocks):
            x, keys, values = block(x, turn, sight, dropping=dropping)
            if cache is not None:
                cache[number, 0, :, :, :width], cache[number, 1, :, :, :width] = keys, values
        return self.last(x)


def _of_lengths(cache: Tensor, logits: Logits, longest: int, length: Int[Tensor, "B"] | None) -> _State:
    """A state whose rows may have filled different numbers of slots; `length` is dropped when they did not."""
    if length is None or len(length) == 0:
        return _State(cache, logits, longest, None)
    low, high = (int(bound) for bound in length.aminmax())
    return _State(cache, logits, high, None if low == high else length)


def turns(config: TransformerConfig) -> _Turn:
    """The angles of every position: the buffers `cos` and `sin` of a network with rotary ones."""
    half = config.width // config.heads // 2
    speed = SLOWEST_TURN ** -(torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(config.max_positions, dtype=torch.float64)[:, None] * speed
    cos, sin = angle.cos(), angle.sin()
    return _Turn(torch.cat([cos, cos], -1).float(), torch.cat([-sin, sin], -1).float())
