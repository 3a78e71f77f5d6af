"""What lets a position see others, interchangeable in one stack: relative attention, the same in chunks, convolutions.

A mixer first makes of every position what others need of it (`known`: keys and values, or the values of a convolution), then
mixes that into new positions. Known positions may have been made earlier, so a stream, a prompt and a step are all the same
to it. A `Sight` says which positions of a pass may see which.

Letters beside those of `esscher.space`: W width, H heads, D width of a head, P parts that are known of a position, M known
positions before a pass, K = M + T, S slots of a cache.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import dropout, pad

from esscher.bases.config import TransformerXLConfig
from esscher.bases.heads import laid_out
from esscher.bases.relative import relative_attention
from esscher.bases.stepping import AttentionStep, MixerStep

Places = Callable[[int, int], Tensor]
"""The sinusoids of distances from the first down to the last, both included: one row each."""


@dataclass(frozen=True)
class Sight:
    """`first` is the number of a pass's first position in its row, `reach` how far back is seen (None: all that is known).

    An encoder's pass is not causal: every position sees those of its row that are `inside`. Dropout acts while `learning`.
    """

    places: Places
    learning: bool
    first: int = 0
    reach: int | None = None
    causal: bool = True
    inside: Bool[Tensor, "B T"] | None = None
    masks: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def window(self, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "1 T K"]:
        """True where a key, the last of which is the last query, is out of a query's sight; kept for other layers."""
        size = (queries, keys)
        if size not in self.masks:
            distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
            hidden = distance < 0
            self.masks[size] = (hidden if self.reach is None else hidden | (distance > self.reach))[None]
        return self.masks[size]


class Mixer(Protocol):
    """What a block asks of its mixer; all are `nn.Module`s."""

    def keeps(self, *, learning: bool) -> int | None:
        """How many positions before a pass it can make use of; None is all."""
        ...

    def known(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "P H B T D"]:
        """What others need of each position."""
        ...

    def forward(
        self, x: Float[Tensor, "B T W"], known: Float[Tensor, "P H B K D"], biases: Float[Tensor, "2 H D"], sight: Sight
    ) -> Float[Tensor, "B T W"]:
        """What each of the last positions sees of the known ones."""
        ...

    def step(self, slots: int, steps: int, biases: Float[Tensor, "2 H D"], places: Places) -> MixerStep:
        """The same for one position at a time, by the weights as they are now; for so many slots at most, and steps to come."""
        ...


