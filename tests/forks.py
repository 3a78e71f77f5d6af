"""New processes at the price of a fork: they come from one that has loaded torch and this library, and nothing of the tests.

Loading takes seconds, forking does not. A forked process has the environment of the first one, no checks of shapes, and no
state of any test.
"""

import os
import re
import shlex
import sys
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import NamedTemporaryFile

LOADED = [
    "torch._dynamo", "accelerate", "datasets", "transformers", "matplotlib.backends.backend_agg", "matplotlib.figure",
    "scipy.stats", "rich.console", "esscher.cli.app", "esscher.bases.fsdp", "esscher.data.splits", "esscher.hub.auto",
    "esscher.networks.recurrent", "esscher.reports.document", "esscher.workflow.distil", "esscher.workflow.tilt",
    "esscher.workflow.train",
]  # fmt: skip
MEANS_MORE = set("|&;<>()$`\\*?[]{}~!#")  # to a shell, outside of quotes


def forks() -> ForkServerContext:
    """Where processes come from that have loaded all this."""
    context = get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    return context


def calls_of_esscher(block: str) -> list[list[str]] | None:
    """The words after `esscher` of each line, if every line is a call of it, and to a shell no more than that."""
    lines = [line for line in block.splitlines() if line.strip()]
    for line in lines:
        unquoted = re.sub(r"'[^']*'|\"[^\"$`\\]*\"", "", line)
        if not line.startswith("esscher ") or MEANS_MORE & set(unquoted):
            return None
    return [shlex.split(line)[1:] for line in lines]


def call_esscher(arguments: list[str], *, seconds: float) -> tuple[int, str]:
    """Call the command line in a process of its own, in this folder: its exit code, and what it said."""
    with NamedTemporaryFile() as said:
        child = forks().Process(target=_speak, args=(arguments, str(Path.cwd()), said.name))
        child.start()
        child.join(seconds)
        if child.exitcode is None:
            child.kill()
            child.join()
        return child.exitcode, Path(said.name).read_text(encoding="utf8")


def _speak(arguments: list[str], folder: str, said: str) -> None:
    os.chdir(folder)
    sys.argv = ["esscher", *arguments]
    out = os.open(said, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(out, stream)
    from esscher.cli import main

    main()
