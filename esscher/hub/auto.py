"""Networks of esscher as models of `transformers`: config, language model, `generate`. Importing this module registers them.

    model = AutoModelForCausalLM.from_pretrained("runs/first")

The BOS token (`esscher.hub.network_folder`) is the last of the vocabulary, and the padding token, too. It is never predicted,
and columns that hold it or that the attention mask excludes have no effect: each row begins with one BOS token, written or not.
The first token of a text is scored if the BOS token is written before it, as `AutoTokenizer` does. Weights are named as in
folders of esscher. Left out: gradients through cached steps, hidden states and attentions, resizing the vocabulary.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from esscher.bases.causal_lm import IGNORE_INDEX
from esscher.bases.logits import check_length
from esscher.bases.network import NetworkBase, build_network
from esscher.core.manifest import MANIFEST
from esscher.core.space import Sequences, Space
from esscher.hub.folder import CARD, PREFIX, ModelCard, generation_settings
from esscher.hub.network_cache import NetworkCacheLayer, cache_layer_of, unpadded_rows
from esscher.hub.network_folder import bos_id, hf_config_of, hf_model_name, write_model_card
from esscher.networks.network import Network
from esscher.networks.registry import NETWORKS, NetworkConfig, kinds_of


class NetworkLMConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """The config.json of a folder of esscher; all keys follow from `base`, the network's config, and `space`."""

    __no_type_check__: ClassVar[bool] = True  # a config takes more keys than its generated signature
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    base: dict[str, Any] | None = None
    space: dict[str, Any] | None = None
    vocab_size: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    esscher_version: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.base is not None and self.space is not None:
            space, kind = self.make_space(), NETWORKS.kind_of(self.base_config())
            if PREFIX + kind != self.model_type:
                raise ValueError(f"A config of type {self.model_type!r} was given a base of kind {kind!r}. Nothing was made.")
            bos = bos_id(space)
            self.vocab_size, self.eos_token_id = bos + 1, space.eos
            self.bos_token_id = self.pad_token_id = bos
            self.esscher_version = self.esscher_version or version("esscher")
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    def base_config(self) -> NetworkConfig:
        return NETWORKS.from_dict(self._require("base"))

    def make_space(self) -> Space:
        return Space(**self._require("space"))

    def _require(self, key: str) -> Mapping[str, Any]:
        values = getattr(self, key)
        if values is None:
            raise ValueError(f"The config states no {key!r}. No network was made; take the config of a model folder.")
        return values

    @property
    def hidden_size(self) -> int:
        return self.base_config().width

    @property
    def num_hidden_layers(self) -> int:
        return 1 if self.base is None else self.base_config().layers

    @property
    def max_position_embeddings(self) -> int | None:
        return getattr(self.base_config(), "max_positions", None)


