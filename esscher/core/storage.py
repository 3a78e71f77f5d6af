"""Atomic files: a kill or a full disk never leaves an incomplete file. Tensors are safetensors, never pickles, with a digest of
their content, so that corruption is found on reading; sharded tensors (`esscher.bases.fsdp`) are written whole."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from esscher.core.bounded_files import RefusedError
from esscher.core.distributed import rank, world_size

DIGEST = "digest"


class SavingError(OSError):
    """A failed write; `what` says which file and why, the message also what to do."""

    def __init__(self, number: int, what: str, advice: str = "What was there before is unchanged; make room and try again."):
        super().__init__(number, f"{what} {advice}")
        self.what = what

    def __str__(self) -> str:
        return str(self.strerror)


def write_file(path: Path, content: bytes) -> None:
    """Write `content` to `path`, atomically."""
    _replace(path, lambda where: where.write_bytes(content), len(content))


def write_json(path: Path, value: Any) -> None:
    """Write a value to `path` as indented JSON, atomically."""
    write_file(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors to `path`, atomically, with the digest of their content."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    size = sum(tensor.nbytes for tensor in whole.values())
    _replace(path, lambda where: save_file(whole, where, metadata={DIGEST: digest(whole)}), size)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file; a missing, truncated or changed file is an error that names it."""
    with open_tensors(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        stated = (file.metadata() or {}).get(DIGEST)
    if stated is not None and stated != digest(tensors):
        raise ValueError(f"The file {path} is corrupted: its content has changed. Nothing was loaded; restore it.")
    return tensors


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """A file of tensors, which is open within the block; opening it reads and checks its header only."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}. Nothing was loaded; check the path, or train the model anew.")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise RefusedError(f"The file {path} is corrupted: {error}. Nothing was loaded; restore it from a copy.") from error


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of the tensors: equal for equal names, shapes and values; bfloat16 and float16 count as the same in float32."""
    content_hash = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        tensor = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
        content_hash.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        content_hash.update(tensor.reshape(-1).numpy().view("uint8").data if tensor.numel() else b"")
    return content_hash.hexdigest()


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor; if it is sharded, all processes must call this."""
    sharded: Any = tensor
    return sharded.full_tensor() if is_sharded(tensor) else tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is sharded over several processes."""
    if world_size() == 1:
        return False
    from torch.distributed.tensor import DTensor  # imported here because it takes seconds

    return isinstance(tensor, DTensor)


def shard_like(other: Tensor, tensor: Tensor) -> Tensor:
    """Shard a whole tensor like `other`; move it to its device otherwise."""
    if not is_sharded(other):
        return tensor.to(other.device)
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = other
    return distribute_tensor(tensor.to(other.device), sharded.device_mesh, sharded.placements, src_data_rank=None)


def module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of a module, unsharded; tied ones under their first name only."""
    return {name: full_tensor(tensor) for name, tensor in local_module_tensors(module).items()}


def local_module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The same tensors as the module holds them: the local shards, if it is sharded."""
    unique: dict[Any, str] = {}
    state = module.state_dict(keep_vars=True)
    for name, tensor in state.items():
        unique.setdefault(tensor if isinstance(tensor, nn.Parameter) else (name,), name)
    return {name: state[name].detach() for name in unique.values()}


def load_module_tensors(module: nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Load what `module_tensors` returned; a name or shape that does not fit is an error, before anything changes."""
    expected = local_module_tensors(module)
    for name in [*expected, *tensors]:
        if name not in tensors or name not in expected:
            where = "is not in the file" if name not in tensors else "is not part of the model"
            raise ValueError(f"{source} does not fit the model: {name!r} {where}. Nothing was loaded; use its own config.")
        if expected[name].shape != tensors[name].shape:
            raise ValueError(
                f"{source} does not fit the model: {name!r} has shape {tuple(tensors[name].shape)} in the file and "
                f"{tuple(expected[name].shape)} in the model (another vocabulary or width). Nothing was loaded; use its "
                f"own config."
            )
    with torch.no_grad():
        for name, tensor in expected.items():
            tensor.copy_(shard_like(tensor, tensors[name]))


def make_folder(folder: Path) -> None:
    """Create a folder and those above it, so that they survive a power cut."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        fsync_folder(folder.parent)


def fsync_folder(folder: Path) -> None:
    """Make the renames inside a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def saving_error(path: Path, error: Exception, size: int) -> SavingError:
    """The error of a failed write, with the bytes needed and free."""
    if isinstance(error, SavingError):
        return error
    number = getattr(error, "errno", None)
    reason = str(error).rpartition("I/O error: ")[2] if number is None else os.strerror(number)
    free = shutil.disk_usage(path.parent).free if path.parent.is_dir() else 0
    return SavingError(number or errno.EIO, f"Could not write {path} ({size:,} bytes; {free:,} free): {reason}.")


def _replace(path: Path, fill: Callable[[Path], object], size: int) -> None:
    beside = path.with_name(f".{path.name}.{rank()}-{os.getpid()}.tmp")  # `folder_lock` removes those of killed processes
    try:
        make_folder(path.parent)
        fill(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
        fsync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError | SafetensorError):
            raise saving_error(path, error, size) from error
        raise
