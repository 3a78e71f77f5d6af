"""An encoder-decoder Transformer: the prompt is a source, read from both sides; the point is written after looking at it.

The encoder reads an opening symbol and the source, so that an empty source is one too; the decoder reads an opening symbol and
the target before each position. Both count positions from their own beginning, so neither has a longest length. For steps a
source is encoded once: rows that go on from one prompt note whose they are and share its keys and values.

Letters as in `esscher.networks.blocks`; L layers, P prompts, S slots of the target or places of a source.
"""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from esscher.heads.head import Headed, Logits
from esscher.networks.blocks import BACKWARD, Block, Known, Place, Sight, Turn, initialise
from esscher.networks.opening import answered, opened
from esscher.networks.output import build_head, build_input
from esscher.networks.owners import Owners
from esscher.networks.seq2seq_config import EncoderDecoderConfig
from esscher.space import Sequences, at_columns


@dataclass(frozen=True)
class _Source:
    """What all layers of the decoder know of the sources: keys and values, and which places are no padding."""

    known: Float[Tensor, "L 2 P H S D"]
    inside: Bool[Tensor, "P 1 1 S"] | None

    def rows(self, index: Int[Tensor, "Q"]) -> "_Source":
        return _Source(self.known.index_select(2, index), None if self.inside is None else self.inside[index])


@dataclass(frozen=True)
class _State:
    """Sources, whose each row is, and what each layer knows of the target so far."""

    source: _Source
    owners: Owners
    cache: tuple[Known, ...]
    turn: Turn
    logits: Logits
    filled: int


class Writer(Block):
    """A block that also looks at the source, between attention and the two-layer network."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float):
        super().__init__(width, heads, feedforward, dropout)
        self.before_source = nn.RMSNorm(width)
        self.ask_source = nn.Linear(width, width, bias=False)
        self.know_source = nn.Linear(width, 2 * width, bias=False)
        self.mix_source = nn.Linear(width, width, bias=False)

    def knows(self, source: Float[Tensor, "P S W"]) -> Float[Tensor, "2 P H S D"]:
        """Keys and values of the sources."""
        return self.know_source(source).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def write(
        self, x: Float[Tensor, "B T W"], turn: Turn, known: Float[Tensor, "2 B H S D"], inside: Tensor | None, rate: float
    ) -> Float[Tensor, "B T W"]:
        """A whole pass, each row with a source of its own."""
        x, _, _ = self.attended(x, turn, BACKWARD, rate)
        query = self.ask_source(self.before_source(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        seen = scaled_dot_product_attention(query, known[0], known[1], inside, rate)
        return self.fed(x + dropout(self.mix_source(seen.transpose(1, 2).flatten(2)), rate), rate)

    def step_write(self, x: Float[Tensor, "B W"], state: _State, layer: int, place: Place, turn: Turn) -> Float[Tensor, "B W"]:
        """The same for one position, written over x and into the cache."""
        self.step_attended(x, turn, state.cache[layer], place)
        keys, values = state.source.known[layer]
        query = self.ask_source(self.before_source(x)).view(len(x), self.heads, -1) * keys.shape[-1] ** -0.5
        score = state.owners.arrange(query).transpose(1, 2) @ keys.transpose(-1, -2)  # [P, H, N, S]
        if state.source.inside is not None:
            score.masked_fill_(~state.source.inside, -torch.inf)
        seen = state.owners.restore((score.softmax(-1) @ values).transpose(1, 2))
        return self.step_fed(x.addmm_(seen.reshape(x.shape), self.mix_source.weight.T))


class EncoderDecoderNetwork(Headed):
    """A Transformer that reads a source and writes a target, over one vocabulary."""

    max_positions = None

    def __init__(self, config: EncoderDecoderConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.embedding = build_input(config, vocab_size, config.width)
        sizes = (config.width, config.heads, config.feedforward, config.dropout)
        self.readers = nn.ModuleList([Block(*sizes) for _ in range(config.encoders)])
        self.writers = nn.ModuleList([Writer(*sizes) for _ in range(config.layers)])
        self.after_reading, self.last = nn.RMSNorm(config.width), nn.RMSNorm(config.width)
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None, bias=False)
        initialise(self, max(config.encoders, config.layers))

    def hidden(self, x: Sequences) -> Float[Tensor, "B T W"]:
        source = self._read(x.prompts(), dropping=self.training)
        inputs = answered(x, self.vocab_size)
        rate = self.config.dropout if self.training else 0.0
        vectors = dropout(self.embedding(inputs), rate)
        turn = self._turn(inputs.shape[1])
        for block, known in zip(self.writers, source.known, strict=True):
            vectors = cast(Writer, block).write(vectors, turn, known, source.inside, rate)
        return at_columns(x, self.last(vectors))

    def begin(self, prompts: Sequences, room: int) -> tuple[Float[Tensor, "B V"], _State]:
        source, rows = self._read(prompts, dropping=False), len(prompts)
        layers, _, _, heads, _, width = source.known.shape
        cache = tuple(Known.nothing(source.known, rows, heads, room, width) for _ in range(layers))
        owners = Owners(torch.arange(rows, device=prompts.tokens.device), rows)
        state = _State(source, owners, cache, self._turn(room), self.head.prepared(room), 0)
        return self.advance(state, torch.full((rows,), self.vocab_size, device=prompts.tokens.device))

    def advance(self, state: _State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], _State]:
        if state.filled == state.cache[0].slots:
            raise ValueError(f"The state is full: it had room for {state.filled} positions, one for each token to come.")
        x, place, turn = self.embedding(token), Place(state.filled), state.turn.at(state.filled)
        for number, block in enumerate(self.writers):
            cast(Writer, block).step_write(x, state, number, place, turn)
        after = _State(state.source, state.owners, state.cache, state.turn, state.logits, state.filled + 1)
        return state.logits(self.last(x)), after

    def select(self, state: _State, index: Int[Tensor, "K"]) -> _State:
        owners, used = state.owners.select(index)
        cache = tuple(known.select(index, state.filled) for known in state.cache)
        source = state.source if used is None else state.source.rows(used)
        return _State(source, owners, cache, state.turn, state.logits, state.filled)

    def _read(self, prompts: Sequences, *, dropping: bool) -> _Source:
        """The sources as the decoder's layers know them."""
        inputs = opened(prompts, self.vocab_size)
        inside = (torch.arange(inputs.shape[1], device=inputs.device) <= prompts.start[:, None])[:, None, None]
        mask = None if bool(inside.all()) else inside
        vectors = dropout(self.embedding(inputs), self.config.dropout, dropping)
        turn, sight = self._turn(inputs.shape[1]), Sight(causal=False, mask=mask)
        for block in self.readers:
            vectors, _, _ = block(vectors, turn, sight, dropping=dropping)
        read = self.after_reading(vectors)
        return _Source(torch.stack([cast(Writer, block).knows(read) for block in self.writers]), mask)

    def _turn(self, positions: int) -> Turn:
        config = self.config
        return Turn.of_positions(positions, config.width // config.heads).like(self.last.weight)