class NetworkLM(PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """A network of esscher as a causal language model of `transformers`; each kind has its own class (`hf_classes`)."""

    config: Any
    network: Any
    base_model_prefix = "network"
    accepts_loss_kwargs = True

    def __init__(self, config: NetworkLMConfig, network: Network | None = None):
        super().__init__(config)
        space = config.make_space()
        self.bos, self.loss_type = bos_id(space), "ForCausalLM"
        self.network = build_network(config.base_config(), space.vocab_size) if network is None else network
        for weight in self.network.parameters():
            weight._is_hf_initialized = not weight.is_meta
        self._made_on_meta = any(weight.is_meta for weight in self.network.parameters())
        generation = generation_settings(space, bos=self.bos, pad=self.bos)
        self.generation_config = GenerationConfig(**generation)  # type: ignore[no-untyped-call]
        self.post_init()  # type: ignore[no-untyped-call]

    @property
    def base(self) -> NetworkBase:
        """The base that shares these weights."""
        return NetworkBase(self.network, self.config.base_config(), self.config.make_space()).train(self.training)

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        num_items_in_batch: int | Tensor | None = None,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits of the token after each column; with `labels`, the mean loss over labels that are tokens."""
        columns = self._columns(input_ids, attention_mask)
        if past_key_values is None and (not self.training if use_cache is None else use_cache):
            past_key_values = DynamicCache()
        layer = None if past_key_values is None else cache_layer_of(past_key_values, self.network, self.bos)
        logits = self._logits(columns, layer, logits_to_keep)
        logits = pad(logits, (0, 1), value=torch.finfo(logits.dtype).min)  # the BOS token is never predicted
        loss = None
        if labels is not None:
            scored = labels.masked_fill(labels == self.bos, IGNORE_INDEX)
            loss = self.loss_function(
                logits=logits, labels=scored, vocab_size=self.config.vocab_size, num_items_in_batch=num_items_in_batch
            )
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)  # type: ignore[arg-type]
        return output.to_tuple() if return_dict is False else output

    def _columns(self, ids: Int[Tensor, "B T"], mask: Tensor | None) -> Int[Tensor, "B T"]:
        """The tokens, with the BOS token where the mask excludes them."""
        if mask is None:
            return ids
        if mask.dim() != 2 or mask.shape[1] < ids.shape[1]:
            raise ValueError(
                f"An attention mask has a row for each sequence and a column for each token; this one is of shape "
                f"{tuple(mask.shape)}. Nothing was computed; give the mask of the tokenizer."
            )
        return torch.where(mask[:, -ids.shape[1] :].bool(), ids, self.bos)

    def _logits(
        self, columns: Int[Tensor, "B T"], layer: NetworkCacheLayer | None, logits_to_keep: int | Tensor
    ) -> Float[Tensor, "B U V"]:
        """Logits of the columns to keep: by a step if only the last one is kept, else by a pass over all columns."""
        width = columns.shape[1]
        chosen = torch.arange(width, device=columns.device)
        chosen = chosen[-logits_to_keep:] if isinstance(logits_to_keep, int) else chosen[logits_to_keep]
        if layer is None:
            return self._pass(columns, chosen)
        if chosen.tolist() == [width - 1] and not torch.is_grad_enabled():
            return layer.read(columns)[:, None]
        all_columns = layer.with_past(columns)
        layer.keep(columns)
        return self._pass(all_columns, chosen + all_columns.shape[1] - width)

    def _pass(self, columns: Int[Tensor, "B T"], chosen: Int[Tensor, "U"]) -> Float[Tensor, "B U V"]:
        prompts, seen = unpadded_rows(columns, self.bos)
        needed = prompts.tokens.shape[1] + 1
        check_length(self.network.max_positions, needed, f"{needed} tokens, the BOS token included")
        after = Sequences(pad(prompts.tokens, (0, 1)), prompts.start, prompts.stop + 1)  # the last token is read too
        hidden = self.network.hidden(after)
        return self.network.output(hidden.gather(1, seen[:, chosen, None].expand(-1, -1, hidden.shape[2])))

    def get_input_embeddings(self) -> nn.Module:
        embedding = getattr(self.network, "embedding", None)
        if embedding is None:
            raise NotImplementedError("This network reads one-hot vectors, so it has no embedding.")
        return embedding

    def get_output_embeddings(self) -> None:
        """None: the output weights are part of the network's head."""

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Refused: the id of the BOS token follows the last token."""
        raise NotImplementedError(
            f"A network of esscher has the {self.bos} tokens of its space, and the BOS token follows them. Nothing was "
            f"changed; train a base on the larger vocabulary."
        )

    def save_pretrained(self, save_directory: str | PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Write a folder that `esscher.hub.load_base` reads, too; an existing model card stays, a manifest does not, because
        `transformers` writes the files of a folder one by one."""
        (Path(save_directory) / MANIFEST).unlink(missing_ok=True)
        super().save_pretrained(save_directory, *args, **kwargs)
        if not (Path(save_directory) / CARD).exists():
            write_model_card(Path(save_directory), self.base, ModelCard("A base model"))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw weights that a folder lacks, and recompute non-persistent buffers, which no folder holds."""
        tensors: dict[str, Tensor] = {
            name: weight
            for name, weight in module.named_parameters(recurse=False)
            if not getattr(weight, "_is_hf_initialized", False)
        }
        with torch.random.fork_rng(devices=[], enabled=not tensors):  # buffers alone consume no randomness
            if self._made_on_meta:
                tensors |= {name: module.get_buffer(name) for name in module._non_persistent_buffers_set}
            if tensors:
                path = next(name for name, part in self.network.named_modules() if part is module)
                fresh = build_network(self.config.base_config(), self.bos).get_submodule(path)
                for name, tensor in tensors.items():
                    initialization.copy_(tensor, getattr(fresh, name).to(tensor.device))


@cache
def hf_classes(kind: str) -> tuple[type[NetworkLMConfig], type[NetworkLM]]:
    """The config class and the model class of a kind of network; `transformers` distinguishes models by class."""
    name = hf_model_name(kind)
    if name is None:
        raise ValueError(f"A network of kind {kind!r} is no causal language model. Nothing was made; load it with `load_base`.")
    attributes = {"__module__": __name__, "__doc__": f"For networks of kind {kind}."}
    config = type(name.replace("ForCausalLM", "Config"), (NetworkLMConfig,), {**attributes, "model_type": PREFIX + kind})
    model = type(name, (NetworkLM,), {**attributes, "config_class": config})
    globals().update({config.__name__: config, model.__name__: model})  # where pickle looks for them
    return config, model


def register_kinds() -> None:
    """Register all kinds of text networks with the Auto classes; call it again for a kind that was added to `NETWORKS`."""
    for kind in kinds_of("text"):
        config, model = hf_classes(kind)
        AutoConfig.register(PREFIX + kind, config, exist_ok=True)
        AutoModelForCausalLM.register(config, model, exist_ok=True)


register_kinds()


def network_lm(base: NetworkBase) -> NetworkLM:
    """The `transformers` model of a base; they share the weights."""
    stated = hf_config_of(base)
    config, model = hf_classes(stated.pop("model_type").removeprefix(PREFIX))
    return model(config(**stated), base.network).train(base.training)
