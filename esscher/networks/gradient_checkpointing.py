"""Activation checkpointing (Chen et al. 2016): layers keep only their inputs, and compute the rest again in the backward pass.

Losses and gradients are the same, dropout included; a training pass needs far less memory and one more forward pass. The layers
found here are also the units that processes shard (`esscher.bases.fsdp`).

A layer is a module with `checkpointed_methods`, the names of the methods that process whole sequences, or a module that a model
of `transformers` lists in `_no_split_modules`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class CheckpointedLayer:
    """A module, and the names of the methods that process whole sequences."""

    module: nn.Module
    methods: tuple[str, ...]


def transformer_layers(module: nn.Module) -> list[CheckpointedLayer]:
    """The layers within a module, in order; empty for networks without such layers."""
    hf_layers = {name for part in module.modules() for name in getattr(part, "_no_split_modules", None) or ()}
    return [
        CheckpointedLayer(part, methods)
        for part in module.modules()
        if (methods := ("forward",) if type(part).__name__ in hf_layers else getattr(part, "checkpointed_methods", ()))
    ]


def enable_gradient_checkpointing(module: nn.Module) -> None:
    """Let the layers of a module keep only their inputs from now on; refuses a module without layers."""
    layers = transformer_layers(module)
    if not layers:
        raise ValueError(
            f"{type(module).__name__} has no layers for gradient checkpointing. Nothing was trained; leave "
            f"gradient_checkpointing out, or use a Transformer."
        )
    for layer in layers:
        for name in layer.methods:
            setattr(layer.module, name, partial(_checkpointed, getattr(layer.module, name)))


def _checkpointed(compute: Callable[..., Any], *inputs: Any, **settings: Any) -> Any:
    if not torch.is_grad_enabled():
        return compute(*inputs, **settings)
    return checkpoint(compute, *inputs, use_reentrant=False, **settings)
