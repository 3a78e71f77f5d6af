"""Our own networks as models of `transformers`: config, language model, `generate`.

    import esscher.hub.auto  # makes them known to the Auto classes
    model = AutoModelForCausalLM.from_pretrained(folder)

A network of ours reads an opening symbol before the first token (`esscher.hub.opening`). Here it has a number of its own, the
last of the vocabulary, and is begin symbol and padding symbol in one. It is never read as a token and never said: each row
begins with one opening, whether it is written or not, and columns that hold it, or that the attention mask leaves out, on
the left or on the right, change nothing. The logits of a column are those after the opening and all tokens up to it. So the
first token of a text is scored when the opening is written before it, as our tokenizers do under `AutoTokenizer`.

Weights have the names they have in our own folders, and computation is that of the base. What it leaves out: gradients
through cached steps, hidden states and attentions as outputs, and other vocabularies than the one it was made with.
"""

from collections.abc import Mapping
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel, initialization
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from esscher.bases.config import BaseConfig, from_dict, name
from esscher.bases.network import NetworkBase, build_network
from esscher.hub.card import Card
from esscher.hub.folder import CARD, PREFIX, plain_sampling
from esscher.hub.network_cache import NetworkLayer, check_positions, layer_in, rows_of
from esscher.hub.networks import CLASSES, config_of, write_card
from esscher.hub.opening import opening_symbol
from esscher.networks.network import Network
from esscher.networks.transformer import TransformerNetwork, turns
from esscher.space import Sequences, Space

IGNORED = -100  # the label of what is not scored


class NetworkLMConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """The config.json of a folder of ours; `base` and `space` say it all, the other keys follow from them."""

    __no_type_check__: ClassVar[bool] = True  # a config takes more keys than the signature that is made for it says
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
            settings, space = self.settings(), self.points()
            if PREFIX + name(settings) != self.model_type:
                raise ValueError(f"A config of type {self.model_type!r} was given a base of kind {name(settings)!r}.")
            opening = opening_symbol(space)
            self.vocab_size, self.eos_token_id = opening + 1, space.eos
            self.bos_token_id = self.pad_token_id = opening
            self.esscher_version = self.esscher_version or version("esscher")
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    def settings(self) -> BaseConfig:
        """The settings of the network."""
        return from_dict(self._stated("base"))

    def points(self) -> Space:
        """The space whose points the network speaks about."""
        return Space(**self._stated("space"))

    def _stated(self, key: str) -> Mapping[str, Any]:
        values = getattr(self, key)
        if values is None:
            raise ValueError(f"The config states no {key!r}, so there is no network to make; take the config of a folder.")
        return values

    @property
    def hidden_size(self) -> int:
        return self.settings().width

    @property
    def num_hidden_layers(self) -> int:
        return 1 if self.base is None else self.settings().layers

    @property
    def max_position_embeddings(self) -> int | None:
        return getattr(self.settings(), "max_positions", None)


