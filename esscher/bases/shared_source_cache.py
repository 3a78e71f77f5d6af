"""A key-value cache that shares encoded sources among rows, for encoder-decoder models of `transformers`, by the method of
`esscher.bases.shared_prompt_cache`. Letters: H heads of keys, D width of a head, S positions of a source."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_outputs import BaseModelOutput

from esscher.bases.shared_prompt_cache import UnsupportedAttentionError, attention_implementation, copy_rows, unsupported_kwargs
from esscher.networks.incremental_decoding import RowsByPrompt

ATTENTION_NAME = "esscher_shared_source"


@dataclass
class SourceIndex:
    """The source of each row, the mask of the sources (None: no padding), and the number of attention calls so far."""

    rows_by_prompt: RowsByPrompt
    inside: Bool[Tensor, "P 1 1 S"] | None
    reads: int = 0

    def select(self, index: Int[Tensor, "K"]) -> tuple["SourceIndex", Int[Tensor, "Q"] | None]:
        """The index of the chosen rows; and the sources that still have rows, None if all have."""
        rows_by_prompt, used = self.rows_by_prompt.select(index)
        inside = self.inside if used is None or self.inside is None else self.inside[used]
        return SourceIndex(rows_by_prompt, inside), used


class SharedSourceLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of the sources in one layer, never written to; the keys carry the source index, for `attend`."""

    def __init__(self, keys: Float[Tensor, "P H S D"], values: Float[Tensor, "P H S E"], source_index: SourceIndex):
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_initialized = True
        self.keys, self.values = keys.detach(), values  # a new tensor object on the same memory, to carry the attribute
        self.keys.esscher_source_index = source_index  # type: ignore[attr-defined]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise UnsupportedAttentionError("it encodes its source again at every step")

    def get_seq_length(self) -> int:
        assert self.keys is not None
        return self.keys.shape[2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length(), 0

    def select(self, source_index: SourceIndex, used: Int[Tensor, "Q"] | None) -> "SharedSourceLayer":
        """The layer for other rows; of the sources only those `used`, or all (None) without a copy."""
        assert self.keys is not None and self.values is not None
        keys, values = (part if used is None else part.index_select(0, used) for part in (self.keys, self.values))
        return SharedSourceLayer(keys, values, source_index)


class TargetCacheLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of the targets in one layer, in memory for all positions."""

    def __init__(self, keys: Float[Tensor, "B H R D"], values: Float[Tensor, "B H R E"], filled: int):
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_initialized = True
        self.keys, self.values, self.filled = keys, values, filled

    @classmethod
    def after_first_step(cls, keys: Tensor, values: Tensor, max_length: int) -> "TargetCacheLayer":
        rows, filled = torch.arange(len(keys), device=keys.device), keys.shape[2]
        return cls(copy_rows(keys, rows, filled, max_length), copy_rows(values, rows, filled, max_length), filled)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the next position of each row, and return all positions so far."""
        assert self.keys is not None and self.values is not None
        before, self.filled = self.filled, self.filled + key_states.shape[2]
        self.keys[:, :, before : self.filled] = key_states
        self.values[:, :, before : self.filled] = value_states
        return self.keys[:, :, : self.filled], self.values[:, :, : self.filled]

    def get_seq_length(self) -> int:
        return self.filled

    def select(self, index: Int[Tensor, "K"]) -> "TargetCacheLayer":
        assert self.keys is not None and self.values is not None
        keys, values = (copy_rows(part, index, self.filled) for part in (self.keys, self.values))
        return TargetCacheLayer(keys, values, self.filled)


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
    """Attention of one position, with the signature of `transformers`: to a shared source, or by SDPA to the target."""
    source_index = getattr(key, "esscher_source_index", None)
    if source_index is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, position_bias=position_bias, **kwargs
        )
    unsupported = unsupported_kwargs(kwargs)
    if unsupported or attention_mask is not None or query.shape[2] != 1:
        raise UnsupportedAttentionError(f"its attention to the source takes {unsupported or 'a mask, or several positions'}")
    source_index.reads += 1
    allowed = source_index.inside
    if position_bias is not None:
        allowed = position_bias if allowed is None else position_bias.masked_fill(~allowed, -torch.inf)
    arranged = source_index.rows_by_prompt.arrange(query[:, :, 0]).transpose(1, 2)  # [P, H, N, D]
    grouped = arranged.shape[1] != key.shape[1]
    attended = scaled_dot_product_attention(arranged, key, value, attn_mask=allowed, scale=scaling, enable_gqa=grouped)
    return source_index.rows_by_prompt.restore(attended.transpose(1, 2))[:, None], None


def share(cache: Any, mask: Int[Tensor, "P S"], max_length: int) -> Any:
    """A shared cache from the cache after the first step, for targets of at most `max_length` tokens."""
    self_layers, cross_layers = cache.self_attention_cache.layers, cache.cross_attention_cache.layers
    if not all(type(layer) is DynamicLayer and layer.get_seq_length() > 0 for layer in [*self_layers, *cross_layers]):
        raise UnsupportedAttentionError("it has a cache of another kind")
    rows_by_prompt = RowsByPrompt(torch.arange(len(mask), device=mask.device), len(mask))
    source_index = SourceIndex(rows_by_prompt, None if bool(mask.all()) else mask.bool()[:, None, None])
    return EncoderDecoderCache(
        Cache(layers=[TargetCacheLayer.after_first_step(layer.keys, layer.values, max_length) for layer in self_layers]),
        Cache(layers=[SharedSourceLayer(layer.keys, layer.values, source_index) for layer in cross_layers]),
    )


def select(cache: Any, index: Int[Tensor, "K"]) -> Any:
    """The chosen rows of a shared cache: targets are copied, sources shared."""
    source_index, used = _source_index(cache).select(index)
    return EncoderDecoderCache(
        Cache(layers=[layer.select(index) for layer in cache.self_attention_cache.layers]),
        Cache(layers=[layer.select(source_index, used) for layer in cache.cross_attention_cache.layers]),
    )


def step(model: Any, cache: Any, token: Int[Tensor, "B"]) -> Any:
    """One step of a model on a shared cache."""
    source_index, layers = _source_index(cache), cache.cross_attention_cache.layers
    before, size = source_index.reads, (1, layers[0].get_seq_length(), model.get_encoder().config.hidden_size)
    # the sources are in the cache: only the shape of the encoder's output matters
    source: Any = torch.full((1, 1, 1), torch.nan, dtype=model.dtype, device=token.device).expand(size)
    with attention_implementation(model.get_decoder().config, ATTENTION_NAME):
        output = model(
            encoder_outputs=BaseModelOutput(last_hidden_state=source),
            decoder_input_ids=token[:, None],
            past_key_values=cache,
            use_cache=True,
        )
    if source_index.reads - before != len(layers):
        raise UnsupportedAttentionError(f"its {len(layers)} layers attend to the source {source_index.reads - before} times")
    return output


def can_share(model: Any, cache: Any, mask: Int[Tensor, "P S"], token: Int[Tensor, "P"]) -> bool:
    """Whether the model attends through the public interface and nothing else; determined by one step on a copy."""
    if model.get_decoder().config._attn_implementation != "sdpa":
        return False
    try:
        output = step(model, share(cache, mask, 2), token)
    except UnsupportedAttentionError:
        return False
    return bool(output.logits.isfinite().all())


def _source_index(cache: Any) -> SourceIndex:
    return cache.cross_attention_cache.layers[0].keys.esscher_source_index


AttentionInterface.register(ATTENTION_NAME, attend)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