class RelativeAttention(nn.Module):
    """Attention to everything within reach; or, with a `chunk`, to the chunk of a position and the one before it
    (in an encoder the one after it too), which grows linearly with the length."""

    def __init__(self, config: TransformerXLConfig, chunk: int | None = None):
        super().__init__()
        self.config, self.chunk, self.heads = config, chunk, config.heads
        inner = config.heads * (config.head_width or config.width // config.heads)
        self.ask = nn.Linear(config.width, inner, bias=False)
        self.remember = nn.Linear(config.width, 2 * inner, bias=False)
        self.place = nn.Linear(config.width, inner, bias=False)
        self.mix = nn.Linear(inner, config.width, bias=False)

    def keeps(self, *, learning: bool) -> int | None:
        if self.chunk is not None:
            return 2 * self.chunk - 1
        return self.config.memory if learning else self.config.sight

    def known(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "2 H B T D"]:
        return self.remember(x).unflatten(-1, (2, self.heads, -1)).permute(2, 3, 0, 1, 4)

    def forward(
        self, x: Float[Tensor, "B T W"], known: Float[Tensor, "2 H B K D"], biases: Float[Tensor, "2 H D"], sight: Sight
    ) -> Float[Tensor, "B T W"]:
        query = self.ask(x).unflatten(-1, (self.heads, -1)).permute(2, 0, 1, 3)
        seen = self._all(query, known, biases, sight) if self.chunk is None else self._near(query, known, biases, sight)
        return self.mix(seen.permute(1, 2, 0, 3).flatten(2))

    def _all(self, query: Tensor, known: Tensor, biases: Tensor, sight: Sight) -> Float[Tensor, "H B T D"]:
        queries, keys = query.shape[2], known.shape[3]
        mask = sight.window(queries, keys, query.device) if sight.causal else None
        if sight.inside is not None:
            mask = ~sight.inside[:, None].expand(-1, queries, -1)
        places = self._places(sight, keys - 1, 0 if sight.causal else 1 - queries)
        return self._attend(query, known, places, biases, mask, sight)

    def _near(self, query: Tensor, known: Tensor, biases: Tensor, sight: Sight) -> Float[Tensor, "H B T D"]:
        """Rows are laid out by chunks of their own positions, with dummies before the first and after the last one."""
        chunk, (heads, rows, queries, width), past = self.chunk or 1, query.shape, known.shape[3] - query.shape[2]
        lead = sight.first % chunk
        tail = -(lead + queries) % chunk
        chunks, after = (lead + queries + tail) // chunk, 0 if sight.causal else chunk
        query = pad(query, (0, 0, lead, tail)).view(heads, rows * chunks, chunk, width)
        known = pad(known, (0, 0, chunk + lead - past, tail + after))  # a negative number cuts
        pieces = known.view(2, heads, rows, -1, chunk, width)
        near = torch.cat([pieces[:, :, :, one : one + chunks] for one in range(2 if sight.causal else 3)], 4).flatten(2, 3)
        mask = self._near_mask(sight, rows, queries, past, query.device)
        places = self._places(sight, 2 * chunk - 1, 0 if sight.causal else 1 - 2 * chunk)
        seen = self._attend(query, near, places, biases, mask, sight)
        return seen.view(heads, rows, -1, width)[:, :, lead : lead + queries]

    def _near_mask(self, sight: Sight, rows: int, queries: int, past: int, device: torch.device) -> Bool[Tensor, "X C J"]:
        """Hidden are positions that are not there, and later ones where the pass is causal; a dummy query sees all."""
        chunk = self.chunk or 1
        lead = sight.first % chunk
        tail, after = -(lead + queries) % chunk, 0 if sight.causal else chunk
        there = torch.ones(1, past + queries, dtype=torch.bool, device=device) if sight.inside is None else sight.inside
        there = pad(there, (chunk + lead - past, tail + after))
        hidden = ~there.unfold(1, 2 * chunk + after, chunk)[:, :, None].expand(-1, -1, chunk, -1)
        if sight.causal:
            distance = torch.arange(chunk, 2 * chunk, device=device)[:, None] - torch.arange(2 * chunk, device=device)
            hidden = hidden | (distance < 0)
        return (hidden & ~hidden.all(-1, keepdim=True)).flatten(0, 1)

    def _places(self, sight: Sight, most: int, least: int) -> Float[Tensor, "H R D"]:
        return self.place(sight.places(most, least)).unflatten(-1, (self.heads, -1)).transpose(0, 1)

    def _attend(
        self, query: Tensor, known: Tensor, places: Tensor, biases: Tensor, mask: Tensor | None, sight: Sight
    ) -> Float[Tensor, "H N T D"]:
        (key, value), keep = known, None
        if sight.learning and self.config.attention_dropout:
            keep = dropout(query.new_ones(*query.shape[:3], key.shape[2]), self.config.attention_dropout)
        return relative_attention(query, key, value, places, biases, mask, keep)

    def step(self, slots: int, steps: int, biases: Float[Tensor, "2 H D"], places: Places) -> AttentionStep:
        most = slots if self.chunk is None else min(slots, 2 * self.chunk)
        if self.chunk is None and self.config.sight is not None:
            most = min(slots, self.config.sight + 1)
        by_distance = self.place(places(most - 1, 0)).unflatten(-1, (self.heads, -1)).permute(1, 2, 0).contiguous()
        (content, place), scale = biases, biases.shape[-1] ** -0.5
        bias = pad(content.flatten() * scale, (0, len(self.remember.weight)))
        weight = laid_out(torch.cat([self.ask.weight * scale, self.remember.weight]), steps).T
        place_bias = (place - content)[:, None] * scale @ by_distance
        return AttentionStep((bias, weight), laid_out(self.mix.weight, steps).T, by_distance, place_bias, self.chunk)
