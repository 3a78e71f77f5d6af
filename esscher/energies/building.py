"""An energy that is a network, from its settings: with weights of its own, from the base's, or from a pretrained encoder's.

An energy reads the last token too, which a base never needs to: its network has one position more than a base of the same
settings. Weights that are not taken from elsewhere are drawn from `rng`.
"""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from esscher.bases.causal_lm import CausalLM
from esscher.bases.config import BaseConfig, TransformerConfig
from esscher.bases.network import NetworkBase, build_network
from esscher.energies.adapters import with_adapters
from esscher.energies.config import EnergyConfig, without_starting_point
from esscher.energies.encoder import TextReader, encoder_of_tokens, load_encoder, with_dropout
from esscher.energies.network import NetworkEnergy
from esscher.energies.pretrained import read_tokenizer
from esscher.energies.readers import NetworkReader, PretrainedReader, SharedReader, reader_of_base
from esscher.energies.reading import Decode
from esscher.networks.blocks import INITIAL_STD
from esscher.networks.pixel_network import PixelNetwork
from esscher.networks.transformer import TransformerNetwork
from esscher.networks.xlnet import XLNetNetwork
from esscher.randomness import Rng, Seeded
from esscher.target import Base

AnyReader = NetworkReader | PretrainedReader | SharedReader | TextReader


def build_energy(
    config: EnergyConfig, base: Base, *, start: Base | None = None, decode: Decode | None = None, rng: Rng
) -> NetworkEnergy:
    """An energy for this base, which is 0 everywhere until it learns; the base is copied or read, never changed.

    A reader without settings of its own begins with the weights of `start`, another base with the same tokens, or of the base
    itself. `decode` is needed by an encoder of text. `rng` must be `Seeded`: weights are no finite choice.
    """
    if start is not None:
        _check_start(config, base, start)
    if not isinstance(rng, Seeded):
        raise ValueError(f"Initial weights need chance from a seed, not from {rng!r}. Nothing was built; pass Seeded(seed).")
    with rng.governs_torch():
        reader = _reader(config, base, base if start is None else start, decode)
        network = reader.network.config if isinstance(reader, NetworkReader) else None
        energy = NetworkEnergy(reader, without_starting_point(config, network))
    device = next((weight.device for weight in getattr(base, "parameters", lambda: iter(()))()), None)
    return energy if device is None else energy.to(device)


def network_reader(config: BaseConfig, vocab_size: int, *, both_sides: bool) -> NetworkReader:
    """A network of exactly these settings, with initial weights."""
    return NetworkReader(build_network(config, vocab_size), vocab_size, config.width, both_sides=both_sides)


def _check_start(config: EnergyConfig, base: Base, start: Base) -> None:
    if config.reader in ("encoder", "shared") or config.network is not None:
        raise ValueError(
            f"An energy of reader {config.reader!r}, or with a network of its own settings, has weights already. Nothing was "
            f"built; leave start out."
        )
    if start.space.vocab_size != base.space.vocab_size:
        raise ValueError(
            f"The base speaks {base.space.vocab_size} tokens, and what the energy shall start from {start.space.vocab_size}. "
            f"Nothing was built; start from a model with the base's tokenizer."
        )


def _reader(config: EnergyConfig, base: Base, start: Base, decode: Decode | None) -> AnyReader:
    both_sides = config.reader == "bidirectional"
    if config.reader == "encoder":
        return _encoder(config, base, decode)
    if config.reader == "shared":
        return SharedReader(base)
    if config.network is not None:
        return _fresh(config.network, base.space.vocab_size, both_sides=both_sides)
    return reader_from(start, config, both_sides=both_sides)


def reader_from(start: Base, config: EnergyConfig, *, both_sides: bool) -> NetworkReader | PretrainedReader:
    """A reader that begins with the weights of a base, as a copy."""
    if isinstance(start, NetworkBase):
        if config.lora is not None:
            raise ValueError("Adapters are for pretrained models of Hugging Face. Nothing was built; leave lora out.")
        return _copied(start, config.dropout, both_sides=both_sides)
    if isinstance(start, CausalLM):
        model = with_dropout(deepcopy(start.model.base_model), config.dropout)
        return PretrainedReader(_adapted(model, config), start.opening, both_sides=both_sides)
    return reader_of_base(start)  # which refuses it


def reads_both_sides(base: Base) -> bool:
    """Whether a base's own network reads from both sides unless told otherwise."""
    looks_ahead = TransformerNetwork | PixelNetwork | XLNetNetwork
    return isinstance(base, CausalLM) or isinstance(getattr(base, "network", None), looks_ahead)


def _encoder(config: EnergyConfig, base: Base, decode: Decode | None) -> TextReader | PretrainedReader:
    if not config.encoder:
        raise ValueError("The reader 'encoder' needs the folder of one. Nothing was built; give encoder=.")
    model = _adapted(with_dropout(load_encoder(config.encoder), config.dropout), config)
    if config.on == "tokens":
        return encoder_of_tokens(model, config.encoder, base.space.vocab_size)
    if decode is None:
        raise ValueError("An encoder of text needs the base's decoder. Nothing was built; give decode=tokenizer.decode.")
    return TextReader(model, read_tokenizer(Path(config.encoder), "encoder"), decode)


def _adapted(model: nn.Module, config: EnergyConfig) -> nn.Module:
    return model.requires_grad_(True) if config.lora is None else with_adapters(model, config.lora)


def _with_last(config: BaseConfig) -> BaseConfig:
    """The same network with room for the last token."""
    return replace(config, max_positions=config.max_positions + 1) if isinstance(config, TransformerConfig) else config


@torch.no_grad()
def _fresh(config: BaseConfig, vocab_size: int, *, both_sides: bool) -> NetworkReader:
    """A reader with initial weights; a Transformer's have variance 1 / width, since small ones read little at first."""
    reader = network_reader(_with_last(config), vocab_size, both_sides=both_sides)
    if isinstance(config, TransformerConfig):
        for weight in reader.parameters():
            if weight.dim() > 1:
                weight.mul_(config.width**-0.5 / INITIAL_STD)
    return reader


@torch.no_grad()
def _copied(base: NetworkBase, dropout: float | None, *, both_sides: bool) -> NetworkReader:
    """A reader with the base's weights; a learnt position that the base lacks begins as its last one."""
    settings = base.config if dropout is None else replace(base.config, dropout=dropout)
    reader = network_reader(_with_last(settings), base.space.vocab_size, both_sides=both_sides)
    weights = base.network.state_dict()  # type: ignore[attr-defined]
    if "position.weight" in weights:
        weights["position.weight"] = torch.cat([weights["position.weight"], weights["position.weight"][-1:]])
    reader.network.load_state_dict(weights)
    return reader
