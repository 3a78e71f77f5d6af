"""Weighted draws piece by piece, kept on disk and shared by processes: samplers like any other.

    InShards   many draws of few prompts, some draws of all of them at a time; `collect` is one call of it
    InPieces   few draws of many prompts, all draws of some of them at a time

Drawing that was stopped goes on, to the same draws, on as many processes as there are (`esscher.training.pieces`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from esscher.draws import Draws, Sampler, side_by_side
from esscher.estimators.log_z import log_z
from esscher.randomness import Rng
from esscher.space import Sequences, concatenate
from esscher.storage import digest, read_tensors, write_tensors
from esscher.target import Tilted
from esscher.training.pieces import Piece, in_pieces

SHARD = 4096  # rows, which is also what a pass of a small network holds
PIECE = 1024  # rows of draws after some of many prompts: seconds or minutes of work


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
    return InShards(sampler, folder, shard, say)(target, prompts, draws, rng=rng)


@dataclass(frozen=True)
class InShards:
    """Draws of another sampler, some of all prompts at a time; more draws later go on from the whole shards of fewer."""

    sampler: Sampler
    folder: Path | None = None
    rows: int = SHARD
    say: Callable[[str], None] = lambda text: None
    name: str = "draws"  # how its files begin

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        size = max(1, self.rows // len(prompts))

        def shard(number: int) -> Piece[Draws]:
            wanted = min(size, draws - number * size)
            own = partial(self.sampler, target, prompts, wanted, rng=rng.stream("shard", number))
            return Piece(f"{self.name}-{number:05d}" + f"-{wanted}" * (wanted < size), wanted * len(prompts), own)

        work = [shard(number) for number in range(-(-draws // size))]
        parts = in_pieces(work, folder=self.folder, read=read_draws, write=write_draws, say=self.say, so_far=_so_far)
        for piece, part in zip(work, parts, strict=True):
            _check(self.folder, piece, part, len(prompts))
        return side_by_side(parts)


def _so_far(parts: Sequence[Draws]) -> str:
    """log Z of the one prompt by the draws that there are; nothing where they do not tell."""
    if len(parts[0].log_weight) > 1 or not all(part.estimates_z and part.independent for part in parts):
        return ""
    found = log_z(side_by_side(parts))
    return f"  log Z so far {found.value:.4g} [{found.low:.4g}, {found.high:.4g}]"


@dataclass(frozen=True)
class InPieces:
    """Draws of another sampler, after some prompts at a time; with a `folder`, pieces already there are read instead. Many
    draws of the only prompt are parted, too.

    A piece is known by its prompts, its number of draws and the length of its points. Whose draws they are is for the owner
    of the folder to watch. What a sampler tells beside its draws (`info`) is left out.
    """

    sampler: Sampler
    folder: Path | None = None
    rows: int = PIECE
    say: Callable[[str], None] = lambda text: None

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        if len(prompts) == 1 and draws > self.rows:
            name = _name(prompts, draws, target)
            return InShards(self.sampler, self.folder, self.rows, self.say, name)(target, prompts, draws, rng=rng)
        size = max(1, self.rows // draws)

        def piece(number: int) -> Piece[Draws]:
            some = prompts.rows(slice(number * size, (number + 1) * size))
            own = partial(self.sampler, target, some, draws, rng=rng.stream("piece", number))
            return Piece(_name(some, draws, target), len(some) * draws, own)

        work = [piece(number) for number in range(-(-len(prompts) // size))]
        parts = in_pieces(work, folder=self.folder, read=read_draws, write=write_draws, say=self.say)
        for one, part in zip(work, parts, strict=True):
            _check(self.folder, one, part, one.size // draws)
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


def _check(folder: Path | None, piece: Piece[Draws], draws: Draws, prompts: int) -> None:
    wanted = prompts, piece.size // prompts
    if draws.log_weight.shape != wanted:
        raise ValueError(
            f"{piece.name} in {folder} holds {tuple(draws.log_weight.shape)} draws where {wanted} are asked for: it belongs to "
            f"a run with other settings. Nothing was changed; use another folder, or remove this one."
        )