class NetworkLM(PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """A network that tells the next token, for `transformers`; its kinds (`MODELS`) are made known to the Auto classes."""

    config: Any
    network: Any
    base_model_prefix = "network"
    accepts_loss_kwargs = True

    def __init__(self, config: NetworkLMConfig, network: Network | None = None):
        super().__init__(config)
        space = config.points()
        self.opening, self.loss_type = opening_symbol(space), "ForCausalLM"
        self.network = build_network(config.settings(), space.vocab_size) if network is None else network
        for weight in self.network.parameters():
            weight._is_hf_initialized = not weight.is_meta
        self.generation_config = generation(plain_sampling(space, begin=self.opening, pad=self.opening))
        self.post_init()  # type: ignore[no-untyped-call]

    @property
    def base(self) -> NetworkBase:
        """The base with these very weights."""
        return NetworkBase(self.network, self.config.settings(), self.config.points()).train(self.training)

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
        """Logits of the token after each column; with `labels`, the mean loss of those that are tokens."""
        columns = self._columns(input_ids, attention_mask)
        if past_key_values is None and (not self.training if use_cache is None else use_cache):
            past_key_values = DynamicCache()
        layer = None if past_key_values is None else layer_in(past_key_values, self.network, self.opening)
        logits = self._with_opening(self._logits(columns, layer, logits_to_keep))
        loss = None
        if labels is not None:
            scored = labels.masked_fill(labels == self.opening, IGNORED)
            loss = self.loss_function(
                logits=logits, labels=scored, vocab_size=self.config.vocab_size, num_items_in_batch=num_items_in_batch
            )
        found = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)  # type: ignore[arg-type]
        return found.to_tuple() if return_dict is False else found

    def _columns(self, ids: Int[Tensor, "B T"], mask: Tensor | None) -> Int[Tensor, "B T"]:
        """The tokens that are to be read, and the opening symbol elsewhere."""
        if mask is None:
            return ids
        if mask.dim() != 2 or mask.shape[1] < ids.shape[1]:
            raise ValueError(
                f"An attention mask has a row for each sequence and a column for each token; this one is of shape "
                f"{tuple(mask.shape)}. Nothing was computed; give the mask of the tokenizer."
            )
        return torch.where(mask[:, -ids.shape[1] :].bool(), ids, self.opening)

    def _logits(
        self, columns: Int[Tensor, "B T"], layer: NetworkLayer | None, logits_to_keep: int | Tensor
    ) -> Float[Tensor, "B U V"]:
        """Logits of the columns to keep: by a step if that is only the last one, else by a pass over all."""
        width = columns.shape[1]
        chosen = torch.arange(width, device=columns.device)
        chosen = chosen[-logits_to_keep:] if isinstance(logits_to_keep, int) else chosen[logits_to_keep]
        if layer is None:
            return self._pass(columns, chosen)
        if chosen.tolist() == [width - 1] and not torch.is_grad_enabled():
            return layer.read(columns)[:, None]
        whole = layer.with_past(columns)
        layer.keep(columns)
        return self._pass(whole, chosen + whole.shape[1] - width)

    def _pass(self, columns: Int[Tensor, "B T"], chosen: Int[Tensor, "U"]) -> Float[Tensor, "B U V"]:
        prompts, seen = rows_of(columns, self.opening)
        check_positions(prompts.tokens.shape[1] + 1, self.network.max_positions)
        after = Sequences(pad(prompts.tokens, (0, 1)), prompts.start, prompts.stop + 1)  # the last token is read too
        hidden = self.network.hidden(after)
        return self.network.output(hidden.gather(1, seen[:, chosen, None].expand(-1, -1, hidden.shape[2])))

    def _with_opening(self, logits: Float[Tensor, "B U V"]) -> Float[Tensor, "B U W"]:
        """The lowest number for the opening symbol, which is never said."""
        return pad(logits, (0, 1), value=torch.finfo(logits.dtype).min)

    def get_input_embeddings(self) -> nn.Module:
        embedding = getattr(self.network, "embedding", None)
        if embedding is None:
            raise NotImplementedError("This network reads one-hot vectors: it has no embedding.")
        return embedding

    def get_output_embeddings(self) -> None:
        """None: the network makes its logits itself."""

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Refused: the opening symbol is the number after the last token."""
        raise NotImplementedError(
            f"A network of esscher speaks the {self.opening} tokens of its space, and its opening symbol follows them. Nothing "
            f"was changed; train a base on the larger vocabulary."
        )

    def save_pretrained(self, save_directory: str | PathLike[str], *args: Any, **kwargs: Any) -> None:
        """A folder that `esscher.hub.load_base` reads too; a model card that is there stays."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if not (Path(save_directory) / CARD).exists():
            write_card(Path(save_directory), self.base, Card("A base model"))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """What a folder lacks is drawn anew; the angles of positions, which no folder holds, are computed again."""
        if isinstance(module, TransformerNetwork) and module.config.positions == "rotary":
            for key, values in turns(module.config)._asdict().items():
                initialization.copy_(getattr(module, key), values)
        own = dict(module.named_parameters(recurse=False))
        if any(not getattr(weight, "_is_hf_initialized", False) for weight in own.values()):
            place = next(name for name, part in self.network.named_modules() if part is module)
            fresh = build_network(self.config.settings(), self.opening).get_submodule(place)
            for key, weight in own.items():
                initialization.copy_(weight, fresh.get_parameter(key).to(weight.device))


def _classes(kind: str, name: str) -> tuple[type[NetworkLMConfig], type[NetworkLM]]:
    """The config and the model of a kind of network, which `transformers` tells apart by their classes."""
    names = {"__module__": __name__, "__doc__": f"Of a network of kind {kind}."}
    config = type(name.replace("ForCausalLM", "Config"), (NetworkLMConfig,), {**names, "model_type": PREFIX + kind})
    return config, type(name, (NetworkLM,), {**names, "config_class": config})


MODELS = {PREFIX + kind: _classes(kind, name) for kind, name in CLASSES.items()}
globals().update({one.__name__: one for pair in MODELS.values() for one in pair})  # where pickle looks for them


def network_lm(base: NetworkBase) -> NetworkLM:
    """The model with the weights of a base, which they then share."""
    stated = config_of(base)
    config, model = MODELS[stated.pop("model_type")]
    return model(config(**stated), base.network).train(base.training)


def generation(settings: Mapping[str, Any]) -> GenerationConfig:
    """Generation settings, as `transformers` keeps them."""
    return GenerationConfig(**settings)  # type: ignore[no-untyped-call]
