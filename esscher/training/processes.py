"""The processes that work together: one by default, several under `torchrun`, on CPU as on GPU.

Gradients are summed here, over one flat vector, and not by a wrapper around the model: an objective calls a
base in its own ways (`log_probs`, sampling), which a wrapper's `forward` never sees; and a fixed vector is
summed in the same order at every step, which exact resuming needs. Nothing travels as a pickle.
"""

import atexit
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.tracking import get_available_trackers
from torch import Tensor, nn

from esscher.estimate import Estimate
from esscher.launch import rank, started
from esscher.settings.training import TrainingConfig
from esscher.storage import parted

ESTIMATE = "an estimate"  # how one travels


def join(*, cpu: bool | None = None) -> PartialState:
    """Meet the other processes, once; those that do not see each other are refused."""
    fresh = not PartialState._shared_state
    state = PartialState(cpu=not torch.cuda.is_available() if cpu is None else cpu)
    if state.num_processes != started():
        raise RuntimeError(
            f"{started()} processes were started, but each of them sees {state.num_processes}: they would work apart and "
            f"overwrite each other. Nothing was done; start them with torchrun, and on a CPU with device: cpu."
        )
    if fresh:
        atexit.register(state.destroy_process_group)
    return state


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
    join(cpu=not gpu)
    accelerator = Accelerator(cpu=not gpu, mixed_precision=precision, log_with=config.tracker, project_dir=place)
    if config.batch_size % (config.accumulate * started()):
        raise ValueError(
            f"A batch of {config.batch_size} cannot be shared by {started()} processes in accumulate = {config.accumulate} "
            f"equal passes. Nothing was trained; change batch_size."
        )
    return accelerator


def make_equal(modules: Sequence[nn.Module]) -> None:
    """Give every process the weights of the first."""
    if started() > 1:
        for module in modules:
            for tensor in [*module.parameters(), *module.buffers()]:
                torch.distributed.broadcast(tensor.data, 0)


def sum_gradients(accelerator: Accelerator, parameters: Sequence[nn.Parameter]) -> None:
    """Replace each gradient by its sum over all processes; those of weights that are shared out are such sums already."""
    parameters = [parameter for parameter in parameters if not parted(parameter)]
    if started() == 1 or not parameters:
        return
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters])
    flat = accelerator.reduce(flat, "sum")
    for parameter, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = piece.view_as(parameter)


def sum_numbers(accelerator: Accelerator, numbers: Sequence[float]) -> list[float]:
    """Each number summed over all processes."""
    if started() == 1:
        return list(numbers)
    total: Tensor = accelerator.reduce(torch.tensor(numbers, dtype=torch.float64, device=accelerator.device), "sum")
    return total.tolist()


def bytes_of_all(content: bytes) -> list[bytes]:
    """What each process brings, on all of them, in order of process."""
    if started() == 1:
        return [content]
    device = join().device
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(started())]
    torch.distributed.all_gather(sizes, torch.tensor([len(content)], device=device))
    longest = max(1, *(int(size) for size in sizes))
    own = torch.zeros(longest, dtype=torch.uint8)
    own[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else own[:0]
    found = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(started())]
    torch.distributed.all_gather(found, own.to(device))
    return [one[: int(size)].cpu().numpy().tobytes() for one, size in zip(found, sizes, strict=True)]


def from_all(values: Any) -> list[Any]:
    """The values of each process, in order of process: estimates, and what JSON has."""
    if started() == 1:
        return [values]
    own = json.dumps(values, default=lambda found: {ESTIMATE: found.to_dict()}).encode()
    return [json.loads(one, object_hook=_estimate) for one in bytes_of_all(own)]


def _estimate(value: dict[str, Any]) -> Any:
    return Estimate(**value[ESTIMATE]) if ESTIMATE in value else value


def from_first(value: Any) -> Any:
    """The value of the first process, on all."""
    return from_all(value if rank() == 0 else None)[0]


def is_made(file: Path) -> bool:
    """Whether a file is there, as the first process sees it: all ask together, so that all do the same next."""
    return bool(from_first(file.is_file()))


def all_here() -> None:
    """Wait until all processes are here."""
    join().wait_for_everyone()
