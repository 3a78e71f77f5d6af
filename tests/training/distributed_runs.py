"""Functions that run on several processes at once, which see each other."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def together(function: Callable[..., Any], *arguments: Any, processes: int = 2, seconds: float = 120) -> list[Any]:
    """What a function of a module of the tests gives on each process, as JSON; one that raises or hangs is an error."""
    from forks import forks

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with TemporaryDirectory() as folder:
        children = [
            forks().Process(target=_sail, args=(folder, port, rank, processes, function, arguments))
            for rank in range(processes)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join(seconds)
        codes = [child.exitcode for child in children]
        for child in children:
            child.kill()
            child.join()
        assert codes == [0] * processes, f"ended with {codes}; None is a process that did not end"
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(processes)]


def _sail(folder: str, port: int, rank: int, processes: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if processes > 1:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()})
    import torch

    torch.set_num_threads(1)
    Path(folder, f"{rank}.json").write_text(json.dumps(function(*arguments)))
