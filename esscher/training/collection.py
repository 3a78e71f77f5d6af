"""Weighted draws kept on disk, piece by piece: long drawing that was stopped goes on, to the same draws.

    collect    many draws of few prompts, some draws of all of them at a time
    InPieces   few draws of many prompts, all draws of some of them at a time: a sampler like any other

A piece is drawn from its own stream of chance, so it does not matter which of them were there before.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from esscher.draws import Draws, Sampler, side_by_side
from esscher.estimators.log_z import log_z
from esscher.randomness import Rng
from esscher.space import Sequences, concatenate
from esscher.storage import digest, read_tensors, write_tensors
from esscher.target import Tilted

SHARD = 4096  # rows, which is also what a pass of a small network holds
PIECE = 1024  # rows of draws after some of many prompts: seconds or minutes of work
PAUSE = 10.0  # seconds between two lines


def collect(
    sampler: Sampler,
    target: Tilted,
    prompts: Sequences,
    draws: int,
    *,
    rng: Rng,
    folder: Path | None = None,
    shard: int = SHARD,
    say: Callable[[str], None] = lambda text: None,
) -> Draws:
    """`draws` for each prompt; with a `folder`, shards already there are read instead of drawn."""
    size = max(1, shard // len(prompts))
    parts: list[Draws] = []
    started = spoken = time.monotonic()
    fresh = drawn = 0  # candidates, and draws of each prompt, that were made now
    for number, first in enumerate(range(0, draws, size)):
        wanted = min(size, draws - first)
        file = None if folder is None else folder / f"draws-{number:05d}.safetensors"
        if file is not None and file.is_file():
            parts.append(read_draws(file))
            _check(file, parts[-1], len(prompts), wanted)
            continue
        part = sampler(target, prompts, wanted, rng=rng.stream("shard", number))
        if file is not None:
            write_draws(file, part)
        parts.append(part)
        fresh, drawn = fresh + part.cost, drawn + wanted
        now = time.monotonic()
        if now - spoken > PAUSE or (first + size >= draws and spoken > started):
            spoken, done = now, min(first + size, draws)
            rate = fresh / (now - started)
            left = (now - started) / drawn * (draws - done)
            told = f"drawn {done * len(prompts):,} of {draws * len(prompts):,}  {rate:,.0f} candidates/s  {left:,.0f} s left"
            say(told + _so_far(parts))
    return side_by_side(parts)


def _so_far(parts: Sequence[Draws]) -> str:
    """log Z of the one prompt by the draws that there are; nothing where they do not tell."""
    if len(parts[0].log_weight) > 1 or not all(part.estimates_z and part.independent for part in parts):
        return ""
    found = log_z(side_by_side(parts))
    return f"  log Z so far {found.value:.4g} [{found.low:.4g}, {found.high:.4g}]"


@dataclass(frozen=True)
class InPieces:
    """Draws of another sampler, after some prompts at a time; with a `folder`, pieces already there are read instead.

    A piece is known by its prompts, its number of draws and the length of its points. Whose draws they are is for the owner
    of the folder to watch. What a sampler tells beside its draws (`info`) is left out.
    """

    sampler: Sampler
    folder: Path | None = None
    rows: int = PIECE
    say: Callable[[str], None] = lambda text: None

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        size = max(1, self.rows // draws)
        parts: list[Draws] = []
        started = spoken = time.monotonic()
        fresh = 0  # prompts that were drawn after now
        for number, first in enumerate(range(0, len(prompts), size)):
            some = prompts.rows(slice(first, first + size))
            file = None if self.folder is None else self.folder / f"{_name(some, draws, target)}.safetensors"
            if file is not None and file.is_file():
                parts.append(read_draws(file))
                _check(file, parts[-1], len(some), draws)
                continue
            parts.append(self.sampler(target, some, draws, rng=rng.stream("piece", number)))
            if file is not None:
                write_draws(file, parts[-1])
            fresh, now = fresh + len(some), time.monotonic()
            if now - spoken > PAUSE:
                spoken, done = now, first + len(some)
                rate, left = fresh * draws / (now - started), (now - started) / fresh * (len(prompts) - done)
                self.say(f"drawn after {done:,} of {len(prompts):,} prompts  {rate:,.0f} draws/s  {left:,.0f} s left")
        return one_below_the_other(parts)


def one_below_the_other(parts: Sequence[Draws]) -> Draws:
    """As many draws of different prompts as one, without `info`."""
    return Draws(
        concatenate([part.x for part in parts]),
        torch.cat([part.log_weight for part in parts]),
        torch.cat([part.log_base for part in parts]),
        estimates_z=all(part.estimates_z for part in parts),
        independent=all(part.independent for part in parts),
        cost=sum(part.cost for part in parts),
    )


def _name(prompts: Sequences, draws: int, target: Tilted) -> str:
    inside = torch.arange(prompts.tokens.shape[1], device=prompts.tokens.device) < prompts.start[:, None]
    sizes = torch.tensor([draws, target.space.max_length])
    return digest({"tokens": torch.where(inside, prompts.tokens, 0), "start": prompts.start, "sizes": sizes})


def write_draws(file: Path, draws: Draws) -> None:
    """Draws as a file of tensors."""
    facts = torch.tensor([draws.estimates_z, draws.independent, draws.cost])
    tensors: dict[str, Tensor] = {
        "tokens": draws.x.tokens,
        "start": draws.x.start,
        "stop": draws.x.stop,
        "log_weight": draws.log_weight,
        "log_base": draws.log_base,
        "facts": facts,
    }
    write_tensors(file, tensors | {f"info.{name}": value for name, value in draws.info.items()})


def read_draws(file: Path) -> Draws:
    """What `write_draws` wrote."""
    found = read_tensors(file)
    estimates_z, independent, cost = found["facts"].tolist()
    x = Sequences(found["tokens"], found["start"], found["stop"])
    info = {name.removeprefix("info."): value for name, value in found.items() if name.startswith("info.")}
    return Draws(x, found["log_weight"], found["log_base"], bool(estimates_z), bool(independent), cost, info)


def _check(file: Path, draws: Draws, prompts: int, wanted: int) -> None:
    if draws.log_weight.shape != (prompts, wanted):
        raise ValueError(
            f"{file} holds {tuple(draws.log_weight.shape)} draws where {(prompts, wanted)} are asked for: it belongs to a run "
            f"with other settings. Nothing was drawn or changed; use another folder, or remove this one."
        )
