"""What `generate` keeps of our networks between two tokens: a cache layer of `transformers` around a network's own state.

A row is what was given column by column, with the opening symbol wherever nothing is to be read: padding, and the opening
itself, which stands before every row whether it is written or not. The layer keeps these columns beside the state, so that
the state can always be made anew from them. That is done when it is full, when columns were cut off, and when a row goes on
that was only padded while others went on; everything else is one step of the network.

Like all steps of our networks, it has no gradient.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from esscher.networks.network import Network
from esscher.space import Sequences
from esscher.target import State

LEAST_ROOM = 64  # steps that a new state has room for; later ones have as much as was read


@dataclass(frozen=True)
class _Reading:
    """A network's state, and what it still is good for."""

    state: State
    logits: Float[Tensor, "B V"]  # after what each row has read
    behind: Bool[Tensor, "B"]  # rows that were only padded while others went on: the state has read more than they have
    left: int  # steps it has room for


class NetworkLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """All layers of a network as one; `opening` is its opening symbol."""

    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, network: Network, opening: int):
        super().__init__()  # type: ignore[no-untyped-call]
        self.network, self.opening = network, opening
        self.is_initialized = True
        self.columns: Int[Tensor, "B T"] | None = None
        self.reading: _Reading | None = None

    def reset(self) -> None:
        self.columns = self.reading = None

    def with_past(self, ids: Int[Tensor, "B T"]) -> Int[Tensor, "B U"]:
        """The columns so far and the new ones."""
        return ids if self.columns is None else torch.cat([self.columns, ids], 1)

    def keep(self, ids: Int[Tensor, "B T"]) -> None:
        """Note new columns, for the state to be made when it is needed."""
        self.columns, self.reading = self.with_past(ids), None

    @torch.no_grad()
    def read(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """The logits after the new columns."""
        now, fresh = self.reading, ids[:, -1] != self.opening
        if now is None or ids.shape[1] > 1 or now.left == 0 or bool((fresh & now.behind).any()):
            self.keep(ids)
            return self._begin()
        self.columns = self.with_past(ids)
        logits, state = self.network.advance(now.state, torch.where(fresh, ids[:, 0], 0))
        logits = torch.where(fresh[:, None], logits, now.logits)
        self.reading = _Reading(state, logits, now.behind | ~fresh, now.left - 1)
        return logits

    def _begin(self) -> Float[Tensor, "B V"]:
        """The logits after all columns, and a state that has read them."""
        assert self.columns is not None
        prompts, _ = rows_of(self.columns, self.opening)
        longest, limit = prompts.tokens.shape[1], self.network.max_positions
        check_positions(longest + 1, limit)
        room = max(LEAST_ROOM, longest)
        logits, state = self.network.begin(prompts, room)
        left = room - 1 if limit is None else min(room, limit - longest) - 1
        self.reading = _Reading(state, logits, torch.zeros_like(prompts.start, dtype=torch.bool), left)
        return logits

    def select(self, index: Int[Tensor, "K"]) -> None:
        """Go on with the chosen rows."""
        if self.columns is not None:
            self.columns = self.columns.index_select(0, index)
        if (now := self.reading) is not None:
            state = self.network.select(now.state, index)
            self.reading = _Reading(state, now.logits[index], now.behind[index], now.left)

    def reorder_cache(self, beam_idx: Int[Tensor, "K"]) -> None:
        if self.columns is not None:
            self.select(beam_idx.to(self.columns.device))

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.columns is not None:
            self.select(torch.arange(len(self.columns), device=self.columns.device)[indices])

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.columns is not None:
            self.select(torch.arange(len(self.columns), device=self.columns.device).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last columns; `transformers` counts them with a minus sign."""
        if self.columns is not None and tokens_to_remove:
            self.columns, self.reading = self.columns[:, : -abs(tokens_to_remove)], None

    def get_seq_length(self) -> int:
        return 0 if self.columns is None else self.columns.shape[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise NotImplementedError("A network of esscher keeps no keys and values here.")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("A network of esscher keeps no keys and values here.")

    def offload(self) -> None:
        """The state stays where the network is."""

    def prefetch(self) -> None:
        """The state stays where the network is."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "NetworkLayer":
        """A layer of its own on the same network."""
        other = NetworkLayer(self.network, self.opening)
        other.columns, other.reading = self.columns, self.reading
        if self.columns is not None:
            other.select(torch.arange(len(self.columns), device=self.columns.device))
        return other


def layer_in(cache: Cache, network: Network, opening: int) -> NetworkLayer:
    """The layer of a cache; an empty cache of any kind becomes one of ours."""
    layers: list[Any] = cache.layers
    if len(layers) == 1 and isinstance(layers[0], NetworkLayer) and layers[0].network is network:
        return layers[0]
    if cache.get_seq_length() > 0:
        raise ValueError(
            f"The cache holds {cache.get_seq_length()} positions that another model has read. Nothing was computed; give the "
            f"cache that this model returned, or an empty one."
        )
    layers[:] = [NetworkLayer(network, opening)]
    return layers[0]


def rows_of(columns: Int[Tensor, "B T"], opening: int) -> tuple[Sequences, Int[Tensor, "B T"]]:
    """The tokens to be read, as prompts; and for each column how many of them it has seen, itself included."""
    read = columns != opening
    seen = read.cumsum(1)
    length = read.sum(1)
    width = int(length.max()) if len(length) else 0
    order = (~read).to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
    return Sequences(columns.gather(1, order), length, length), seen


def check_positions(needed: int, limit: int | None) -> None:
    """Refuse a sequence that is longer than what the network can read, the opening symbol included."""
    if limit is not None and needed > limit:
        raise ValueError(
            f"The network has {limit} positions and was given {needed}, the opening symbol included. Nothing was computed; "
            f"shorten the sequences, or train a base with more max_positions."
        )
