"""Network energies: an encoder reads the sequence, its vectors are pooled, and a head gives one number.

    E(x) = head(pooled vectors)          or, with a bound b,  b tanh(head(pooled vectors) / b)

The last layer of the head starts at 0, so training starts from the base itself, where log Z = 0. With a `window` only the end
of the prompt is read. An energy reads the last token too, so its network has one more position than a base's.
"""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.bases.causal_lm import CausalLM
from esscher.bases.network import NetworkBase, build_network
from esscher.core.randomness import Rng, require_seeded
from esscher.core.space import Sequences
from esscher.core.target import Base
from esscher.energies.config import EnergyConfig, Pooling
from esscher.energies.encoders import (
    Encoded,
    Encoder,
    NetworkEncoder,
    PretrainedEncoder,
    SharedEncoder,
    TextEncoder,
    encoder_of_base,
    load_encoder,
    token_encoder,
    with_dropout,
)
from esscher.energies.features import Decode
from esscher.energies.pretrained import add_lora, read_tokenizer
from esscher.heads.chunked_log_softmax import accumulation_dtype, no_autocast
from esscher.networks.pixel_network import PixelNetwork
from esscher.networks.registry import NETWORKS, NetworkConfig
from esscher.networks.transformer import INITIAL_STD, TransformerNetwork
from esscher.networks.transformer_config import TransformerConfig
from esscher.networks.xlnet import XLNetNetwork

BIDIRECTIONAL_NETWORKS = (TransformerNetwork, PixelNetwork, XLNetNetwork)


class NetworkEnergy(nn.Module):
    """The energy of an encoder and a head; `vocab_size` is that of the encoder, if it has one."""

    encoder: Any
    vocab_size: int

    def __init__(self, encoder: Encoder, config: EnergyConfig):
        super().__init__()
        self.encoder, self.config = encoder, config
        last = nn.Linear(config.hidden or encoder.width, 1)
        self.head: nn.Module = last
        if config.hidden is not None:
            self.head = nn.Sequential(nn.Linear(encoder.width, config.hidden), nn.GELU(), last)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        if isinstance(size := getattr(encoder, "vocab_size", None), int):
            self.vocab_size = size

    @property
    def log_weight_bounds(self) -> tuple[float, float] | None:
        """The least and the largest -E(x), if the energy is bounded."""
        return None if self.config.bound is None else (-self.config.bound, self.config.bound)

    def forward(self, x: Sequences) -> Float[Tensor, "B"]:
        if len(x) == 0:
            return torch.zeros(0, device=x.tokens.device)
        if self.config.window is not None:
            x = last_prompt_tokens(x, self.config.window)
        encoded, bound = self.encoder(x), self.config.bound
        with no_autocast(x.tokens.device):  # in the dtype of the head's weights: one rounding to bfloat16 is 0.02 nats of 5
            pooled = pool_vectors(encoded, self.config.pooling).to(next(self.head.parameters()).dtype)
            energy = self.head(pooled)[:, 0]
        energy = energy.to(accumulation_dtype(energy.dtype))
        return energy if bound is None else bound * torch.tanh(energy / bound)


def last_prompt_tokens(x: Sequences, window: int) -> Sequences:
    """The rows with only the last `window` tokens of their prompts."""
    dropped = (x.start - window).clamp(min=0)
    start, stop = x.start - dropped, x.stop - dropped
    column = torch.arange(int(stop.max()), device=x.tokens.device)
    inside = column < stop[:, None]
    tokens = x.tokens.gather(1, torch.where(inside, column + dropped[:, None], 0))
    return Sequences(torch.where(inside, tokens, 0), start, stop)


def pool_vectors(encoded: Encoded, pooling: Pooling) -> Float[Tensor, "B W"]:
    """One vector for each row, in float32 or better."""
    dtype = accumulation_dtype(encoded.vectors.dtype)
    if pooling == "first":
        return encoded.vectors[:, 0].to(dtype)
    if pooling == "last":
        column = torch.arange(encoded.whole.shape[1], device=encoded.whole.device)
        last = torch.where(encoded.whole, column, 0).amax(-1)
        return encoded.vectors[torch.arange(len(last), device=last.device), last].to(dtype)
    columns = encoded.whole if pooling == "whole" else encoded.point
    total = torch.where(columns[..., None], encoded.vectors, 0.0).sum(1, dtype=dtype)
    return total if pooling == "sum" else total / columns.sum(-1, keepdim=True)


AnyEncoder = NetworkEncoder | PretrainedEncoder | SharedEncoder | TextEncoder


