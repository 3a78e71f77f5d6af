"""Runs the tests of `on_device/` in processes that have a CUDA device: a real one, or else a simulated one.

The fast tests of all files share a process, because it takes longer to start than most of them; the slow test of a file runs
all of it, because later verbs read what earlier ones wrote.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from device.simulated_cuda import missing_tools

FOLDER = Path(__file__).parent / "on_device"
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() and bool(missing_tools()), reason=f"no GPU, and no {missing_tools()}"
)


def run_on_device(path: Path, marker: str) -> None:
    environment = {**os.environ, "ESSCHER_TEST_DEVICE": "cuda", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(path),
        "-m",
        marker,
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--tb=short",
    ]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]


def test_fast_tests_on_a_device():
    run_on_device(FOLDER, "not slow")


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(FOLDER.glob("test_*.py")), ids=lambda file: file.stem)
def test_on_a_device(file):
    run_on_device(file, "")
