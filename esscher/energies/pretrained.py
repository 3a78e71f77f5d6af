"""Hugging Face folders, local files only: weights, tokenizer, maximum length; LoRA adapters by `peft`, which is optional."""

from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from esscher.core.bounded_files import RefusedError
from esscher.core.model_folder import load_pretrained

UNBOUNDED = 10**6  # tokenizers state more than this if they have no maximum length


def read_weights(folder: Path, auto: str, what: str) -> tuple[Any, list[str]]:
    """The model of a folder by this class of transformers, in float32, and the names of the weights it lacks."""
    try:
        model, report = load_pretrained(auto, folder, dtype=torch.float32, output_loading_info=True)
    except RefusedError:
        raise
    except Exception as error:  # of many classes: an unknown type, missing or truncated files, wrong shapes
        raise ValueError(
            f"{folder} holds no readable {what} with safetensors: {error}. Nothing was loaded; use save_pretrained."
        ) from error
    return model, sorted(report["missing_keys"])


def read_tokenizer(folder: Path, what: str) -> Any:
    """The tokenizer of a folder; `what` names the model in the error."""
    try:
        return load_pretrained("AutoTokenizer", folder)
    except RefusedError:
        raise
    except Exception as error:  # files missing, of an unknown class, or not convertible
        raise ValueError(f"The {what} in {folder} has no readable tokenizer: {error}. Nothing was loaded.") from error


def max_tokens_of(model: Any, tokenizer: Any | None) -> int | None:
    """The maximum length in tokens that tokenizer and model state; None if they state none."""
    stated = UNBOUNDED if tokenizer is None else tokenizer.model_max_length
    positions = getattr(model.config, "max_position_embeddings", None)
    longest = min(stated, UNBOUNDED if positions is None else positions)
    return None if longest >= UNBOUNDED else int(longest)


def add_lora(model: nn.Module, rank: int) -> nn.Module:
    """The model with LoRA adapters of this rank on all linear layers; only the adapters are trainable."""
    try:
        peft: Any = import_module("peft")
    except ImportError as error:
        raise ValueError(
            f"lora={rank} needs the package peft, which is not installed. Nothing was built; install it "
            f"(pip install peft), or leave lora out to train all weights."
        ) from error
    settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", bias="none")
    model.requires_grad_(False)
    return peft.inject_adapter_in_model(settings, model)


def merge_lora(model: nn.Module) -> nn.Module:
    """A copy of the model with its adapters merged into its weights; the model itself if it has none."""
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
