"""A simulated CUDA device for machines without one: `start()` before anything asks whether there is one.

Tensors on "cuda" are real tensors of torch's dispatcher (CUDA key, CUDA autograd and autocast, `is_cuda`); their memory is the
host's and their kernels are those of the CPU. Mixed devices, CPU generators for device tensors and `.numpy()` of a device
tensor are refused as on a GPU; which operators compare devices is read from torch's own `native_functions.yaml`. Kernel
launches, calls for which the host would wait for the GPU, and bytes in use (`torch.cuda.max_memory_allocated`) are counted.

What it leaves out: the numbers of CUDA's kernels (order of sums, TF32, atomics: here they are the CPU's to the last bit),
speed, the room that kernels need while they run, streams, events, graphs, pinned memory, NCCL, a second device, operators that
only CUDA has (LSTM and GRU are written out).
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from shutil import which
from types import SimpleNamespace
from typing import Any

import torch
import torch.cuda.random
import yaml
from torch._decomp import decompositions
from torch.utils.cpp_extension import _get_build_directory, load

FACTS = {
    "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0, "is_bf16_supported": True,
    "get_device_capability": (9, 0), "get_device_name": "simulated", "synchronize": None, "empty_cache": None,
    "memory_reserved": 0,
    "mem_get_info": (2**36, 2**36), "set_device": None, "ipc_collect": None, "_is_in_bad_fork": False, "_lazy_init": None,
    "get_device_properties": SimpleNamespace(name="simulated", major=9, minor=0, total_memory=2**36, multi_processor_count=1),
    "is_current_stream_capturing": False, "_exchange_device": 0, "_maybe_exchange_device": 0,
}  # fmt: skip
RECURRENT = {
    "lstm.input": decompositions.lstm_impl, "lstm.data": decompositions.lstm_data_impl,
    "gru.input": decompositions.gru_impl, "gru.data": decompositions.gru_impl_data,
}  # fmt: skip


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    if attn_mask is not None and attn_mask.dtype == torch.bool:  # the plain formula adds a mask, whatever its dtype
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    return torch._scaled_dot_product_attention_math(query, key, value, attn_mask, *args, **kwargs)[0]


COMPOSED: dict[str, Callable[..., Any]] = {
    "_fused_rms_norm": decompositions._fused_rms_norm,
    "scaled_dot_product_attention": _attention,
}
LIBRARY = torch.library.Library("aten", "IMPL")


os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # ninja's own


def missing_tools() -> list[str]:
    """What has to be installed before the device can be compiled."""
    return [tool for tool in ("g++", "ninja") if which(tool) is None]


def start() -> None:
    """Make the device, unless there is a real one. Compiled once, in 20 to 40 seconds."""
    if torch.cuda.is_available():
        return
    source = Path(__file__).with_suffix(".cpp")
    name = f"simulated_cuda_{sha256(source.read_bytes()).hexdigest()[:8]}"
    folder = Path(_get_build_directory(name, verbose=False))
    library = folder / f"{name}.so"  # that of another checkout, too, whose path `load` would not know again
    if library.exists() and not (folder / "lock").exists():
        torch.ops.load_library(library)
    else:
        load(name, [str(source)], is_python_module=False, extra_cflags=["-O1", "-std=c++20"])
    torch.ops.simulated_cuda.rules(*_operator_rules())
    for name, value in FACTS.items():
        for module in (torch.cuda, torch.cuda.random):
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, lambda *args, _value=value, **kwargs: _value)
    torch.cuda.memory_allocated = lambda device=None: torch.ops.simulated_cuda.memory(False)[0]
    torch.cuda.max_memory_allocated = lambda device=None: torch.ops.simulated_cuda.memory(False)[1]
    torch.cuda.reset_peak_memory_stats = lambda device=None: torch.ops.simulated_cuda.memory(True)
    torch.cuda._initialized = True
    torch.cuda.default_generators = (torch.ops.simulated_cuda.default_generator(),)
    torch.backends.cudnn.enabled = False
    for key in ("AutogradCUDA", "CUDA"):
        for name, function in RECURRENT.items():
            LIBRARY.impl(name, function, key)
    LIBRARY.impl("histc", _histc, "CUDA")
    for name, composed in COMPOSED.items():
        LIBRARY.impl(name, _fused_without_gradient(name, composed), "AutogradCUDA")
    torch.UntypedStorage.clone = _clone_storage


def _histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """Of integers, too, which the kernel of the CPU refuses."""
    return torch.histc(x.cpu().float(), bins, min, max).to(x)


def _fused_without_gradient(name: str, composed: Callable[..., Any]) -> Callable[..., Any]:
    """One kernel; where a gradient may be needed, the composition of operators that have one."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return composed(*args, **kwargs)
        with torch._C._AutoDispatchBelowAutograd():
            return getattr(torch.ops.aten, name)(*args, **kwargs)

    return run


def _clone_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return torch.empty(storage.nbytes(), dtype=torch.uint8, device=storage.device).untyped_storage().copy_(storage)


def _operator_rules() -> tuple[list[str], list[str]]:
    """The operators that do not compare the devices of all their arguments, and those that launch no kernel."""
    import torchgen

    text = (Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml").read_text()
    operators = [(entry["func"].split("(")[0], entry) for entry in yaml.load(text, Loader=yaml.CSafeLoader)]
    unchecked = [name for name, entry in operators if entry.get("device_check") == "NoCheck"]
    views = [name for name, entry in operators if "(a)" in entry["func"].split("->")[0]]
    return unchecked, [*views, "resize_", "empty.memory_format", "empty_strided"]


@dataclass
class Counts:
    """Kernel launches, calls for which the host waits, and bytes allocated on the device, by operator."""

    launches: dict[str, int] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)
    allocated: int = 0


@contextmanager
def count_operations() -> Iterator[Counts]:
    """Count what happens on the device; the counts are filled when the block ends."""
    torch.ops.simulated_cuda.counts()
    counts = Counts()
    yield counts
    for name, launches, waits, allocated in zip(*torch.ops.simulated_cuda.counts(), strict=True):
        counts.launches |= {name: launches} if launches else {}
        counts.waits |= {name: waits} if waits else {}
        counts.allocated += allocated
