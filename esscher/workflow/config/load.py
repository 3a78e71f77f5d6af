"""The settings of loading a model, without torch."""

from dataclasses import dataclass, field
from typing import Any

from esscher.core.chunking import Chunking
from esscher.core.config import CompileSteps, DtypeName


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Where to compute."""

    device: str = "auto"
    """Where to compute: cpu, cuda, cuda:1, mps; auto takes a GPU if there is one."""


@dataclass(frozen=True, kw_only=True)
class PlacementConfig(DeviceConfig):
    """Where to compute, and in what precision the base's weights are."""

    dtype: DtypeName = "auto"
    """Precision of the base's weights; auto is float32 on a CPU, elsewhere that of the files. What learns is float32."""

    compile: CompileSteps = "auto"
    """Whether steps of drawing are compiled; auto does so on a GPU for the networks whose steps are one graph."""

    @property
    def placement(self) -> dict[str, Any]:
        """The arguments of `esscher.load` that these settings are."""
        return {"device": self.device, "dtype": self.dtype, "compile": self.compile}


@dataclass(frozen=True)
class ModelFolder:
    """The folder of a base; a class of its own so that it comes before the settings of chunking."""

    folder: str
    """Folder of the base: one that `train` wrote, or any causal or encoder-decoder model of Hugging Face; or smollm2, a model
    that comes as a package; or the id of one on the hub, owner/name or owner/name@revision."""


@dataclass(frozen=True)
class BaseConfig(PlacementConfig, Chunking, ModelFolder):
    """Which base to load, and where to put it."""

    fsdp: bool = field(default=False, kw_only=True)
    """Shard the base's weights among the processes of torchrun."""


@dataclass(frozen=True)
class LoadConfig(BaseConfig):
    """Which model to load, tilted or not, and where to put it."""

    energy: str | None = field(default=None, kw_only=True)
    """Folder of the energy that tilts the base; or `self`, the logsumexp of the base's own logits."""
