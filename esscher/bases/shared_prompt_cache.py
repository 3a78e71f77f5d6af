"""A key-value cache that shares prompts among rows, for Transformers of `transformers`.

After `begin` the keys and values of the prompts are frozen; each row has the index of its prompt, so repeating a prompt,
resampling and dropping rows copy none of it. Rows write their own keys and values in place. It uses two public interfaces of
`transformers`: a cache layer, and an attention function named `ATTENTION_NAME`, active during a step only. Layers with another
kind of cache (a sliding window, a recurrent state) keep it. `step` raises `UnsupportedAttentionError` if attention needs
anything else. Letters: H heads of keys, G queries for each of them, D width of a head, S slots of a prompt.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from esscher.heads.chunked_log_softmax import accumulation_dtype
from esscher.networks.incremental_decoding import RowsByPrompt, fixed_address

ATTENTION_NAME = "esscher_shared_prompt"
MIN_SHARED_TOKENS = 8  # a shorter prompt is copied, which costs less than a second matrix product
MIN_SHARED_TOKENS_ACCELERATOR = 512  # the same on an accelerator, where attention to a copied prompt is one kernel
IGNORED_KWARGS = (
    "position_ids", "use_cache", "cache_position", "is_causal", "return_dict", "output_attentions", "output_hidden_states",
)  # fmt: skip


class UnsupportedAttentionError(Exception):
    """A model's attention that a shared cache cannot replace."""


class SharedPromptLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of one layer: `prompt`, never written to, and `row_kv`. Short prompts are copied into `row_kv`."""

    def __init__(self, prompt: tuple[Tensor, Tensor], rows_by_prompt: RowsByPrompt | None, max_new_tokens: int):
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_initialized = True
        self.prompt, self.rows_by_prompt, self.max_new_tokens = prompt, rows_by_prompt, max_new_tokens
        self.row_kv: tuple[Tensor, Tensor] | None = None  # [B H, max_new_tokens, D] each, allocated by the first step
        self.filled = self.read = 0  # slots of `row_kv` that were written, and that attention has read

    @classmethod
    def after_prompt(
        cls, keys: Tensor, values: Tensor, rows_by_prompt: RowsByPrompt | None, max_new_tokens: int
    ) -> "SharedPromptLayer":
        """The layer after its prompt, which is copied if there is no `rows_by_prompt`."""
        slots = keys.shape[2]
        if rows_by_prompt is not None:
            return cls((keys, values), rows_by_prompt, max_new_tokens)
        layer = cls((keys[:, :, :0], values[:, :, :0]), None, slots + max_new_tokens)
        layer.lazy_initialization(keys, values)
        assert layer.row_kv is not None
        for memory, prompt in zip(layer.row_kv, (keys, values), strict=True):
            memory[:, :slots] = prompt.flatten(0, 1)
        layer.filled = layer.read = slots
        return layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        rows, slots = key_states.shape[0] * key_states.shape[1], self.max_new_tokens
        keys, values = (states.new_empty(rows, slots, states.shape[3]) for states in (key_states, value_states))
        self.row_kv = keys, values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write one position of each row; the returned keys carry a reference to this layer, for `attend`."""
        if key_states.shape[2] != 1:
            raise UnsupportedAttentionError("it reads several tokens in a step")
        if self.row_kv is None:
            self.lazy_initialization(key_states, value_states)
        assert self.row_kv is not None
        for memory, new in zip(self.row_kv, (key_states, value_states), strict=True):
            memory.view(*new.shape[:2], self.max_new_tokens, -1)[:, :, self.filled] = new[:, :, 0]
        self.filled += 1
        key_states.esscher_cache_layer = self  # type: ignore[attr-defined]
        return key_states, value_states

    def get_seq_length(self) -> int:
        return self.prompt[0].shape[2] + self.filled

    def select(
        self, index: Int[Tensor, "K"], rows_by_prompt: RowsByPrompt | None, used: Int[Tensor, "P"] | None
    ) -> "SharedPromptLayer":
        """The chosen rows, copied; of the prompts only those `used`, or all (None) without a copy."""
        keys, values = self.prompt if used is None else (part.index_select(0, used) for part in self.prompt)
        chosen = SharedPromptLayer((keys, values), rows_by_prompt, self.max_new_tokens)
        chosen.filled = chosen.read = self.filled
        if self.row_kv is not None:
            by_row = (part.view(-1, keys.shape[1], *part.shape[1:]) for part in self.row_kv)
            row_keys, row_values = (copy_rows(part, index, self.filled).flatten(0, 1) for part in by_row)
            chosen.row_kv = row_keys, row_values
        return chosen


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one position to prompt and row, with the signature of `transformers`; other layers use SDPA."""
    layer = getattr(key, "esscher_cache_layer", None)
    if layer is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    unsupported = unsupported_kwargs(kwargs)
    if unsupported:
        raise UnsupportedAttentionError(f"its attention takes {unsupported}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer.read = layer.filled
    if layer.rows_by_prompt is None and query.device.type != "cpu":
        keys, values = (part.view(len(query), -1, *part.shape[1:])[:, :, : layer.filled] for part in layer.row_kv)
        grouped_heads = query.shape[1] != keys.shape[1]
        attended = scaled_dot_product_attention(query, keys, values, attention_mask, scale=scale, enable_gqa=grouped_heads)
        return attended.transpose(1, 2), None
    grouped = query.reshape(query.shape[0], key.shape[1], -1, query.shape[-1])
    return _attend_prompt_and_row(grouped, layer, attention_mask, scale).flatten(1, 2)[:, None], None


def unsupported_kwargs(kwargs: dict[str, Any]) -> str:
    """The names of arguments that change attention in a way a shared cache does not support."""
    return ", ".join(name for name, value in kwargs.items() if name not in IGNORED_KWARGS and value is not None)


def _attend_prompt_and_row(
    query: Float[Tensor, "B H G D"], layer: SharedPromptLayer, mask: Tensor | None, scale: float
) -> Float[Tensor, "B H G E"]:
    assert layer.row_kv is not None
    (prompt_keys, prompt_values), rows_by_prompt, slots = layer.prompt, layer.rows_by_prompt, layer.prompt[0].shape[2]
    keys, values = (part[:, : layer.filled] for part in layer.row_kv)
    score = torch.bmm(query.flatten(0, 1), keys.transpose(-1, -2)).view(*query.shape[:3], -1)
    if rows_by_prompt is not None:
        score = torch.cat([_matmul_per_prompt(query, prompt_keys.transpose(-1, -2), rows_by_prompt), score], -1)
    score *= scale
    if mask is not None:
        score = score.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else score + mask
    weights = score.softmax(-1, dtype=accumulation_dtype(score.dtype)).to(score.dtype)
    attended = torch.bmm(weights.flatten(0, 1)[..., slots:], values).view(*query.shape[:3], -1)
    if rows_by_prompt is None:
        return attended
    return attended.add_(_matmul_per_prompt(weights[..., :slots], prompt_values, rows_by_prompt))


def _matmul_per_prompt(
    rows: Float[Tensor, "B H G X"], factor: Float[Tensor, "P H X Y"], rows_by_prompt: RowsByPrompt
) -> Float[Tensor, "B H G Y"]:
    """Each row times the matrix of its prompt, all rows of a prompt in one matrix product."""
    arranged = rows_by_prompt.arrange(rows).transpose(1, 2)  # [P, H, N, G, X]
    product = (arranged.flatten(2, 3) @ factor).view(*arranged.shape[:4], -1)
    return rows_by_prompt.restore(product.transpose(1, 2))


def copy_rows(
    part: Float[Tensor, "B H S D"], index: Int[Tensor, "K"], filled: int, slots: int | None = None
) -> Float[Tensor, "K H R D"]:
    """The chosen rows with `slots` slots (None: as many as before), copied; slots that are not filled stay unwritten."""
    new = part.new_empty(len(index), part.shape[1], part.shape[2] if slots is None else slots, part.shape[3])
    new[:, :, :filled] = part[:, :, :filled].index_select(0, index)
    return new


def share(cache: Cache, rows: int, max_new_tokens: int, device: torch.device) -> Cache:
    """A shared cache from the cache of `rows` prompts; layers of other kinds than `DynamicLayer` stay."""
    layers: list[Any] = list(cache.layers)
    least = MIN_SHARED_TOKENS if device.type == "cpu" else MIN_SHARED_TOKENS_ACCELERATOR
    rows_by_prompt = None
    for number, layer in enumerate(layers):
        if type(layer) is DynamicLayer and layer.keys is not None and layer.values is not None:
            if rows_by_prompt is None and layer.keys.shape[2] >= least:
                rows_by_prompt = RowsByPrompt(torch.arange(rows, device=device), rows)
            layers[number] = SharedPromptLayer.after_prompt(layer.keys, layer.values, rows_by_prompt, max_new_tokens)
    return Cache(layers=layers)


def select(cache: Cache, index: Int[Tensor, "K"]) -> Cache:
    """The chosen rows of a cache of any kind, copied."""
    before = next((layer.rows_by_prompt for layer in cache.layers if isinstance(layer, SharedPromptLayer)), None)
    rows_by_prompt, used = (None, None) if before is None else before.select(index)
    layers: list[Any] = []
    for layer in cache.layers:
        if isinstance(layer, SharedPromptLayer):
            layers.append(layer.select(index, rows_by_prompt, used))
        else:
            layers.append(deepcopy(layer))
            layers[-1].reorder_cache(index)
            if layer.is_compileable:
                fixed_address(layers[-1].keys), fixed_address(layers[-1].values), fixed_address(layers[-1].cumulative_length)
    return Cache(layers=layers)


def step(model: Callable[..., Any], cache: Cache, **inputs: Any) -> Any:
    """One step of a model on a shared cache."""
    with attention_implementation(model.config, ATTENTION_NAME):  # type: ignore[attr-defined]
        output = model(past_key_values=cache, use_cache=True, **inputs)
    for number, layer in enumerate(cache.layers):
        if isinstance(layer, SharedPromptLayer) and layer.read != layer.filled:
            raise UnsupportedAttentionError(f"layer {number} does not attend to the keys that its cache returns")
    return output


def can_share(model: Any, ids: Int[Tensor, "B T"]) -> bool:
    """Whether the model attends through the public interface and nothing else; determined by one step."""
    config = model.config
    if config._attn_implementation != "sdpa" or config.sub_configs or not model.is_backend_compatible():
        return False
    cache = DynamicCache(config=config)
    model(input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache, use_cache=True)
    shared = share(cache, len(ids), 1, ids.device)
    longer = torch.ones(len(ids), ids.shape[1] + 1, dtype=torch.long, device=ids.device)
    try:
        step(model, shared, input_ids=ids[:, -1:], attention_mask=longer)
    except UnsupportedAttentionError:
        return False
    return any(isinstance(layer, SharedPromptLayer) for layer in shared.layers)


@contextmanager
def attention_implementation(config: Any, name: str) -> Iterator[None]:
    """Within it, models with this config use the attention function of this name."""
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


AttentionInterface.register(ATTENTION_NAME, attend)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
