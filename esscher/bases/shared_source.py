"""A cache in two parts for encoder-decoder models of `transformers`: the sources, read once, and the targets, row by row.

After the first step the cross-attention's keys and values are frozen; rows only note which source is theirs, so that sharing
a source among draws, resampling and dropping rows copy none of it. A step attends to a source with the queries of all its
rows at once. What rows add to their targets is written in place, into memory allocated once.

It plugs into the places that `esscher.bases.shared_prompt` does: cache layers, and an attention function under the name
`NAME`, in force during a step only. `step` refuses, with `NotSharedError`, a model whose attention to the source does anything
this one does not know.

Letters beside those of `esscher.space`: H heads of keys, D width of a head, S places of a source.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, EncoderDecoderCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_outputs import BaseModelOutput

from esscher.bases.shared_prompt import NotSharedError, in_force, rows_of, unknown_in
from esscher.networks.owners import Owners

NAME = "esscher_shared_source"


@dataclass
class Reading:
    """Which source each row reads, where sources have tokens (None: everywhere), and how often attention came to read."""

    owners: Owners
    inside: Bool[Tensor, "P 1 1 S"] | None
    times: int = 0

    def select(self, index: Int[Tensor, "K"]) -> tuple["Reading", Int[Tensor, "Q"] | None]:
        """The reading of the chosen rows; and, when a source has no row left, which sources have."""
        owners, used = self.owners.select(index)
        inside = self.inside if used is None or self.inside is None else self.inside[used]
        return Reading(owners, inside), used


class SourceLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of the sources in one layer, never written to; its `keys` know the reading, for `attend` to find."""

    is_sliding = False

    def __init__(self, keys: Float[Tensor, "P H S D"], values: Float[Tensor, "P H S E"], reading: Reading):
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self.is_initialized = keys.detach(), values, True  # the same memory under a name of its own
        self.keys.esscher_reading = reading  # type: ignore[attr-defined]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise NotSharedError("it reads its source anew at every step")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise NotSharedError("it reads its source anew at every step")

    def get_seq_length(self) -> int:
        assert self.keys is not None
        return self.keys.shape[2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length(), 0

    def get_max_length(self) -> int:
        return -1

    def select(self, reading: Reading, used: Int[Tensor, "Q"] | None) -> "SourceLayer":
        """The same for other rows; of the sources only the `used`, or all without a copy."""
        assert self.keys is not None and self.values is not None
        if used is None:
            return SourceLayer(self.keys, self.values, reading)
        return SourceLayer(self.keys.index_select(0, used), self.values.index_select(0, used), reading)


class TargetLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of the targets in one layer, with room for those to come."""

    is_sliding = False

    def __init__(self, keys: Float[Tensor, "B H R D"], values: Float[Tensor, "B H R E"], filled: int):
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self.filled, self.is_initialized = keys, values, filled, True

    @classmethod
    def begun(cls, keys: Tensor, values: Tensor, room: int) -> "TargetLayer":
        """The layer after its first step, with room for so many positions in all."""
        rows, filled = torch.arange(len(keys), device=keys.device), keys.shape[2]
        return cls(rows_of(keys, rows, filled, room), rows_of(values, rows, filled, room), filled)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the next position of each row, and return all so far."""
        assert self.keys is not None and self.values is not None
        before, self.filled = self.filled, self.filled + key_states.shape[2]
        self.keys[:, :, before : self.filled] = key_states
        self.values[:, :, before : self.filled] = value_states
        return self.keys[:, :, : self.filled], self.values[:, :, : self.filled]

    def get_seq_length(self) -> int:
        return self.filled

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.filled + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def select(self, index: Int[Tensor, "K"]) -> "TargetLayer":
        """The chosen rows in memory of their own."""
        assert self.keys is not None and self.values is not None
        keys, values = (rows_of(part, index, self.filled, part.shape[2]) for part in (self.keys, self.values))
        return TargetLayer(keys, values, self.filled)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one position under the signature of `transformers`: to a shared source, or as ever to the target."""
    reading = getattr(key, "esscher_reading", None)
    if reading is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, position_bias=position_bias, **kwargs
        )
    unknown = unknown_in(kwargs)
    if unknown or attention_mask is not None or query.shape[2] != 1:
        raise NotSharedError(f"its attention to the source is given {unknown or 'a mask, or several positions'}")
    reading.times += 1
    allowed = reading.inside
    if position_bias is not None:
        allowed = position_bias if allowed is None else position_bias.masked_fill(~allowed, -torch.inf)
    arranged = reading.owners.arrange(query[:, :, 0]).transpose(1, 2)  # [P, H, N, D]
    grouped = arranged.shape[1] != key.shape[1]
    seen = scaled_dot_product_attention(arranged, key, value, attn_mask=allowed, scale=scaling, enable_gqa=grouped)
    return reading.owners.restore(seen.transpose(1, 2))[:, None], None


def share(cache: Any, mask: Int[Tensor, "P S"], room: int) -> Any:
    """The cache of sources and their first step, with room for so many positions of the targets."""
    own, read = cache.self_attention_cache.layers, cache.cross_attention_cache.layers
    if not all(type(layer) is DynamicLayer and layer.get_seq_length() > 0 for layer in [*own, *read]):
        raise NotSharedError("it keeps a memory of another kind")
    owners = Owners(torch.arange(len(mask), device=mask.device), len(mask))
    inside = None if bool(mask.all()) else mask.bool()[:, None, None]
    reading = Reading(owners, inside)
    return EncoderDecoderCache(
        Cache(layers=[TargetLayer.begun(layer.keys, layer.values, room) for layer in own]),
        Cache(layers=[SourceLayer(layer.keys, layer.values, reading) for layer in read]),
    )


def select(cache: Any, index: Int[Tensor, "K"]) -> Any:
    """The chosen rows of a shared cache: their targets in memory of their own, their sources shared."""
    reading, used = _reading(cache).select(index)
    return EncoderDecoderCache(
        Cache(layers=[layer.select(index) for layer in cache.self_attention_cache.layers]),
        Cache(layers=[layer.select(reading, used) for layer in cache.cross_attention_cache.layers]),
    )


def step(model: Any, cache: Any, token: Int[Tensor, "B"]) -> Any:
    """One step of a model on a shared cache."""
    reading, layers = _reading(cache), cache.cross_attention_cache.layers
    before, size = reading.times, (1, layers[0].get_seq_length(), model.get_encoder().config.hidden_size)
    # what is known of the sources is in the cache: of the encoder's output only the size counts
    source: Any = torch.full((1, 1, 1), torch.nan, dtype=model.dtype, device=token.device).expand(size)
    with in_force(model.get_decoder().config, NAME):
        output = model(
            encoder_outputs=BaseModelOutput(last_hidden_state=source),
            decoder_input_ids=token[:, None],
            past_key_values=cache,
            use_cache=True,
        )
    if reading.times - before != len(layers):
        raise NotSharedError(f"{len(layers)} layers read the source {reading.times - before} times")
    return output


def can_share(model: Any, cache: Any, mask: Int[Tensor, "P S"], token: Int[Tensor, "P"]) -> bool:
    """Whether the model attends through the public interface with nothing of its own; found by one step of a copy."""
    if model.get_decoder().config._attn_implementation != "sdpa":
        return False
    try:
        output = step(model, share(cache, mask, 2), token)
    except NotSharedError:
        return False
    return bool(output.logits.isfinite().all())


def _reading(cache: Any) -> Reading:
    found: Reading = cache.cross_attention_cache.layers[0].keys.esscher_reading
    return found


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
