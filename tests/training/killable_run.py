"""A training run in a process of its own, which may be killed at any of its events.

An event is a pass through the objective, in training or in evaluation, or a step of writing a checkpoint (a
flush, a rename). Run as a program, it is what torchrun starts.
"""

import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


class Events:
    """Counts, and does something at one of the counts."""

    def __init__(self, at: int, then: Callable[[], None]):
        self.count, self.at, self.then = 0, at, then

    def __call__(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.then()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fill_disk() -> None:
    """From now on the system refuses files of more than 3,000 bytes, as a full disk would."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))


def train(
    folder: str, *, resume: bool, at: int = -1, disk: bool = False, dropout: float = 0.3, module: str = "tiny_run"
) -> None:
    """Run the toy of a module; in the end a result file of each process holds its weights and the number of events."""
    import torch
    from tiny_run import fingerprint

    toy = import_module(module)
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    events = Events(at if rank == 0 else -1, fill_disk if disk else kill)
    replace, fsync = os.replace, os.fsync
    os.replace = lambda *place: (events(), replace(*place))[1]  # type: ignore[assignment]
    os.fsync = lambda handle: (events(), fsync(handle))[1]  # type: ignore[assignment]
    base = toy.new_base(width=12, dropout=dropout)
    outcome = {}
    try:
        record = toy.run(base, folder, resume=resume, told=events)
        outcome = {"hash": fingerprint(base), "events": events.count, "history": list(record.history)}
    except OSError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        outcome = {"error": str(error), "kind": type(error).__name__}
    Path(folder, f"result-{rank}.json").write_text(json.dumps(outcome))


def _child(place: dict[str, str], arguments: dict) -> None:
    os.environ.update(place)
    train(**arguments)


def start(folder: Path, *, processes: int = 1, **arguments) -> list[int]:
    """Run `train` in new processes that see each other; their exit codes, negative for a signal."""
    from forks import forks

    context = forks()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    children = []
    for rank in range(processes):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "HF_HUB_OFFLINE": "1"}
        child = context.Process(target=_child, args=(place if processes > 1 else {}, {"folder": str(folder), **arguments}))
        child.start()
        children.append(child)
    children[0].join()
    for child in children[1:]:
        child.join(30 if children[0].exitcode == 0 else 0)
        child.kill()  # its partner is dead
        child.join()
    return [child.exitcode for child in children]


def outcome(folder: Path, rank: int = 0) -> dict:
    return json.loads((folder / f"result-{rank}.json").read_text())


if __name__ == "__main__":
    train(sys.argv[1], resume=sys.argv[2] == "resume", at=int(sys.argv[3]))
