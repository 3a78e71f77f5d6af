"""Transformer-XL (Dai et al. 2019): a causal Transformer whose layers remember; Local-XL and convolutions in the same stack.

A layer sees the positions of a segment and those it remembers. Of a stream that is learnt from, the memory holds each layer's
inputs, and what is made of them follows the weights; otherwise it holds what the mixers know of each position (projected keys
and values), made once. Scoring, drawing and reading a stream are one distribution: every position sees as far back as
`config.sight`, however the text is cut. In training a stream's position sees the whole memory and its segment (unless
`same_length`), as published.

Letters beside those of `esscher.space`: W width, H heads, D width of a head, P parts known of a position, L positions of a
segment, S slots of a cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout

from esscher.heads.adaptive import PROJECTION_STD
from esscher.heads.head import Headed, Logits, laid_out
from esscher.networks.activations import locked
from esscher.networks.convolution import Convolution
from esscher.networks.mixers import Mixer, Places, RelativeAttention, Sight
from esscher.networks.opening import opened
from esscher.networks.output import build_head, build_input
from esscher.networks.relative import sinusoids
from esscher.networks.stepping import ACTIVATIONS, BlockStep, Norm, Place, uneven
from esscher.networks.transformer_config import TransformerXLConfig
from esscher.space import Sequences

INITIAL_STD = 0.02
LONGEST_PASS = 2048  # positions of a pass that needs no gradient; longer rows are read in segments


@dataclass(frozen=True)
class XLState:
    """What each layer knows of the positions read: slot t of a row is what it read t-th."""

    caches: tuple[Tensor, ...]  # [P, H, B, S, D], where P and D are the layer's own
    steps: tuple[BlockStep, ...]
    head: Logits
    longest: int  # slots that the longest row has filled
    length: Int[Tensor, "B"] | None  # slots that each row has filled; None when all have filled `longest`


class XLBlock(nn.Module):
    """A mixer and a two-layer network, each added to what came in, with the norm after the sum or before the part."""

    def __init__(self, config: TransformerXLConfig, layer: int):
        super().__init__()
        self.config = config
        kind, span = config.mixer(layer)
        self.mixer: Mixer
        if kind.endswith("conv"):
            self.mixer = Convolution(config, span, dynamic=kind == "dynamicconv")
        else:
            self.mixer = RelativeAttention(config, span if kind == "local" else None)
        self.norms = nn.ModuleList([nn.LayerNorm(config.width, config.eps) for _ in range(2)])
        self.widen = nn.Linear(config.width, config.feedforward)
        self.narrow = nn.Linear(config.feedforward, config.width)

    def known(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "P H B T D"]:
        """What others need of each position."""
        return self.mixer.known(self.norms[0](x) if self.config.norm == "pre" else x)

    def forward(self, x: Float[Tensor, "B T W"], known: Tensor, biases: Tensor, sight: Sight) -> Float[Tensor, "B T W"]:
        """The block's output at the last of the known positions."""
        pre = self.config.norm == "pre"
        seen = dropped(self.mixer.forward(self.norms[0](x) if pre else x, known, biases, sight), self.config, sight)
        return self._widened(x + seen if pre else self.norms[0](x + seen), sight)

    def step(self, slots: int, steps: int, biases: Tensor, places: Places) -> BlockStep:
        """The same for one position at a time, by the weights as they are now."""
        first, second = self.norms
        assert isinstance(first, nn.LayerNorm) and isinstance(second, nn.LayerNorm)
        widen, narrow = ((part.bias, laid_out(part.weight, steps).T) for part in (self.widen, self.narrow))
        mixer = self.mixer.step(slots, steps, biases, places)
        act = ACTIVATIONS[self.config.activation]
        return BlockStep(mixer, (Norm.of(first), Norm.of(second)), widen, narrow, self.config.norm == "pre", act)

    def _widened(self, x: Float[Tensor, "*S W"], sight: Sight) -> Float[Tensor, "*S W"]:
        pre = self.config.norm == "pre"
        inner = ACTIVATIONS[self.config.activation](self.widen(self.norms[1](x) if pre else x))
        out = x + dropped(self.narrow(dropped(inner, self.config, sight)), self.config, sight)
        return out if pre else self.norms[1](out)


