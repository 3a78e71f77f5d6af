"""One language model with as many parameters as a base and its energy together: the control of mere size (BALM).

`grown` finds settings of that size, for a base that is trained from the start; `deepened` and `deepened_causal_lm` add blocks
to a trained Transformer that change nothing until they learn. Either is trained by maximum likelihood, as any base is.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from esscher.bases.causal_lm import CausalLM
from esscher.bases.config import (
    AttentiveLstmConfig,
    AwdLstmConfig,
    BaseConfig,
    DeqConfig,
    EnasConfig,
    EncoderDecoderConfig,
    GatedPixelCnnConfig,
    PixelCnnConfig,
    PixelCnnPlusPlusConfig,
    RecurrentConfig,
    TransformerConfig,
    TransformerXLConfig,
    TrellisNetConfig,
    XLNetConfig,
)
from esscher.bases.network import NetworkBase, build_base, build_network
from esscher.networks.transformer import TransformerNetwork
from esscher.randomness import Rng

ATTENDS = (TransformerConfig, TransformerXLConfig, DeqConfig, XLNetConfig, EncoderDecoderConfig)
EVEN = (AttentiveLstmConfig, PixelCnnConfig)  # whose width is even


def parameter_count(config: BaseConfig, vocab_size: int) -> int:
    """The parameters of a base with these settings, which is not built."""
    with torch.device("meta"):
        network = build_network(config, vocab_size)
    return sum(weight.numel() for weight in network.parameters())


def grown(config: BaseConfig, vocab_size: int, parameters: int) -> BaseConfig:
    """The settings, wider and otherwise alike, whose number of parameters is nearest to `parameters`."""
    smallest = parameter_count(config, vocab_size)
    if parameters < smallest:
        raise ValueError(f"A base of these settings has {smallest:,} parameters already, more than {parameters:,}.")
    step = 2 * config.heads if isinstance(config, ATTENDS) else 2 if isinstance(config, EVEN) else 1
    low, high = 0, 1
    while parameter_count(_wider(config, high * step), vocab_size) < parameters:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parameter_count(_wider(config, middle * step), vocab_size) < parameters else (low, middle)
    both = [_wider(config, more * step) for more in (low, high)]
    return min(both, key=lambda one: abs(parameter_count(one, vocab_size) - parameters))


def deepened(base: NetworkBase, layers: int, *, rng: Rng) -> NetworkBase:
    """A Transformer base with so many more blocks after its own; they add 0 at first, so it is the same distribution."""
    if not isinstance(base.network, TransformerNetwork) or not isinstance(base.config, TransformerConfig):
        raise ValueError(f"Only a Transformer is deepened, not a {type(base.network).__name__}. Nothing was built; use grown.")
    if layers < 1:
        raise ValueError(f"A base is deepened by at least 1 layer, not {layers}.")
    config = replace(base.config, layers=base.config.layers + layers)
    deeper = build_base(config, base.space, rng=rng)
    network = cast(TransformerNetwork, deeper.network)
    network.load_state_dict(deepcopy(base.network.state_dict()), strict=False)
    for block in list(network.blocks)[base.config.layers :]:
        for name in ("mix", "narrow"):
            nn.init.zeros_(block.get_submodule(name).weight)  # type: ignore[arg-type]
    return deeper.to(next(base.parameters()).device)


def deepened_causal_lm(base: CausalLM, layers: int) -> CausalLM:
    """A copy of a model of the Llama kind with so many more blocks after its own, copies of its last that add 0 at first."""
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
            f"{type(base.model).__name__} has no list of blocks with `self_attn.o_proj` and `mlp.down_proj`, so it is not "
            f"deepened here. Nothing was built."
        ) from error
    model.config.num_hidden_layers += layers
    return CausalLM(model, base.space, base.opening)


def _wider(config: BaseConfig, more: int) -> BaseConfig:
    width = config.width + more
    if isinstance(config, PixelCnnConfig | GatedPixelCnnConfig | PixelCnnPlusPlusConfig):
        return replace(config, width=width)
    if isinstance(config, RecurrentConfig):
        follows = config.tied and config.output == "softmax"
        return replace(config, width=width, embedding=width if follows else config.embedding)
    if isinstance(config, EnasConfig | AttentiveLstmConfig):
        return replace(config, width=width, embedding=_scaled(config.embedding, width / config.width))
    if isinstance(config, AwdLstmConfig | TrellisNetConfig):
        embedding = _scaled(config.embedding, width / config.width)
        return replace(config, width=width, embedding=embedding, inner=round(config.inner * width / config.width))
    return replace(config, width=width, feedforward=round(config.feedforward * width / config.width))


def _scaled(width: int | None, factor: float) -> int | None:
    return None if width is None else round(width * factor)
