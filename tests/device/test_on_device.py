"""Runs the tests of `on_device/`, each file in a process that has a CUDA device: a real one, or else a simulated one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from device.simulated_cuda import missing_tools

FILES = sorted(Path(__file__).parent.glob("on_device/test_*.py"))


@pytest.mark.skipif(not torch.cuda.is_available() and bool(missing_tools()), reason=f"no GPU, and no {missing_tools()}")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_on_a_device(file):
    environment = {**os.environ, "ESSCHER_TEST_DEVICE": "cuda", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", str(file), "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