class TransformerXLNetwork(Headed):
    """A stack of blocks that reads tokens and an opening symbol, from a memory on."""

    max_positions = None

    def __init__(self, config: TransformerXLConfig, vocab_size: int, blocks: Sequence[nn.Module] | None = None):
        super().__init__()
        self.config, self.vocab_size, self.opening = config, vocab_size, vocab_size
        self.embedding = build_input(config, vocab_size, config.width)
        self.head = build_head(config, vocab_size, config.width, self.embedding if config.tied else None)
        self.blocks = nn.ModuleList(blocks or [XLBlock(config, layer) for layer in range(config.layers)])
        head_width = config.head_width or config.width // config.heads
        biases = torch.empty(config.layers if config.untied else 1, 2, config.heads, head_width)
        self.biases = nn.Parameter(biases) if config.attends else None
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(weight)
            elif ".norms." in name:
                nn.init.normal_(weight, 1.0, INITIAL_STD)
            elif ".projections." in name:
                nn.init.normal_(weight, std=PROJECTION_STD)
            elif name.endswith("kernel"):
                nn.init.xavier_uniform_(weight)
            else:
                nn.init.normal_(weight, std=INITIAL_STD)

    def hidden(self, x: Sequences) -> Float[Tensor, "B T W"]:
        inputs = opened(x, self.opening)[:, :-1]
        if inputs.numel() == 0:
            return self._vectors(inputs)
        return torch.cat([hidden for hidden, _ in self._segments(inputs, learning=self.training)], 1)

    def look(self, reach: int | None, clamp: int | None) -> None:
        """Change how far back positions attend when scoring and drawing, and the largest distance told apart; None keeps it."""
        reach = self.config.reach if reach is None else reach
        self.config = replace(self.config, reach=reach, clamp=self.config.clamp if clamp is None else clamp)
        for part in self.modules():
            if isinstance(part, XLBlock | RelativeAttention | Convolution):
                part.config = self.config

    def surveyed(self, x: Sequences) -> Float[Tensor, "B U W"]:
        """The vectors of the opening symbol and of each token when all of a row is seen from everywhere: an encoder's."""
        inputs = opened(x, self.opening)
        inside = torch.arange(inputs.shape[1], device=inputs.device) <= x.stop[:, None]
        sight = replace(self._sight(self.training), causal=False, inside=None if bool(inside.all()) else inside)
        return self._pass(inputs, None, sight)[0]

    def open(self, rows: int) -> tuple[Tensor, ...]:
        """How many positions were read of each stream, and no input of any layer."""
        inputs = [self._like.new_empty(rows, 0, self.config.width) for _ in self._stack]
        return (torch.zeros(rows, dtype=torch.long, device=self._like.device), *inputs)

    def read(self, inputs: Int[Tensor, "B L"], memory: tuple[Tensor, ...]) -> tuple[Float[Tensor, "B L W"], tuple[Tensor, ...]]:
        if inputs.numel() == 0:
            return self._vectors(inputs), memory
        first, *past = memory
        sight = self._sight(self.training, first=int(first[0]))
        if self.training:
            sight = replace(sight, reach=self.config.memory if self.config.same_length else None)
        hidden, _, kept = self._pass(inputs, past, sight)
        if self.config.sight is None:  # no memory, and nothing that says how much to keep: each segment stands alone
            return hidden, (first, *past)
        return hidden, (first + inputs.shape[1], *kept)

    def begin(self, prompts: Sequences, room: int) -> tuple[Float[Tensor, "B V"], XLState]:
        inputs = opened(prompts, self.opening)
        rows, longest = inputs.shape
        caches: list[Tensor] = []
        hidden, done = [], 0
        for found, known in self._segments(inputs, learning=False):
            if not caches:
                caches = [one.new_empty(*one.shape[:3], longest - 1 + room, one.shape[4]) for one in known]
            for cache, one in zip(caches, known, strict=True):
                cache[..., done : done + found.shape[1], :] = one
            hidden.append(found)
            done += found.shape[1]
        after = torch.cat(hidden, 1)[torch.arange(rows, device=inputs.device), prompts.start]
        state = self._state(caches, longest, room)
        longest, length = uneven(longest, prompts.start + 1)
        return state.head(after), replace(state, longest=longest, length=length)

    @property
    def resumes(self) -> bool:
        """Whether steps may go on from a memory: chunks are counted from the start of a stream, which a state does not know."""
        kinds = {self.config.mixer(layer)[0] for layer in range(self.config.layers)}
        return "local" not in kinds or self.config.sight is None

    def resume(self, inputs: Int[Tensor, "B L"], memory: tuple[Tensor, ...], room: int) -> tuple[Float[Tensor, "B V"], XLState]:
        first, *past = memory
        hidden, _, kept = self._pass(inputs, past, self._sight(False, int(first[0])))
        known = [one.movedim(0, 2) for one in kept]
        filled = max(one.shape[3] for one in known)
        caches = [one.new_zeros(*one.shape[:3], filled - 1 + room, one.shape[4]) for one in known]
        for cache, one in zip(caches, known, strict=True):
            cache[..., filled - one.shape[3] : filled, :] = one  # all end in one slot
        state = self._state(caches, filled, room)
        return state.head(hidden[:, -1]), state

    def _state(self, caches: list[Tensor], filled: int, room: int) -> XLState:
        """The state of rows that have all filled as many slots, with room for so many tokens to come."""
        places, stack = self._sight(learning=False).places, zip(self._stack, self._biases, strict=True)
        steps = [cast(XLBlock, block).step(filled - 1 + room, room, biases, places) for block, biases in stack]
        return XLState(tuple(caches), tuple(steps), self.head.prepared(room), filled, None)

    def advance(self, state: XLState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], XLState]:
        if state.longest == state.caches[0].shape[3]:
            raise ValueError(f"The state is full: it had room for {state.longest} positions, one for each token to come.")
        place = Place(state.longest, state.length)
        with torch.inference_mode():  # views are cheaper to make; the logits, made outside, are an ordinary tensor
            x = self._stepped(token, state, place)
        length = None if state.length is None else state.length + 1
        return state.head(x), XLState(state.caches, state.steps, state.head, state.longest + 1, length)

    def select(self, state: XLState, index: Int[Tensor, "K"]) -> XLState:
        caches = []
        for old in state.caches:
            cache = old.new_empty(*old.shape[:2], len(index), *old.shape[3:])
            cache[..., : state.longest, :] = old[..., : state.longest, :].index_select(2, index)
            caches.append(cache)
        longest, length = uneven(state.longest, None if state.length is None else state.length[index])
        return replace(state, caches=tuple(caches), longest=longest, length=length)

    def _stepped(self, token: Int[Tensor, "B"], state: XLState, place: Place) -> Float[Tensor, "B W"]:
        """The vector after one more token, which is written into the caches."""
        x = self._vectors(token)
        for step, cache in zip(state.steps, state.caches, strict=True):
            x = step(x, cache, place)
        return x

    def _segments(self, inputs: Int[Tensor, "B T"], *, learning: bool) -> list[tuple[Tensor, list[Tensor]]]:
        """Vectors of rows that begin here, and what each layer knows of them; in segments where nothing is learnt from them."""
        length = max(1, inputs.shape[1]) if learning or torch.is_grad_enabled() else LONGEST_PASS
        made, first, past = [], 0, None
        for piece in torch.split(inputs, length, 1):
            hidden, known, past = self._pass(piece, past, self._sight(learning, first))
            made.append((hidden, known))
            first += piece.shape[1]
        return made

    def _pass(
        self, inputs: Int[Tensor, "B T"], past: Sequence[Tensor] | None, sight: Sight
    ) -> tuple[Float[Tensor, "B T W"], list[Tensor], list[Tensor]]:
        """The vectors of new positions, what each layer knows of them, and what it remembers for the next pass."""
        x = dropped(self._vectors(inputs), self.config, sight)
        axis, made, kept = 1 if sight.learning else 3, [], []
        for number, (module, biases) in enumerate(zip(self.blocks, self._biases, strict=True)):
            block = cast(XLBlock, module)
            before = x[:, :0] if past is None else past[number]
            new = block.known(x) if before.dim() == 5 or before.shape[1] == 0 else block.known(torch.cat([before, x], 1))
            known = torch.cat([before.movedim(0, 2), new], 3) if before.dim() == 5 else new
            memory = torch.cat([before, x], 1) if sight.learning else known.movedim(2, 0)
            keeps = block.mixer.keeps(learning=sight.learning)
            kept.append(memory.narrow(axis, *last_of(memory.shape[axis], keeps)).detach())
            made.append(known[..., known.shape[3] - x.shape[1] :, :])
            x = block(x, known, biases, sight)
        return dropped(x, self.config, sight), made, kept

    def _sight(self, learning: bool, first: int = 0) -> Sight:
        """What is seen where sequences are scored and drawn; the sinusoids of a pass are made once for all its layers."""
        config = self.config
        rate, clamp = (config.dropout, None) if learning else (0.0, config.clamp)
        return Sight(table_of_places(config.width, rate, clamp, self._like), learning, first, config.sight)

    @property
    def _stack(self) -> Sequence[nn.Module]:
        """The blocks in the order in which a vector passes through them."""
        return list(self.blocks)

    @property
    def _biases(self) -> tuple[Tensor, ...]:
        """The two biases of each layer's relative score; convolutions have none."""
        if self.biases is None:
            return (self._like.new_empty(0),) * self.config.layers
        return self.biases.expand(self.config.layers, -1, -1, -1).unbind(0)

    def _vectors(self, tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S W"]:
        """The input vectors of tokens, as long as the root of the width on average."""
        vectors = self.embedding(tokens)
        return vectors if self.config.cutoffs else vectors * self.config.width**0.5

    @property
    def _like(self) -> Tensor:
        """An empty tensor of the weights' dtype and device."""
        weight = next(self.blocks.parameters())
        return torch.empty(0, dtype=weight.dtype, device=weight.device)


def table_of_places(width: int, rate: float, clamp: int | None, like: Tensor) -> Places:
    """The sinusoids of distances, upwards or downwards, made and dropped from once for all layers of a pass; a layer that is
    computed anew (`esscher.networks.recompute`) throws the same dice for them at the same moment."""
    tables = dict[tuple[int, int], tuple[Tensor, Tensor]]()

    def places(first: int, last: int) -> Float[Tensor, "R W"]:
        moment = _state_of_chance(like.device) if rate else torch.empty(0)
        if (first, last) not in tables or (rate and torch.equal(moment, tables[first, last][1])):
            step = 1 if first < last else -1
            distance = torch.arange(first, last + step, step, device=like.device)
            vectors = sinusoids(distance if clamp is None else distance.clamp(-clamp, clamp), width, like.dtype)
            tables[first, last] = dropout(vectors, rate), moment
        return tables[first, last][0]

    return places


def _state_of_chance(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


def dropped(x: Float[Tensor, "*S W"], config: TransformerXLConfig, sight: Sight) -> Float[Tensor, "*S W"]:
    """Dropout of vectors while learning; the variational one drops the same of all positions of a row."""
    if not sight.learning or not config.dropout:
        return x
    if not config.variational:
        return dropout(x, config.dropout)
    return locked(x, config.dropout, True)


def last_of(length: int, keeps: int | None) -> tuple[int, int]:
    """Start and size of the last positions, as many as are kept."""
    size = length if keeps is None else min(length, keeps)
    return length - size, size
