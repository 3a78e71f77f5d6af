"""Communication between processes: one by default, several under `torchrun`, on CPU and GPU.

Gradients are summed as one flat vector, in the same order at every step, as exact resuming needs; a wrapper around the model
would not see the methods that objectives call (`log_probs`, sampling). Objects are sent as JSON, never as pickles.
"""

import atexit
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.tracking import get_available_trackers
from torch import Tensor, nn

from esscher.core.device import resolve_device
from esscher.core.distributed import rank, world_size
from esscher.core.estimate import Estimate
from esscher.core.storage import is_sharded
from esscher.training.config import TrainingConfig

ESTIMATE = "an estimate"  # key of an `Estimate` in JSON


def init_process_group(device: torch.device | None = None) -> PartialState:
    """Join the other processes, once, to compute on this device; refused where processes do not see each other."""
    device = resolve_device() if device is None and not PartialState._shared_state else device
    if PartialState._shared_state and device is not None and PartialState().device.type != device.type:
        if world_size() > 1:
            raise RuntimeError(
                f"The processes communicate on {PartialState().device.type}, so nothing is trained on {device.type} beside it. "
                f"Nothing was done; name one --device for all that runs together."
            )
        AcceleratorState._reset_state(reset_partial_state=True)  # accelerate knows one device; here every model has its own
    fresh = not PartialState._shared_state
    state = PartialState(cpu=device is not None and device.type == "cpu")
    if state.num_processes != world_size():
        raise RuntimeError(
            f"{world_size()} processes were started, but each of them sees {state.num_processes}: they would work apart and "
            f"overwrite each other. Nothing was done; start them with torchrun, and on a CPU with --device cpu."
        )
    if fresh:
        atexit.register(state.destroy_process_group)
    return state


def make_accelerator(config: TrainingConfig, folder: Path | None, device: torch.device) -> Accelerator:
    """Join the other processes on the device of this one, in the precision that the settings say."""
    if device.type == "cuda" and world_size() == 1:
        torch.cuda.set_device(device)
    bfloat16 = (
        device.type == "cuda" and torch.cuda.is_bf16_supported()
        if config.precision == "auto"
        else config.precision == "bfloat16"
    )
    place = None if folder is None else str(folder)
    if config.tracker is not None and config.tracker not in (installed := [str(name) for name in get_available_trackers()]):
        raise ValueError(
            f"The tracker {config.tracker!r} is not installed; installed are {', '.join(installed) or 'none'}. Nothing was "
            f"trained; pip install 'esscher[track]' brings tensorboard, or leave tracker out."
        )
    init_process_group(device)
    precision = "bf16" if bfloat16 else "no"
    accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision=precision, log_with=config.tracker, project_dir=place)
    if config.batch_size % (config.gradient_accumulation_steps * world_size()):
        raise ValueError(
            f"A batch of {config.batch_size} cannot be split over {world_size()} processes in gradient_accumulation_steps = "
            f"{config.gradient_accumulation_steps} equal passes. Nothing was trained; change batch_size."
        )
    return accelerator


def broadcast_parameters(modules: Sequence[nn.Module]) -> None:
    """Copy the weights of rank 0 to all processes."""
    if world_size() > 1:
        for module in modules:
            for tensor in [*module.parameters(), *module.buffers()]:
                torch.distributed.broadcast(tensor.data, 0)


def all_reduce_gradients(accelerator: Accelerator, parameters: Sequence[nn.Parameter]) -> None:
    """Replace each gradient by its sum over all processes; gradients of FSDP weights are sums already."""
    parameters = [parameter for parameter in parameters if not is_sharded(parameter)]
    if world_size() == 1 or not parameters:
        return
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters])
    flat = accelerator.reduce(flat, "sum")
    for parameter, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = piece.view_as(parameter)


def all_reduce_sum(accelerator: Accelerator, numbers: Sequence[float]) -> list[float]:
    """Each number summed over all processes."""
    if world_size() == 1:
        return list(numbers)
    total: Tensor = accelerator.reduce(torch.tensor(numbers, dtype=torch.float64, device=accelerator.device), "sum")
    return total.tolist()


def all_gather_bytes(content: bytes) -> list[bytes]:
    """The content of every process, on all of them, in order of rank."""
    if world_size() == 1:
        return [content]
    device = init_process_group().device
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world_size())]
    torch.distributed.all_gather(sizes, torch.tensor([len(content)], device=device))
    longest = max(1, *(int(size) for size in sizes))
    local = torch.zeros(longest, dtype=torch.uint8)
    local[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else local[:0]
    buffers = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(world_size())]
    torch.distributed.all_gather(buffers, local.to(device))
    return [buffer[: int(size)].cpu().numpy().tobytes() for buffer, size in zip(buffers, sizes, strict=True)]


def all_gather_objects(values: Any) -> list[Any]:
    """The value of every process, in order of rank: JSON values and estimates."""
    if world_size() == 1:
        return [values]

    def decode(value: dict[str, Any]) -> Any:
        return Estimate(**value[ESTIMATE]) if ESTIMATE in value else value

    content = json.dumps(values, default=lambda estimate: {ESTIMATE: estimate.to_dict()}).encode()
    return [json.loads(part, object_hook=decode) for part in all_gather_bytes(content)]


def broadcast_object(value: Any) -> Any:
    """The value of rank 0, on all processes."""
    return all_gather_objects(value if rank() == 0 else None)[0]


def exists_on_main_process(file: Path) -> bool:
    """Whether rank 0 sees a file; all processes call it, so that all continue alike."""
    return bool(broadcast_object(file.is_file()))


def barrier() -> None:
    """Wait for all processes."""
    init_process_group().wait_for_everyone()