def build_energy(
    config: EnergyConfig, base: Base, *, start: Base | None = None, decode: Decode | None = None, rng: Rng
) -> NetworkEnergy:
    """An untrained energy for this base, 0 everywhere; the base is never changed. An encoder without a network of its own
    starts from a copy of `start`, another base with the same tokens, by default of the base. An encoder of text needs `decode`.
    `rng` must be a `SeededRng`."""
    config = resolve_kind(config, base if start is None else start)
    if start is not None and (config.kind in ("encoder", "shared") or config.network is not None):
        raise ValueError(
            f"An energy of kind {config.kind!r}, or with a network of its own, does not start from a base. Nothing was built; "
            f"leave start out."
        )
    if start is not None and start.space.vocab_size != base.space.vocab_size:
        raise ValueError(
            f"The base has {base.space.vocab_size} tokens, and the model to start from has {start.space.vocab_size}. "
            f"Nothing was built; start from a model with the base's tokenizer."
        )
    bidirectional = config.kind == "bidirectional"
    with require_seeded(rng).fork_torch_rng():
        encoder: AnyEncoder
        if config.kind == "encoder":
            encoder = _pretrained_encoder(config, base, decode)
        elif config.kind == "shared":
            encoder = SharedEncoder(base)
        elif config.network is not None:
            encoder = _initialised(config.network, base.space.vocab_size, bidirectional=bidirectional)
        else:
            encoder = encoder_from(base if start is None else start, config, bidirectional=bidirectional)
        network = encoder.network.config if isinstance(encoder, NetworkEncoder) else None
        energy = NetworkEnergy(encoder, replace(config, network=network, dropout=None, lora=None))
    device = next((weight.device for weight in getattr(base, "parameters", lambda: iter(()))()), None)
    return energy if device is None else energy.to(device)


def resolve_kind(config: EnergyConfig, start: Base) -> EnergyConfig:
    """The config with its kind chosen where it is None; `start` is the base whose weights the energy may start from."""
    if config.kind is not None:
        return config
    if config.encoder:
        return replace(config, kind="encoder")
    network = None if config.network is None else NETWORKS[NETWORKS.kind_of(config.network)].part_class
    bidirectional = is_bidirectional(start) if network is None else issubclass(network, BIDIRECTIONAL_NETWORKS)
    return replace(config, kind="bidirectional" if bidirectional else "unidirectional")


def network_encoder(config: NetworkConfig, vocab_size: int, *, bidirectional: bool) -> NetworkEncoder:
    """An encoder around a newly initialised network."""
    return NetworkEncoder(build_network(config, vocab_size), vocab_size, config.width, bidirectional=bidirectional)


def encoder_from(start: Base, config: EnergyConfig, *, bidirectional: bool) -> NetworkEncoder | PretrainedEncoder:
    """An encoder that starts from a copy of a base's weights."""
    if isinstance(start, NetworkBase):
        if config.lora is not None:
            raise ValueError("LoRA adapters are for pretrained Hugging Face models. Nothing was built; leave lora out.")
        return _copy_of_base(start, config.dropout, bidirectional=bidirectional)
    if isinstance(start, CausalLM):
        model = with_dropout(deepcopy(start.model.base_model), config.dropout)
        return PretrainedEncoder(_adapted(model, config), start.bos, bidirectional=bidirectional)
    return encoder_of_base(start)  # raises the error


def is_bidirectional(base: Base) -> bool:
    """Whether a base's network can attend to both sides, the default of an energy that starts from it."""
    return isinstance(base, CausalLM) or isinstance(getattr(base, "network", None), BIDIRECTIONAL_NETWORKS)


def _pretrained_encoder(config: EnergyConfig, base: Base, decode: Decode | None) -> TextEncoder | PretrainedEncoder:
    if not config.encoder:
        raise ValueError("An energy of kind 'encoder' needs the folder of one. Nothing was built; give encoder=.")
    model = _adapted(with_dropout(load_encoder(config.encoder), config.dropout), config)
    if config.on == "tokens":
        return token_encoder(model, config.encoder, base.space.vocab_size)
    if decode is None:
        raise ValueError("An encoder of text needs the base's decoder. Nothing was built; give decode=tokenizer.decode.")
    return TextEncoder(model, read_tokenizer(Path(config.encoder), "encoder"), decode)


def _adapted(model: nn.Module, config: EnergyConfig) -> nn.Module:
    return model.requires_grad_(True) if config.lora is None else add_lora(model, config.lora)


def _with_extra_position(config: NetworkConfig) -> NetworkConfig:
    """The same network with one position more, for the last token."""
    return replace(config, max_positions=config.max_positions + 1) if isinstance(config, TransformerConfig) else config


@torch.no_grad()
def _initialised(config: NetworkConfig, vocab_size: int, *, bidirectional: bool) -> NetworkEncoder:
    """A newly initialised encoder; a Transformer's weights get variance 1 / width, since smaller ones start too weak."""
    encoder = network_encoder(_with_extra_position(config), vocab_size, bidirectional=bidirectional)
    if isinstance(config, TransformerConfig):
        for weight in encoder.parameters():
            if weight.dim() > 1:
                weight.mul_(config.width**-0.5 / INITIAL_STD)
    return encoder


@torch.no_grad()
def _copy_of_base(base: NetworkBase, dropout: float | None, *, bidirectional: bool) -> NetworkEncoder:
    """An encoder with the base's weights; the extra learned position starts as a copy of the last one."""
    settings = base.config if dropout is None else replace(base.config, dropout=dropout)
    encoder = network_encoder(_with_extra_position(settings), base.space.vocab_size, bidirectional=bidirectional)
    weights = base.network.state_dict()  # type: ignore[attr-defined]
    if "position.weight" in weights:
        weights["position.weight"] = torch.cat([weights["position.weight"], weights["position.weight"][-1:]])
    encoder.network.load_state_dict(weights)
    return encoder
