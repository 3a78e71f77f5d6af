"""Activation checkpointing (Chen et al. 2016): layers keep only their inputs, and compute the rest again in the backward pass.

Losses and gradients are the same, dropout included. Layers, which `esscher.bases.fsdp` also shards, are modules with
`checkpointed_methods` (methods on whole sequences), or those that a model of `transformers` lists in `_no_split_modules`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def transformer_layers(module: nn.Module) -> dict[nn.Module, tuple[str, ...]]:
    """The layers within a module, in order, each with its methods that process whole sequences; empty if it has no layers."""
    hf_layers = {name for part in module.modules() for name in getattr(part, "_no_split_modules", None) or ()}
    return {
        part: methods
        for part in module.modules()
        if (methods := ("forward",) if type(part).__name__ in hf_layers else getattr(part, "checkpointed_methods", ()))
    }


def enable_gradient_checkpointing(module: nn.Module) -> None:
    """Let the layers of a module keep only their inputs from now on; refuses a module without layers."""
    layers = transformer_layers(module)
    if not layers:
        raise ValueError(
            f"{type(module).__name__} has no layers for gradient checkpointing. Nothing was trained; leave "
            f"gradient_checkpointing out, or use a Transformer."
        )
    for layer, methods in layers.items():
        for name in methods:
            setattr(layer, name, partial(_checkpointed, getattr(layer, name)))


def _checkpointed(compute: Callable[..., Any], *inputs: Any, **settings: Any) -> Any:
    if not torch.is_grad_enabled():
        return compute(*inputs, **settings)
    return checkpoint(compute, *inputs, use_reentrant=False, **settings)
