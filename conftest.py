"""Tests and documentation run alike: shapes in signatures are checked, code blocks of the pages are executed.

Blocks of one page share their names, in order. A `shell` block runs in a folder of its own page. One that only calls esscher
runs in forks of a process that has loaded it, but for those of the README, which a new shell runs. Blocks of other languages:
`tests/pages.py`. One thread a worker, because workers share the cores.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent / "tests"))

from checking import begin_test, check_package

check_package("esscher")

import pytest
import torch
from forks import call_esscher, calls_of_esscher
from pages import read_commands, write_file
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

torch.set_num_threads(1)


def pytest_runtest_setup():
    """Shapes are checked in the first calls of every test."""
    begin_test()


def run_shell(example: Example) -> None:
    """Run the lines as a user would; every one must succeed."""
    calls = calls_of_esscher(str(example.parsed))
    if calls is not None and Path(example.path).name != "README.md":
        for words in calls:
            code, said = call_esscher(words, seconds=300)
            assert code == 0, f"esscher {shlex.join(words)} ended with {code}:\n{said}"
        return
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", str(example.parsed)]
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def own_folder(tmp_path_factory):
    """The page's working folder, so that what it writes stays out of the repository."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("page"))
    yield
    os.chdir(before)


pytest_collect_file = Sybil(
    parsers=[
        PythonCodeBlockParser(),
        CodeBlockParser(language="shell", evaluator=run_shell),
        CodeBlockParser(language="bash", evaluator=lambda example: read_commands(str(example.parsed))),
        CodeBlockParser(language="yaml", evaluator=lambda example: write_file(str(example.parsed))),
    ],
    patterns=["*.md"],
    fixtures=["own_folder"],
).pytest()
