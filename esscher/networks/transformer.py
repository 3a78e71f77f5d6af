"""A causal Transformer of the blocks in `esscher.networks.blocks`, with rotary or learnt positions.

A step reads keys and values from a cache that is allocated once, at `begin`. Each row fills its own slots 0, 1, 2, ... so
prompts of different lengths need no slots of padding; while all rows have the same length, no mask and no scatter are needed
either.

Letters beside those of `esscher.space`: W width, H heads, D = W / H, L layers, S slots of the cache.
"""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout

from esscher.heads.head import Headed, Logits
from esscher.networks.blocks import BACKWARD, Block, Known, Place, Sight, Turn, initialise
from esscher.networks.opening import opened
from esscher.networks.output import build_head, build_input
from esscher.networks.stepping import uneven
from esscher.networks.transformer_config import TransformerConfig
from esscher.space import Sequences


@dataclass(frozen=True)
class _State:
    """Keys and values of each layer; slot t of a row is what it read t-th."""

    cache: tuple[Known, ...]
    logits: Logits
    longest: int  # slots that the longest row has filled
    length: Int[Tensor, "B"] | None  # slots that each row has filled; None when all have filled `longest`


class TransformerNetwork(Headed):
    """A causal Transformer that reads tokens and an opening symbol."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: TransformerConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size, self.max_positions = config, vocab_size, config.max_positions
        self.embedding = build_input(config, vocab_size, config.width)
        self.blocks = nn.ModuleList(
            [Block(config.width, config.heads, config.feedforward, config.dropout) for _ in range(config.layers)]
        )
        self.last = nn.RMSNorm(config.width)
        if config.positions == "learned":
            self.position = nn.Embedding(config.max_positions, config.width)
        else:
            for name, values in turns(config)._asdict().items():
                self.register_buffer(name, values, persistent=False)
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None, bias=False)
        initialise(self, config.layers)

    def hidden(self, x: Sequences) -> Float[Tensor, "B T W"]:
        return self._pass(opened(x, self.vocab_size)[:, :-1], None)

    def surveyed(self, x: Sequences) -> Float[Tensor, "B U W"]:
        """The vectors of the opening symbol and of each token when all of a row is seen from everywhere: an encoder's."""
        inputs = opened(x, self.vocab_size)
        inside = torch.arange(inputs.shape[1], device=inputs.device) <= x.stop[:, None]
        mask = None if bool(inside.all()) else inside[:, None, None]
        return self._pass(inputs, None, Sight(causal=False, mask=mask))

    def begin(self, prompts: Sequences, room: int) -> tuple[Float[Tensor, "B V"], _State]:
        inputs = opened(prompts, self.vocab_size)
        rows, longest = inputs.shape
        config = self.config
        shape = (rows, config.heads, longest - 1 + room, config.width // config.heads)
        cache = tuple(Known.nothing(self.last.weight, *shape) for _ in range(config.layers))
        hidden = self._pass(inputs, cache)
        after = hidden[torch.arange(rows, device=inputs.device), prompts.start]
        logits = self.head.prepared(room)
        return logits(after), _State(cache, logits, *uneven(longest, prompts.start + 1))

    def advance(self, state: _State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], _State]:
        if state.longest == state.cache[0].slots:
            raise ValueError(f"The state is full: it had room for {state.longest} positions, one for each token to come.")
        place = Place(state.longest, state.length)
        position = state.longest if state.length is None else state.length
        x, turn = self.embedding(token), None
        if self.config.positions == "learned":
            x += self.position.weight[position]
        else:
            turn = Turn(self.cos[position][..., None, None, :], self.sin[position][..., None, None, :])
        for block, cache in zip(self.blocks, state.cache, strict=True):
            cast(Block, block).step(x, turn, cache, place)
        length = None if state.length is None else state.length + 1
        return state.logits(self.last(x)), _State(state.cache, state.logits, state.longest + 1, length)

    def select(self, state: _State, index: Int[Tensor, "K"]) -> _State:
        cache = tuple(known.select(index, state.longest) for known in state.cache)
        length = None if state.length is None else state.length[index]
        return _State(cache, state.logits, *uneven(state.longest, length))

    def _pass(
        self, inputs: Int[Tensor, "B T"], cache: tuple[Known, ...] | None, sight: Sight = BACKWARD
    ) -> Float[Tensor, "B T W"]:
        """The vectors after each input; with a cache to fill nothing is dropped."""
        width, dropping = inputs.shape[1], self.training and cache is None
        x, turn = self.embedding(inputs), None
        if self.config.positions == "learned":
            x = x + self.position.weight[:width]
        else:
            turn = Turn(self.cos[:width], self.sin[:width])
        x = dropout(x, self.config.dropout, dropping)
        for number, block in enumerate(self.blocks):
            x, keys, values = block(x, turn, sight, dropping=dropping)
            if cache is not None:
                cache[number].keys[:, :, :width], cache[number].values[:, :, :width] = keys, values
        return self.last(x)


def turns(config: TransformerConfig) -> Turn:
    """The angles of every position: the buffers `cos` and `sin` of a network with rotary ones."""
    return Turn.of_positions(config.max_positions, config.width // config.heads)
