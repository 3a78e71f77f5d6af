"""Activation checkpointing (Chen et al. 2016): layers keep what came in, and compute the rest anew for the gradient.

Losses and gradients stay what they were, dropout included; a training pass keeps far less, and goes through the layers once
more.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from esscher.networks.layers import layers


def recompute(module: nn.Module) -> None:
    """Let the layers of a module keep only what came in, from now on; one whose layers are not known is an error."""
    found = layers(module)
    if not found:
        raise ValueError(
            f"{type(module).__name__} has no layers that can be computed anew. Nothing was trained; leave recompute out, or "
            f"use a Transformer."
        )
    for layer in found:
        for name in layer.passes:
            setattr(layer.module, name, partial(_computed_anew, getattr(layer.module, name)))


def _computed_anew(compute: Callable[..., Any], *inputs: Any, **settings: Any) -> Any:
    if not torch.is_grad_enabled():
        return compute(*inputs, **settings)
    return checkpoint(compute, *inputs, use_reentrant=False, **settings)
