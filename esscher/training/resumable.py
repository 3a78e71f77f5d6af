"""Work in items that are saved in a folder and divided among processes, so that interrupted work resumes to the same result.

An item uses its own random stream, so its result does not depend on the process or on other items. Processes of `torchrun`
divide the missing items, and all return all results; without a folder they exchange the bytes of the files.
"""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from esscher.bases.fsdp import gather_in_lockstep
from esscher.core.distributed import rank, world_size
from esscher.core.draws import Draws, Sampler, checked_sampler
from esscher.core.folder_lock import locked_folder
from esscher.core.interruption import Interrupted, stop_requested, stops_at_boundaries
from esscher.core.progress import Throttle
from esscher.core.randomness import Rng
from esscher.core.space import Sequences
from esscher.core.storage import digest, read_tensors, write_tensors
from esscher.core.target import Tilted
from esscher.estimators.log_z import log_z
from esscher.training.collectives import all_gather_bytes, all_gather_objects, barrier, broadcast_object, init_process_group
from esscher.training.made_with import claim_folder, proposal_digests, sequences_fingerprint, target_digests

Result = TypeVar("Result")


@dataclass(frozen=True)
class WorkItem(Generic[Result]):
    """A part of the work: the name of its file, its size for the progress report, and the function that makes it."""

    name: str
    size: int
    make: Callable[[], Result]


def run_resumable(
    work: Sequence[WorkItem[Result]],
    *,
    folder: Path | None,
    made_with: Mapping[str, Any],
    read: Callable[[Path], Result],
    write: Callable[[Path, Result], None],
    remake: bool = False,
    say: Callable[[str], None] = lambda text: None,
    what: str = "drawn",
    so_far: Callable[[Sequence[Result]], str] = lambda parts: "",
) -> list[Result]:
    """The results of all items in order; items with a file in the folder are read, the others made.

    Args:
        made_with: what the files belong to, by name; files of something else are refused, or made anew if `remake`.
        so_far: text about the results that this process has made, for the progress report.
    """
    init_process_group()
    with locked_folder(folder), stops_at_boundaries(folder is not None):
        if folder is not None:
            claim_folder(folder, made_with, remake=remake, say=say)
        return _run(work, folder, read, write, say, what, so_far)


def _run(
    work: Sequence[WorkItem[Result]],
    folder: Path | None,
    read: Callable[[Path], Result],
    write: Callable[[Path, Result], None],
    say: Callable[[str], None],
    what: str,
    so_far: Callable[[Sequence[Result]], str],
) -> list[Result]:
    files = [None if folder is None else folder / f"{item.name}.safetensors" for item in work]
    missing = broadcast_object([number for number, file in enumerate(files) if file is None or not file.is_file()])
    total, to_make, done = sum(item.size for item in work), sum(work[number].size for number in missing), 0
    results: dict[int, Result] = {}
    throttle = Throttle()
    with gather_in_lockstep():
        for number in missing[rank() :: world_size()]:
            results[number] = work[number].make()
            if (file := files[number]) is not None:
                write(file, results[number])
            done += work[number].size * world_size()  # as if all processes were equally fast
            left = max(0, to_make - done)
            if throttle.due(force=left == 0 and throttle.reports > 0):
                rate, seconds = throttle.rate(done), throttle.seconds_left(done, to_make)
                progress = f"{what} {total - left:,} of {total:,}  {rate:,.0f}/s  {seconds:,.0f} s left"
                say(progress + so_far(list(results.values())))
            if folder is not None and (signal := stop_requested()) is not None:
                raise Interrupted(
                    signal, f"{total - left:,} of {total:,} {what} are saved in {folder}; --resume goes on there."
                )
    if folder is None:
        results |= _gather_results(results, read, write)
    else:
        barrier()
    for number, file in enumerate(files):
        if number not in results and file is not None:
            if not file.is_file():
                raise RuntimeError(
                    f"Another process made {work[number].name}, and it is not in {folder} here: the processes do not share "
                    f"this folder. What each of them made is saved; give a folder that all of them see."
                )
            results[number] = read(file)
    return [results[number] for number in range(len(work))]


def _gather_results(
    local_results: dict[int, Result], read: Callable[[Path], Result], write: Callable[[Path, Result], None]
) -> dict[int, Result]:
    """The results of the other processes."""
    if world_size() == 1:
        return {}
    results = {}
    with tempfile.TemporaryDirectory() as place:
        local, numbers = Path(place, "local.safetensors"), all_gather_objects(list(local_results))
        for index in range(max(map(len, numbers))):
            if index < len(local_results):
                write(local, list(local_results.values())[index])
            for process, content in enumerate(all_gather_bytes(local.read_bytes() if index < len(local_results) else b"")):
                if process != rank() and content:
                    other = Path(place, f"{process}-{index}.safetensors")  # one file each, because `read` may map it
                    other.write_bytes(content)
                    results[numbers[process][index]] = read(other)
    return results


ROWS_BY_DRAWS = 4096  # rows per item, also what one pass of a small network holds
ROWS_BY_PROMPTS = 1024  # rows per item: seconds or minutes of work


