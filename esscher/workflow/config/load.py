"""The settings of loading a model, without torch."""

from dataclasses import dataclass, field
from typing import Literal

from esscher.core.chunking import Chunking

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class ModelFolder:
    """The folder of a base; a class of its own so that it comes before the settings of chunking."""

    folder: str
    """Folder of the base: one that `train` wrote, or any causal or encoder-decoder model of Hugging Face."""


@dataclass(frozen=True)
class BaseConfig(Chunking, ModelFolder):
    """Which base to load, and where to put it."""

    device: str = field(default="auto", kw_only=True)
    """Where the base computes: auto, cpu, cuda, cuda:1, mps; auto leaves it on the CPU."""
    dtype: Dtype = field(default="auto", kw_only=True)
    """Precision of the weights; auto is float32 on a CPU."""
    fsdp: bool = field(default=False, kw_only=True)
    """Shard the base's weights among the processes of torchrun."""


@dataclass(frozen=True)
class LoadConfig(BaseConfig):
    """Which model to load, tilted or not, and where to put it."""

    energy: str | None = field(default=None, kw_only=True)
    """Folder of the energy that tilts the base; or `self`, the logsumexp of the base's own logits."""
