"""Low-rank adapters of pretrained readers, by `peft`, which is optional: a few weights learn beside frozen ones."""

from copy import deepcopy
from importlib import import_module
from typing import Any

from torch import nn


def with_adapters(model: nn.Module, rank: int) -> nn.Module:
    """The model with adapters of this rank beside all its linear layers; they learn, its own weights do not."""
    try:
        peft: Any = import_module("peft")
    except ImportError as error:
        raise ValueError(
            f"lora={rank} needs the package peft, which is not installed. Nothing was built; install it "
            f"(pip install peft), or leave lora out, and all weights learn."
        ) from error
    settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", bias="none")
    model.requires_grad_(False)
    return peft.inject_adapter_in_model(settings, model)


def without_adapters(model: nn.Module) -> nn.Module:
    """A model whose adapters are added to its own weights; one that has none is itself."""
    if not any("lora_" in name for name, _ in model.named_parameters()):
        return model
    layers: Any = import_module("peft.tuners.lora")
    model = deepcopy(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, layers.LoraLayer):
            layer.merge()
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, layer.get_base_layer())
    return model
