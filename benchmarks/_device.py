"""The device that a benchmark's models run on, ours and the peers' alike: `python -m benchmarks --device`. A benchmark that
imports this module runs models; the others measure on the CPU only."""

import os
from typing import Any, TypeVar

import torch

from esscher.core.device import place, resolve_device

VARIABLE = "ESSCHER_BENCHMARK_DEVICE"  # inherited by the processes that measure
Part = TypeVar("Part")


def device() -> torch.device:
    return resolve_device(os.environ.get(VARIABLE, "cpu"))


def on_device(part: Part) -> Part:
    """The part on the device of the benchmark; networks are moved in place."""
    return place(part, device())


def synchronize() -> None:
    """Wait until the device has done all that was asked of it: a clock that is read before measures launches."""
    if device().type == "cuda":
        torch.cuda.synchronize(device())
    elif device().type == "mps":
        torch.mps.synchronize()


def describe() -> dict[str, Any]:
    """What a record says of the device: its name, the precision of products, and the build of torch."""
    name = torch.cuda.get_device_name(device()) if device().type == "cuda" else ""
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    return {
        "device": f"{device()}, {name}" if name else str(device()),
        "dtype": f"float32, products in {torch.get_float32_matmul_precision()} precision",
        "torch build": f"{torch.__version__}, {build}",
    }
