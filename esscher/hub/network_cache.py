"""The cache of networks of esscher in `generate`: one cache layer of `transformers` around the network's own state.

Rows are kept column by column, with the BOS token in columns that are not read (padding, BOS). The state is computed again from
them when it is full, after cropping, and when a row continues that was padded while others advanced. Steps have no gradient.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from esscher.bases.logits import check_length
from esscher.core.space import Sequences
from esscher.core.target import State
from esscher.networks.network import Network

MIN_STEPS = 64  # steps of a new state, or as many as the tokens read if these are more


@dataclass(frozen=True)
class _CachedState:
    """A network's state, and the rows and steps for which it is valid."""

    state: State
    logits: Float[Tensor, "B V"]  # after the tokens that each row has read
    stale: Bool[Tensor, "B"]  # rows that were padded while others advanced: the state has read more than their tokens
    steps_left: int


class NetworkCacheLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """The state of a whole network as one cache layer."""

    supports_early_init = False

    def __init__(self, network: Network, bos: int):
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_initialized = True
        self.network, self.bos = network, bos
        self.columns: Int[Tensor, "B T"] | None = None
        self.cached_state: _CachedState | None = None

    def reset(self) -> None:
        self.columns = self.cached_state = None

    def with_past(self, ids: Int[Tensor, "B T"]) -> Int[Tensor, "B U"]:
        return ids if self.columns is None else torch.cat([self.columns, ids], 1)

    def keep(self, ids: Int[Tensor, "B T"]) -> None:
        """Append columns; the state is computed when it is needed."""
        self.columns, self.cached_state = self.with_past(ids), None

    @torch.no_grad()
    def read(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """The logits after the new columns."""
        cached, is_token = self.cached_state, ids[:, -1] != self.bos
        if cached is None or ids.shape[1] > 1 or cached.steps_left == 0 or bool((is_token & cached.stale).any()):
            self.keep(ids)
            return self._begin()
        self.columns = self.with_past(ids)
        logits, state = self.network.advance(cached.state, torch.where(is_token, ids[:, 0], 0))
        logits = torch.where(is_token[:, None], logits, cached.logits)
        self.cached_state = _CachedState(state, logits, cached.stale | ~is_token, cached.steps_left - 1)
        return logits

    def _begin(self) -> Float[Tensor, "B V"]:
        """The logits after all columns, computed with a new state."""
        assert self.columns is not None
        prompts, _ = unpadded_rows(self.columns, self.bos)
        longest, limit = prompts.tokens.shape[1], self.network.max_positions
        check_length(limit, longest + 1, f"{longest + 1} tokens, the BOS token included")
        max_new_tokens = max(MIN_STEPS, longest)
        logits, state = self.network.begin(prompts, max_new_tokens)
        steps_left = max_new_tokens - 1 if limit is None else min(max_new_tokens, limit - longest) - 1
        self.cached_state = _CachedState(state, logits, torch.zeros_like(prompts.start, dtype=torch.bool), steps_left)
        return logits

    def select(self, index: Int[Tensor, "K"]) -> None:
        if self.columns is not None:
            self.columns = self.columns.index_select(0, index)
        if (cached := self.cached_state) is not None:
            state = self.network.select(cached.state, index)
            self.cached_state = _CachedState(state, cached.logits[index], cached.stale[index], cached.steps_left)

    def reorder_cache(self, beam_idx: Int[Tensor, "K"]) -> None:
        if self.columns is not None:
            self.select(beam_idx.to(self.columns.device))

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.columns is not None:
            self.select(_row_numbers(self.columns)[indices])

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.columns is not None:
            self.select(_row_numbers(self.columns).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last columns; `transformers` gives their number with a minus sign."""
        if self.columns is not None and tokens_to_remove:
            self.columns, self.cached_state = self.columns[:, : -abs(tokens_to_remove)], None

    def get_seq_length(self) -> int:
        return 0 if self.columns is None else self.columns.shape[1]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("A network of esscher keeps no keys and values here.")

    def offload(self) -> None:
        """The state stays where the network is."""

    def prefetch(self) -> None:
        """The state stays where the network is."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "NetworkCacheLayer":
        """A copy of the cache on the same network."""
        other = NetworkCacheLayer(self.network, self.bos)
        other.columns, other.cached_state = self.columns, self.cached_state
        if self.columns is not None:
            other.select(_row_numbers(self.columns))
        return other


def _row_numbers(columns: Int[Tensor, "B T"]) -> Int[Tensor, "B"]:
    return torch.arange(len(columns), device=columns.device)


def cache_layer_of(cache: Cache, network: Network, bos: int) -> NetworkCacheLayer:
    """The layer of a cache; an empty cache of any kind gets a new one."""
    layers: list[Any] = cache.layers
    if len(layers) == 1 and isinstance(layers[0], NetworkCacheLayer) and layers[0].network is network:
        return layers[0]
    if cache.get_seq_length() > 0:
        raise ValueError(
            f"The cache holds {cache.get_seq_length()} positions that another model has read. Nothing was computed; give the "
            f"cache that this model returned, or an empty one."
        )
    layers[:] = [NetworkCacheLayer(network, bos)]
    return layers[0]


def unpadded_rows(columns: Int[Tensor, "B T"], bos: int) -> tuple[Sequences, Int[Tensor, "B T"]]:
    """The tokens of each row as prompts; and for each column the number of tokens up to it, itself included."""
    is_token = columns != bos
    length = is_token.sum(1)
    width = int(length.max()) if len(length) else 0
    order = (~is_token).to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
    return Sequences(columns.gather(1, order), length, length), is_token.cumsum(1)
