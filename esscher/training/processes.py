"""The processes that train together: one by default, several under `torchrun`, on CPU as on GPU.

Gradients are summed here, over one flat vector, and not by a wrapper around the model: an objective calls a
base in its own ways (`log_probs`, sampling), which a wrapper's `forward` never sees; and a fixed vector is
summed in the same order at every step, which exact resuming needs.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.tracking import get_available_trackers
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor, nn

from esscher.training.config import TrainingConfig


def connect(config: TrainingConfig, folder: Path | None) -> Accelerator:
    """Join the other processes; bfloat16 where the device is fast at it, float32 elsewhere."""
    gpu = config.device == "auto" and torch.cuda.is_available()
    precision = "bf16" if gpu and torch.cuda.is_bf16_supported() else "no"
    place = None if folder is None else str(folder)
    if config.tracker is not None and config.tracker not in (installed := [str(one) for one in get_available_trackers()]):
        raise ValueError(
            f"The tracker {config.tracker!r} is not installed; installed are {', '.join(installed) or 'none'}. Nothing was "
            f"trained; pip install 'esscher[track]' brings tensorboard, or leave tracker out."
        )
    accelerator = Accelerator(cpu=not gpu, mixed_precision=precision, log_with=config.tracker, project_dir=place)
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != started:
        raise RuntimeError(
            f"{started} processes were started, but each of them sees {accelerator.num_processes}: they would train apart and "
            f"overwrite each other. Nothing was trained; start them with torchrun, and on a CPU with device: cpu."
        )
    if config.batch_size % (config.accumulate * started):
        raise ValueError(
            f"A batch of {config.batch_size} cannot be shared by {started} processes in accumulate = {config.accumulate} "
            f"equal passes. Nothing was trained; change batch_size."
        )
    return accelerator


def first_process() -> bool:
    """True in the process that writes files and speaks."""
    return int(os.environ.get("RANK", "0")) == 0


def disconnect() -> None:
    """Leave the other processes, at the very end."""
    PartialState().destroy_process_group()


def make_equal(accelerator: Accelerator, modules: Sequence[nn.Module]) -> None:
    """Give every process the weights of the first."""
    if accelerator.num_processes > 1:
        for module in modules:
            for tensor in [*module.parameters(), *module.buffers()]:
                torch.distributed.broadcast(tensor.data, 0)


def sum_gradients(accelerator: Accelerator, parameters: Sequence[nn.Parameter]) -> None:
    """Replace each gradient by its sum over all processes."""
    if accelerator.num_processes == 1:
        return
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters])
    flat = accelerator.reduce(flat, "sum")
    for parameter, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = piece.view_as(parameter)


def sum_numbers(accelerator: Accelerator, numbers: Sequence[float]) -> list[float]:
    """Each number summed over all processes."""
    if accelerator.num_processes == 1:
        return list(numbers)
    total: Tensor = accelerator.reduce(torch.tensor(numbers, dtype=torch.float64, device=accelerator.device), "sum")
    return total.tolist()


def from_all(accelerator: Accelerator, values: list[Any]) -> list[Any]:
    """The values of all processes, in order of process."""
    return gather_object(values) if accelerator.num_processes > 1 else values


def from_first(accelerator: Accelerator, value: Any) -> Any:
    """The value of the first process, on all."""
    return broadcast_object_list([value])[0] if accelerator.num_processes > 1 else value
