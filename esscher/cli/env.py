"""`esscher env`: what this machine and installation have."""

import os
import platform
import re
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from esscher.core.environment import VARIABLES
from esscher.reports.report import Report, package_versions

PACKAGES = ("esscher", "torch", "transformers", "tokenizers", "datasets", "accelerate", "safetensors", "scipy", "numpy")
NOT_SHOWN = ("dev", "docs")  # extras of who works on the library


@dataclass(frozen=True)
class EnvConfig:
    """Versions, processors, memory, the devices that `--device` can name, and environment variables; include them in a report
    of a problem."""


def env(settings: EnvConfig) -> Report:
    """Versions of packages, processors, memory, and the devices with what `auto` picks."""
    import torch

    from esscher.core.device import resolve_device

    facts = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": _cuda_build(),
        "device_auto": str(resolve_device("auto")),
        "hub_offline": os.environ.get("HF_HUB_OFFLINE", "0") not in ("0", ""),
    }
    extras = extra_packages()
    versions = package_versions((*PACKAGES, *extras))
    rows = [{"package": name, "version": version, "extra": extras.get(name, "")} for name, version in versions.items()]
    variables = [{"variable": entry.name, "value": entry.value, "meaning": entry.meaning} for entry in VARIABLES]
    return Report("esscher env", facts, {"devices": _devices(), "packages": rows, "variables": variables})


def extra_packages() -> dict[str, str]:
    """The extra that brings a package, by package; empty where the library runs without being installed."""
    try:
        required = metadata.requires("esscher") or []
    except metadata.PackageNotFoundError:
        return {}
    found = (re.match(r"([\w.-]+).*; *extra == ['\"](\w+)['\"]", line) for line in required)
    return {match[1]: match[2] for match in found if match is not None and match[2] not in NOT_SHOWN}


def _cuda_build() -> str:
    """The CUDA (or ROCm) version of this build of torch, and whether it finds a GPU."""
    import torch

    version = torch.version.cuda or (torch.version.hip and f"ROCm {torch.version.hip}")
    if not torch.cuda.is_available():
        return f"{version}, but torch finds no GPU or no driver" if version else "none: this build of torch has no CUDA"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return f"{version or 'unknown version'}" + ("" if visible is None else f", CUDA_VISIBLE_DEVICES={visible}")


def _devices() -> list[dict[str, Any]]:
    """A row for each device: its name for `--device`, what it is, its memory, and whether a GPU computes in bfloat16."""
    import torch

    rows: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about, (free, total) = torch.cuda.get_device_properties(index), torch.cuda.mem_get_info(index)
        memory = {"memory_gib": round(total / 2**30, 1), "free_gib": round(free / 2**30, 1)}
        bfloat16 = "native" if about.major >= 8 else "emulated"
        rows.append({"device": f"cuda:{index}", "name": about.name, **memory, "bfloat16": bfloat16})
    if torch.backends.mps.is_available():
        rows.append({"device": "mps", "name": platform.processor()})
    memory_gib = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return [*rows, {"device": "cpu", "name": platform.machine(), "memory_gib": memory_gib}]
