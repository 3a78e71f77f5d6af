"""Drawing in processes that see each other, one of which may be killed."""

import json
import os
import signal
import socket
from pathlib import Path


def draw(folder: str, kept: str | None, *, rank: int, processes: int, port: str, kill: int = -1) -> None:
    """Draw a little in pieces; the estimate and all weights are left in a result file of each process. The process whose turn
    it is dies before its piece number `kill`."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
    os.environ.update(place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if processes > 1 else {})
    import torch
    from random_targets import random_target

    from esscher.core.randomness import SeededRng
    from esscher.core.space import Space, empty_prompts
    from esscher.estimators.log_z import log_z
    from esscher.samplers.importance import Importance
    from esscher.training.resumable import ResumableByPrompts

    torch.set_num_threads(1)
    made = []

    def sampler(target, prompts, draws, *, rng):
        if rank == processes - 1 and len(made) == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        made.append(draws)
        return Importance()(target, prompts, draws, rng=rng)

    target = random_target(Space(3, 4, eos=0))
    drawn = ResumableByPrompts(sampler, None if kept is None else Path(kept), rows=1_000)(
        target, empty_prompts(1), 8_500, rng=SeededRng(5)
    )
    actual = {"log_z": log_z(drawn).to_dict(), "weights": drawn.log_weight.tolist(), "made": made}
    Path(folder, f"drawn-{rank}.json").write_text(json.dumps(actual))


def start(folder: Path, kept: Path | None, *, processes: int, kill: int = -1) -> list[int]:
    """Exit codes of so many processes, negative for a signal; where one dies, so do the others, as under torchrun."""
    from forks import forks

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    folder.mkdir(exist_ok=True)
    context, where = forks(), None if kept is None else str(kept)
    options = {"processes": processes, "port": port, "kill": kill}
    children = [
        context.Process(target=draw, args=(str(folder), where), kwargs={"rank": rank, **options}) for rank in range(processes)
    ]
    for child in children:
        child.start()
    for child in reversed(children):  # the last one is the one that dies
        child.join(60 if children[-1].exitcode in (None, 0) else 0)
        child.kill()
        child.join()
    return [child.exitcode for child in children]


def outcomes(folder: Path, processes: int) -> list[dict]:
    return [json.loads((folder / f"drawn-{rank}.json").read_text()) for rank in range(processes)]
