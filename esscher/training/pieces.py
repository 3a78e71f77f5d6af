"""Work in pieces that a folder keeps and processes share: work that was stopped goes on, to the same result.

    parts = in_pieces(work, folder=folder, read=read_draws, write=write_draws, say=say)

A piece is made from its own stream of chance, so it matters neither which process makes it nor which others were there before.
Processes that `torchrun` started share what is missing, and all of them have all pieces in the end. A process that is killed
loses the piece that it was making. Without a folder pieces travel between processes as the files that they would have been.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from esscher.bases.turns import in_turns
from esscher.launch import rank, started
from esscher.training.processes import all_here, bytes_of_all, from_all, from_first, join

Part = TypeVar("Part")
PAUSE = 10.0  # seconds between two lines


@dataclass(frozen=True)
class Piece(Generic[Part]):
    """What makes a part of the work; `size` is what it counts for while the work goes on, `name` is that of its file."""

    name: str
    size: int
    make: Callable[[], Part]


def in_pieces(
    work: Sequence[Piece[Part]],
    *,
    folder: Path | None,
    read: Callable[[Path], Part],
    write: Callable[[Path, Part], None],
    say: Callable[[str], None] = lambda text: None,
    what: str = "drawn",
    so_far: Callable[[Sequence[Part]], str] = lambda parts: "",
) -> list[Part]:
    """All parts in order; those with a file in the folder are read, the others made. `so_far` are words on the parts that this
    process has made, for those who wait."""
    join()
    missing = from_first([number for number, piece in enumerate(work) if not _is_file(folder, piece.name)])
    own = missing[rank() :: started()]
    made: dict[int, Part] = {}
    told = _Told(say, what, sum(piece.size for piece in work), sum(work[number].size for number in missing))
    with in_turns():
        for number in own:
            made[number] = work[number].make()
            if folder is not None:
                write(folder / f"{work[number].name}.safetensors", made[number])
            told(work[number].size, partial(so_far, list(made.values())))
    if folder is None:
        made |= _exchanged(made, read, write)
    else:
        all_here()
    return [made[number] if number in made else _read(folder, piece.name, read) for number, piece in enumerate(work)]


def _exchanged(made: dict[int, Part], read: Callable[[Path], Part], write: Callable[[Path, Part], None]) -> dict[int, Part]:
    """The parts that other processes made."""
    if started() == 1:
        return {}
    found = {}
    with tempfile.TemporaryDirectory() as place:
        own, numbers = Path(place, "own.safetensors"), from_all(list(made))
        for turn in range(max(map(len, numbers))):
            if turn < len(made):
                write(own, list(made.values())[turn])
            for process, content in enumerate(bytes_of_all(own.read_bytes() if turn < len(made) else b"")):
                if process != rank() and content:
                    other = Path(place, f"{process}-{turn}.safetensors")  # never written again: what is read may map it
                    other.write_bytes(content)
                    found[numbers[process][turn]] = read(other)
    return found


class _Told:
    """Says now and then how far the work is; what other processes make counts as if they were as fast."""

    def __init__(self, say: Callable[[str], None], what: str, whole: int, missing: int):
        self.say, self.what, self.whole, self.missing, self.done = say, what, whole, missing, 0
        self.begun = self.spoken = time.monotonic()

    def __call__(self, size: int, so_far: Callable[[], str]) -> None:
        self.done += size * started()
        now, left = time.monotonic(), max(0, self.missing - self.done)
        if now - self.spoken > PAUSE or (left == 0 and self.spoken > self.begun):
            rate, self.spoken = self.done / (now - self.begun), now
            done = f"{self.what} {self.whole - left:,} of {self.whole:,}  {rate:,.0f}/s  {left / rate:,.0f} s left"
            self.say(done + so_far())


def _is_file(folder: Path | None, name: str) -> bool:
    return folder is not None and (folder / f"{name}.safetensors").is_file()


def _read(folder: Path | None, name: str, read: Callable[[Path], Part]) -> Part:
    assert folder is not None
    if not _is_file(folder, name):
        raise RuntimeError(
            f"Another process made {name}, and it is not in {folder} here: the processes do not share this folder. What each "
            f"of them made is kept; give a folder that all of them see."
        )
    return read(folder / f"{name}.safetensors")
