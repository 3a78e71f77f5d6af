"""A base with as many parameters as a base and its energy together, the control for model size (BALM): settings of a new base
(`scaled_to`), or extra blocks in a trained Transformer that at first change nothing. It is not trained here."""

from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from esscher.bases.causal_lm import CausalLM
from esscher.bases.network import NetworkBase, build_base, build_network
from esscher.core.randomness import Rng
from esscher.networks.registry import NetworkConfig
from esscher.networks.transformer import TransformerNetwork
from esscher.networks.transformer_config import TransformerConfig


def parameter_count(config: NetworkConfig, vocab_size: int) -> int:
    """The number of parameters of a network with these settings, counted without allocating them."""
    with torch.device("meta"):
        network = build_network(config, vocab_size)
    return sum(weight.numel() for weight in network.parameters())


def scaled_to(config: NetworkConfig, vocab_size: int, parameters: int) -> NetworkConfig:
    """The settings at the width whose number of parameters is nearest to `parameters`."""

    def count(multiples: int) -> int:
        return parameter_count(wider(multiples), vocab_size)

    def wider(multiples: int) -> NetworkConfig:
        return config.with_width(config.width + multiples * config.width_multiple)

    if parameters < (smallest := count(0)):
        raise ValueError(f"A base of these settings has {smallest:,} parameters already, more than {parameters:,}.")
    low, high = 0, 1
    while count(high) < parameters:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < parameters else (low, middle)
    return wider(min((low, high), key=lambda multiples: abs(count(multiples) - parameters)))


def with_extra_layers(base: NetworkBase, layers: int, *, rng: Rng) -> NetworkBase:
    """A Transformer base with `layers` further blocks; their outputs start at 0, so it is the same distribution."""
    if not isinstance(base.network, TransformerNetwork) or not isinstance(base.config, TransformerConfig):
        raise ValueError(f"A {type(base.network).__name__} takes no extra layers. Nothing was built; use scaled_to.")
    if layers < 1:
        raise ValueError(f"There is at least 1 extra layer, not {layers}. Nothing was built.")
    config = replace(base.config, layers=base.config.layers + layers)
    deeper = build_base(config, base.space, rng=rng)
    network = cast(TransformerNetwork, deeper.network)
    network.load_state_dict(deepcopy(base.network.state_dict()), strict=False)
    for block in list(network.blocks)[base.config.layers :]:
        for name in ("o_proj", "down_proj"):
            nn.init.zeros_(block.get_submodule(name).weight)  # type: ignore[arg-type]
    return deeper.to(next(base.parameters()).device)


def causal_lm_with_extra_layers(base: CausalLM, layers: int) -> CausalLM:
    """A copy of a Llama-like model with `layers` further blocks: copies of the last one whose outputs start at 0."""
    model: Any = deepcopy(base.model)
    blocks = getattr(model.base_model, "layers", None)
    try:
        for _ in range(layers):
            block: Any = deepcopy(blocks[-1])  # type: ignore[index]
            block.self_attn.layer_idx = len(blocks)  # type: ignore[arg-type]
            for last in (block.self_attn.o_proj, block.mlp.down_proj):
                nn.init.zeros_(last.weight)
            blocks.append(block)  # type: ignore[union-attr]
    except (AttributeError, TypeError, IndexError) as error:
        raise ValueError(
            f"{type(base.model).__name__} takes no extra layers: its blocks are not like Llama's. Nothing was built."
        ) from error
    model.config.num_hidden_layers += layers
    return CausalLM(model, base.space, base.bos)
