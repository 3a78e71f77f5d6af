"""`esscher env`: what this machine and installation have."""

import os
import platform
from dataclasses import dataclass

from esscher.reports.report import Report, package_versions

PACKAGES = ("esscher", "torch", "transformers", "tokenizers", "datasets", "accelerate", "safetensors", "scipy", "numpy")
EXTRAS = {"tensorboard": "track"}


@dataclass(frozen=True)
class EnvConfig:
    """Versions, processors, memory, accelerators; include them in a report of a problem."""


def env(settings: EnvConfig) -> Report:
    """Versions of packages, processors, memory and accelerators."""
    import torch

    facts = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.is_available(),
        "hub_offline": os.environ.get("HF_HUB_OFFLINE", "0") not in ("0", ""),
    }
    versions = package_versions((*PACKAGES, *EXTRAS))
    rows = [{"package": name, "version": version, "extra": EXTRAS.get(name, "")} for name, version in versions.items()]
    return Report("esscher env", facts, {"packages": rows})
