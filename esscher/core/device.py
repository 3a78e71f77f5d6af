"""Where a part computes, and in what precision.

A model is placed once, when it is loaded: `place(part, device)` moves networks in place and returns automata, wrappers and
energies with their tensors moved. After that every part follows: samplers and scoring send sequences to the device of the
weights (`on_device_of`), and return them on the device that they came from. Sums of weights and intervals are float64 on the
CPU, because MPS has no float64.
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from esscher.core.config import DtypeName
from esscher.core.distributed import local_rank, world_size
from esscher.core.space import Sequences

Part = TypeVar("Part")


def resolve_device(name: str | torch.device = "auto") -> torch.device:
    """The device that a name stands for; `auto` is the GPU if there is one, then MPS, then the CPU. A GPU without a number is
    the current one; of several processes, each has its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"There is no device {name!r}; name auto, cpu, cuda, cuda:1 or mps. Nothing was loaded.") from error
    if device.type == "cuda":
        count, index = torch.cuda.device_count() if torch.cuda.is_available() else 0, device.index
        if index is None and count:
            index = local_rank() if world_size() > 1 else torch.cuda.current_device()
        if index is None or index >= count:
            process = f" for the process of local rank {index}" if device.index is None and count else ""
            raise ValueError(
                f"There is no device {name!r}{process} on this machine, which has {count} CUDA devices (torch "
                f"{torch.__version__}). Nothing was loaded; `esscher env` shows the devices."
            )
        return torch.device("cuda", index)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("This machine has no MPS device. Nothing was loaded; `esscher env` shows the devices.")
    return device


def resolve_dtype(name: DtypeName, device: torch.device) -> torch.dtype | None:
    """The dtype that a name stands for; `auto` is float32 on a CPU, and elsewhere None: that of the saved weights."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def device_of(*parts: Any) -> torch.device | None:
    """The device of the first weights or tensors among the parts and what they hold; None if they hold none."""
    return next((tensor.device for part in parts for tensor in _tensors(part, set())), None)


def on_device_of(x: Sequences, *parts: Any) -> Sequences:
    """The rows on the device of the parts."""
    device = device_of(*parts)
    return x if device is None else x.to(device)


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64; MPS does not."""
    return device.type != "mps"


def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device that has no float64."""
    return torch.float64 if has_float64(device) else torch.float32


def widest(values: Tensor) -> Tensor:
    """The values in float64, or in float32 on a device that has no float64."""
    return values.to(widest_float(values.device))


def place(part: Part, device: torch.device | str, dtype: torch.dtype | None = None) -> Part:
    """The part on a device: networks are moved in place, of all else a copy is returned. What has a method `to` moves itself.
    The dtype is for networks only."""
    if isinstance(part, nn.Module):
        whole: nn.Module = part
        inside = set(whole.modules())  # they move with it, and may choose their dtype
        for module in (*(held for held in _held_modules(whole) if held not in inside), whole):
            _move(module, device, dtype)
        return part
    if isinstance(part, Tensor) and part.dtype == torch.float64 and not has_float64(torch.device(device)):
        return part.to(device, torch.float32)  # type: ignore[return-value]
    if hasattr(part, "to") and not isinstance(part, type):
        moved_by_itself: Part = part.to(device)
        return moved_by_itself
    if isinstance(part, tuple | list):
        values = [place(value, device, dtype) for value in part]
        return type(part)(*values) if hasattr(part, "_fields") else type(part)(values)
    if not _holds_tensors(part):
        return part
    if is_dataclass(part) and not isinstance(part, type):
        named = {entry.name: getattr(part, entry.name) for entry in fields(part) if entry.init}
        return replace(part, **{name: place(value, device, dtype) for name, value in named.items()})
    moved = copy(part)
    vars(moved).update({name: place(value, device, dtype) for name, value in vars(part).items()})
    return moved


def _move(module: nn.Module, device: torch.device | str, dtype: torch.dtype | None) -> None:
    """Move a module and convert it, but for the tables that models of `transformers` keep in float32: rotary frequencies."""
    theirs = [inner for inner in module.modules() if type(inner).__module__.startswith("transformers.")]
    kept = [(inner, name, buffer) for inner in theirs for name, buffer in inner.named_buffers(recurse=False)]
    if not has_float64(torch.device(device)):
        module._apply(lambda tensor: tensor.float() if tensor.dtype == torch.float64 else tensor)  # type: ignore[no-untyped-call]
    module.to(device=device, dtype=dtype)
    for inner, name, buffer in kept if dtype is not None else ():
        setattr(inner, name, buffer.to(device))


def _holds_tensors(part: Any) -> bool:
    return next(_tensors(part, set()), None) is not None


def _held_modules(module: nn.Module) -> Iterator[nn.Module]:
    """Networks that a module uses without owning them, such as the base that an energy reads with."""
    for inner in module.modules():
        for value in vars(inner).values():
            for item in value if isinstance(value, tuple) else ():
                if isinstance(item, nn.Module):
                    yield item


def _tensors(part: Any, seen: set[int]) -> Iterator[Tensor]:
    if id(part) in seen:
        return
    seen.add(id(part))
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, nn.Module):
        yield from part.parameters()
        yield from part.buffers()
        for held in _held_modules(part):
            yield from _tensors(held, seen)
    elif isinstance(part, tuple | list):
        for value in part:
            yield from _tensors(value, seen)
    elif type(part).__module__.startswith("esscher.") and hasattr(part, "__dict__"):
        for value in vars(part).values():
            yield from _tensors(value, seen)
