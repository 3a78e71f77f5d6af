"""What the weights of a network need, counted while it is built without memory, and what the machine has."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_buffer_registration_hook, register_module_parameter_registration_hook

from esscher.core.bounded_files import RefusedError

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
MAX_TENSORS = 20_000  # of one network: 1,200 layers of a Transformer
SMALL = 1e7  # product of the four largest settings of a network that fits anywhere: three dimensions of a tensor, and layers
FEW_LAYERS = (3, 4)  # that the cost of many is extrapolated from


@dataclass
class WeightCount:
    """The tensors of modules, parameters and buffers, and their bytes."""

    tensors: int = 0
    size: int = 0

    def check(self, what: str, memory: int, most: int = MAX_TENSORS, more: str = "more than ") -> None:
        """Refuse what exceeds the memory, or has too many tensors."""
        if self.size > memory:
            raise RefusedError(
                f"{what} needs {more}{self.size / 2**30:,.1f} GiB for its weights, and this machine has "
                f"{memory / 2**30:,.1f} GiB. Nothing was built; use fewer or smaller layers, or a machine with more memory."
            )
        if self.tensors > most:
            raise RefusedError(
                f"{what} has {self.tensors:,} tensors of weights or more, and {most:,} are the most. Nothing was built; use "
                f"fewer layers."
            )


def machine_memory() -> int:
    """Bytes of memory that this process can have: those of the machine, or of its container."""
    limits = [psutil.virtual_memory().total]
    for file in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int(Path(file).read_text()))
    return min(limits)


@contextmanager
def bounded_weights(what: str, most: int = MAX_TENSORS) -> Iterator[WeightCount]:
    """Within the block, count the weights of modules that are built, and raise an error once they exceed the machine's memory
    or `most` tensors. Build on the device `meta`, so that counting costs no memory."""
    memory, count = machine_memory(), WeightCount()

    def add(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        if tensor is not None:
            count.tensors, count.size = count.tensors + 1, count.size + tensor.numel() * tensor.element_size()
            count.check(what, memory, most)

    hooks = [register_module_parameter_registration_hook(add), register_module_buffer_registration_hook(add)]
    try:
        yield count
    except RuntimeError as error:
        if "overflow" not in str(error).lower():
            raise
        raise RefusedError(f"{what} needs weights of a size that no machine has: {error}. Nothing was built.") from error
    finally:
        for hook in hooks:
            hook.remove()


def check_weights_fit(what: str, build: Callable[[], Any], most: int = MAX_TENSORS) -> WeightCount | None:
    """Build something on the device `meta` and raise an error if its weights do not fit, else return what they are; None for
    what cannot be built there."""
    with torch.random.fork_rng(devices=[]):
        try:
            with bounded_weights(what, most) as count, torch.device("meta"):
                build()
            return count
        except RefusedError:
            raise
        except Exception:  # the real call raises it, too, if it is an error of the settings
            return None


def check_settings_fit(what: str, settings: Any, numbers: Iterable[float], build: Callable[[Any], Any]) -> None:
    """Refuse settings, a dataclass with `layers`, of a network that does not fit, by what networks of few layers need. Where
    `numbers`, those of the settings, are all small, nothing is built, since building on `meta` is slow."""
    if math.prod(sorted(numbers)[-4:]) < SMALL:
        return
    if settings.layers > FEW_LAYERS[-1]:
        try:
            fewer = [replace(settings, layers=layers) for layers in FEW_LAYERS]
        except (TypeError, ValueError):  # layers follow from other settings, or are of a certain number
            fewer = []
        counts = [check_weights_fit(what, partial(build, few)) for few in fewer]
        if counts and counts[0] is not None and counts[1] is not None:
            (first, second), further = (counts[0], counts[1]), settings.layers - FEW_LAYERS[-1]
            tensors = second.tensors + further * (second.tensors - first.tensors)
            size = second.size + further * (second.size - first.size)
            return WeightCount(max(tensors, settings.layers), size).check(what, machine_memory(), more="")
    check_weights_fit(what, lambda: build(settings))


def numbers_in(settings: Any) -> Iterator[float]:
    """All numbers above 1 in nested settings."""
    if isinstance(settings, Mapping | list | tuple):
        for value in settings.values() if isinstance(settings, Mapping) else settings:
            yield from numbers_in(value)
    elif isinstance(settings, int | float) and settings > 1:
        yield settings
