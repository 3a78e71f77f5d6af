"""A cache in two parts for any Transformer of `transformers`: the prompts, read once, and what each row added since.

After `begin` the keys and values of the prompts are frozen; rows only note which prompt is theirs, so that sharing a
prompt among draws, resampling and dropping rows copy none of it. What rows add is written in place, into memory
allocated once. A step attends to both parts with one softmax; all rows of a prompt meet its keys in one product.

It plugs into two public places of `transformers`: a cache layer, and an attention function under the name `NAME`, which
is in force during a step only. A model takes part layer by layer: layers with a memory of another kind (a sliding window,
a recurrent state) keep it. `step` refuses, with `NotSharedError`, a model whose attention does anything this one does not know.

Letters beside those of `esscher.space`: H heads of keys, G queries for each of them, D width of a head, S slots of a prompt.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from esscher.heads.softmax import exact
from esscher.networks.owners import Owners

NAME = "esscher_shared_prompt"
WORTH_SHARING = 8  # slots; two products for so few cost more than a copy
HARMLESS = (
    "position_ids",
    "use_cache",
    "cache_position",
    "is_causal",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
)


class NotSharedError(Exception):
    """A model's attention that these two parts cannot stand in for."""


class SharedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer; `prompt` is never written to. A prompt of few slots is not shared but copied."""

    is_sliding = False

    def __init__(self, prompt: tuple[Tensor, Tensor], owners: Owners, room: int):
        super().__init__()  # type: ignore[no-untyped-call]
        self.prompt, self.owners, self.room = prompt, owners, room
        self.own: tuple[Tensor, Tensor] | None = None  # [B H, room, D] each, allocated by the first step
        self.filled = self.read = 0  # slots of `own` that were written, and that attention has read
        self.is_initialized = True

    @classmethod
    def begun(cls, keys: Tensor, values: Tensor, owners: Owners, room: int) -> "SharedLayer":
        """The layer after its prompts were read, with room for so many steps."""
        slots = keys.shape[2]
        if slots >= WORTH_SHARING:
            return cls((keys, values), owners, room)
        layer = cls((keys[:, :, :0], values[:, :, :0]), owners, slots + room)
        layer.lazy_initialization(keys, values)
        assert layer.own is not None
        for whole, read in zip(layer.own, (keys, values), strict=True):
            whole[:, :slots] = read.flatten(0, 1)
        layer.filled = layer.read = slots
        return layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        keys, values = (x.new_empty(x.shape[0] * x.shape[1], self.room, x.shape[3]) for x in (key_states, value_states))
        self.own = keys, values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write one position of each row; what is returned knows this layer, for `attend` to find."""
        if key_states.shape[2] != 1:
            raise NotSharedError("a step reads one token")
        if self.own is None:
            self.lazy_initialization(key_states, value_states)
        assert self.own is not None
        for whole, new in zip(self.own, (key_states, value_states), strict=True):
            whole.view(*new.shape[:2], self.room, -1)[:, :, self.filled] = new[:, :, 0]
        self.filled += 1
        key_states.esscher_layer = self  # type: ignore[attr-defined]
        return key_states, value_states

    def get_seq_length(self) -> int:
        return self.prompt[0].shape[2] + self.filled

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def select(self, index: Int[Tensor, "K"], owners: Owners, used: Int[Tensor, "P"] | None) -> "SharedLayer":
        """The chosen rows in memory of their own; of the prompts only the `used`, or all without a copy."""
        keys, values = self.prompt if used is None else (part.index_select(0, used) for part in self.prompt)
        chosen = SharedLayer((keys, values), owners, self.room)
        chosen.filled = chosen.read = self.filled
        if self.own is not None:
            of_rows = (part.view(-1, keys.shape[1], *part.shape[1:]) for part in self.own)
            own_keys, own_values = (rows_of(part, index, self.filled, self.room).flatten(0, 1) for part in of_rows)
            chosen.own = own_keys, own_values
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
    """Attention of one position to both parts, under the signature of `transformers`; other layers attend as they did."""
    layer = getattr(key, "esscher_layer", None)
    if layer is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    unknown = unknown_in(kwargs)
    if unknown:
        raise NotSharedError(f"its attention is given {unknown}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer.read = layer.filled
    seen = _attend_both(query.reshape(query.shape[0], key.shape[1], -1, query.shape[-1]), layer, attention_mask, scale)
    return seen.flatten(1, 2)[:, None], None


def unknown_in(settings: dict[str, Any]) -> str:
    """What attention is told that changes it, by name."""
    return ", ".join(name for name, given in settings.items() if name not in HARMLESS and given is not None)


def _attend_both(
    query: Float[Tensor, "B H G D"], layer: SharedLayer, mask: Tensor | None, scale: float
) -> Float[Tensor, "B H G E"]:
    assert layer.own is not None
    (before_keys, before_values), owners, slots = layer.prompt, layer.owners, layer.prompt[0].shape[2]
    keys, values = (part[:, : layer.filled] for part in layer.own)
    score = torch.bmm(query.flatten(0, 1), keys.transpose(-1, -2)).view(*query.shape[:3], -1)
    if slots:
        score = torch.cat([_per_prompt(query, before_keys.transpose(-1, -2), owners), score], -1)
    score *= scale
    if mask is not None:
        score = score.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else score + mask
    share = score.softmax(-1, dtype=exact(score.dtype)).to(score.dtype)
    own = torch.bmm(share.flatten(0, 1)[..., slots:], values).view(*query.shape[:3], -1)
    return own.add_(_per_prompt(share[..., :slots], before_values, owners)) if slots else own


def _per_prompt(rows: Float[Tensor, "B H G X"], factor: Float[Tensor, "P H X Y"], owners: Owners) -> Float[Tensor, "B H G Y"]:
    """Each row times the matrix of its prompt, all rows of a prompt in one product."""
    arranged = owners.arrange(rows).transpose(1, 2)  # [P, H, N, G, X]
    product = (arranged.flatten(2, 3) @ factor).view(*arranged.shape[:4], -1)
    return owners.restore(product.transpose(1, 2))


def rows_of(part: Float[Tensor, "B H S D"], index: Int[Tensor, "K"], filled: int, room: int) -> Float[Tensor, "K H R D"]:
    """The chosen rows with so much room, copied; slots that are not filled stay unwritten."""
    new = part.new_empty(len(index), part.shape[1], room, part.shape[3])
    new[:, :, :filled] = part[:, :, :filled].index_select(0, index)
    return new


def share(cache: Cache, rows: int, room: int, device: torch.device) -> Cache:
    """The cache of `rows` prompts that were read, with room for so many steps; plain layers become shared ones."""
    owners = Owners(torch.arange(rows, device=device), rows)
    layers: list[Any] = list(cache.layers)
    for number, layer in enumerate(layers):
        if type(layer) is DynamicLayer and layer.keys is not None and layer.values is not None:
            layers[number] = SharedLayer.begun(layer.keys, layer.values, owners, room)
    return Cache(layers=layers)


def select(cache: Cache, index: Int[Tensor, "K"]) -> Cache:
    """The chosen rows of a cache of any kind, in memory of their own."""
    shared = [layer for layer in cache.layers if isinstance(layer, SharedLayer)]
    owners, used = shared[0].owners.select(index) if shared else (None, None)
    layers: list[Any] = []
    for layer in cache.layers:
        if isinstance(layer, SharedLayer) and owners is not None:
            layers.append(layer.select(index, owners, used))
        else:
            layers.append(deepcopy(layer))
            layers[-1].reorder_cache(index)
    return Cache(layers=layers)


def step(model: Callable[..., Any], cache: Cache, **inputs: Any) -> Any:
    """One step of a model on a shared cache."""
    with in_force(model.config, NAME):  # type: ignore[attr-defined]
        output = model(past_key_values=cache, use_cache=True, **inputs)
    for number, layer in enumerate(cache.layers):
        if isinstance(layer, SharedLayer) and layer.read != layer.filled:
            raise NotSharedError(f"layer {number} does not attend to what its cache returned")
    return output


def can_share(model: Any, ids: Int[Tensor, "B T"]) -> bool:
    """Whether the model attends through the public interface with nothing of its own; found by one step of it."""
    config = model.config
    if config._attn_implementation != "sdpa" or config.sub_configs or not model.is_backend_compatible():
        return False
    cache = DynamicCache(config=config)
    model(input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache, use_cache=True)
    shared = share(cache, len(ids), 1, ids.device)
    longer = torch.ones(len(ids), ids.shape[1] + 1, dtype=torch.long, device=ids.device)
    try:
        step(model, shared, input_ids=ids[:, -1:], attention_mask=longer)
    except NotSharedError:
        return False
    return any(isinstance(layer, SharedLayer) for layer in shared.layers)


@contextmanager
def in_force(config: Any, name: str) -> Iterator[None]:
    """Within it the attention function of this name serves a model with this config."""
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