@checked_sampler
@dataclass(frozen=True)
class ResumableByDraws:
    """Draws of another sampler, some after all prompts per item; complete shards serve a later call for more draws, too."""

    sampler: Sampler
    folder: Path | None = None
    rows: int = ROWS_BY_DRAWS
    say: Callable[[str], None] = lambda text: None
    name: str = "draws"  # prefix of the file names
    made_with: Mapping[str, Any] | None = None  # what the files belong to, as `target_digests` has it by default
    remake: bool = False  # whether files of something else are made anew, instead of refused

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        made_with = self.made_with
        if made_with is None and self.folder is not None:
            digests = {**target_digests(target), **proposal_digests(getattr(self.sampler, "proposal", None))}
            made_with = {**digests, "prompts": sequences_fingerprint(prompts), "rng": repr(rng)}
        size = max(1, self.rows // len(prompts))

        def shard(number: int) -> WorkItem[Draws]:
            wanted = min(size, draws - number * size)
            make = partial(self.sampler, target, prompts, wanted, rng=rng.stream("shard", number))
            return WorkItem(f"{self.name}-{number:05d}" + f"-{wanted}" * (wanted < size), wanted * len(prompts), make)

        work = [shard(number) for number in range(-(-draws // size))]
        shapes = [(len(prompts), item.size // len(prompts)) for item in work]
        return Draws.cat(_run_draws(work, shapes, self.folder, made_with or {}, self.say, self.remake, _running_log_z), 1)


def _running_log_z(parts: Sequence[Draws]) -> str:
    """log Z of a single prompt by the draws so far; empty where they do not estimate it."""
    if len(parts[0].log_weight) > 1 or not all(part.estimates_z and part.independent for part in parts):
        return ""
    estimate = log_z(Draws.cat(parts, 1))
    if estimate.high == math.inf:  # all weights are equal
        return ""
    return f"  log Z so far {estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"


@checked_sampler
@dataclass(frozen=True)
class ResumableByPrompts:
    """Draws of another sampler, after some of the prompts per item; many draws after a single prompt are divided, too. Files
    are named by the prompts, the number of draws and the length of the points, and belong to one target: use a folder for each
    sampler and seed. `Draws.info` is dropped."""

    sampler: Sampler
    folder: Path | None = None
    rows: int = ROWS_BY_PROMPTS
    say: Callable[[str], None] = lambda text: None
    made_with: Mapping[str, Any] | None = None  # what the files belong to, as `target_digests` has it by default
    remake: bool = False  # whether files of something else are made anew, instead of refused

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        made_with = self.made_with
        if made_with is None:
            proposal = getattr(self.sampler, "proposal", None)
            made_with = {} if self.folder is None else {**target_digests(target), **proposal_digests(proposal)}
        if len(prompts) == 1 and draws > self.rows:
            name = _name(prompts, draws, target)
            by_draws = ResumableByDraws(self.sampler, self.folder, self.rows, self.say, name, made_with, self.remake)
            return by_draws(target, prompts, draws, rng=rng)
        size = max(1, self.rows // draws)

        def item(number: int) -> WorkItem[Draws]:
            some = prompts.rows(slice(number * size, (number + 1) * size))
            make = partial(self.sampler, target, some, draws, rng=rng.stream("piece", number))
            return WorkItem(_name(some, draws, target), len(some) * draws, make)

        work = [item(number) for number in range(-(-len(prompts) // size))]
        shapes = [(item.size // draws, draws) for item in work]
        return Draws.cat(_run_draws(work, shapes, self.folder, made_with, self.say, self.remake), 0)


def _run_draws(
    work: Sequence[WorkItem[Draws]],
    shapes: Sequence[tuple[int, int]],
    folder: Path | None,
    made_with: Mapping[str, Any],
    say: Callable[[str], None],
    remake: bool = False,
    so_far: Callable[[Sequence[Draws]], str] = lambda parts: "",
) -> list[Draws]:
    """The draws of all items; a file with draws of another shape, prompts and draws of each, is refused."""
    parts = run_resumable(
        work, folder=folder, made_with=made_with, read=read_draws, write=write_draws, remake=remake, say=say, so_far=so_far
    )
    for item, shape, draws in zip(work, shapes, parts, strict=True):
        if draws.log_weight.shape != shape:
            raise ValueError(
                f"{item.name} in {folder} holds {tuple(draws.log_weight.shape)} draws where {shape} are asked for: it belongs "
                f"to a run with other settings. Nothing was changed; use another folder, or remove this one."
            )
    return parts


def _name(prompts: Sequences, draws: int, target: Tilted) -> str:
    sizes = torch.tensor([draws, target.space.max_length])
    return digest({"tokens": torch.where(prompts.inside, prompts.tokens, 0), "start": prompts.start, "sizes": sizes})


def write_draws(file: Path, draws: Draws) -> None:
    """Write draws as a file of tensors."""
    tensors: dict[str, Tensor] = {
        **{"tokens": draws.x.tokens, "start": draws.x.start, "stop": draws.x.stop},
        **{"log_weight": draws.log_weight, "log_base": draws.log_base},
        "facts": torch.tensor([draws.estimates_z, draws.independent, draws.cost]),
        "max_log_ratio": torch.tensor(draws.max_log_ratio, dtype=torch.float64),
    }
    write_tensors(file, tensors | {f"info.{name}": value for name, value in draws.info.items()})


def read_draws(file: Path) -> Draws:
    """Read what `write_draws` wrote."""
    tensors = read_tensors(file)
    estimates_z, independent, cost = tensors["facts"].tolist()
    x = Sequences(tensors["tokens"], tensors["start"], tensors["stop"])
    info = {name.removeprefix("info."): value for name, value in tensors.items() if name.startswith("info.")}
    ratio = float(tensors["max_log_ratio"])
    return Draws(x, tensors["log_weight"], tensors["log_base"], bool(estimates_z), bool(independent), cost, info, ratio)
