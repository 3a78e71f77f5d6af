"""Benchmarks on the device, at sizes that measure nothing: both sides run there, and the record says so."""

import os
from importlib import import_module

import pytest
import torch

from benchmarks import _drawing, _runner, _timing
from benchmarks._device import VARIABLE
from esscher.networks.pixelcnn_config import PixelCnnConfig

SIZES = {  # of each benchmark, smaller than what it compares
    "sampling": {"VOCAB": 50, "TOKENS": 4, "ROWS": 8},
    "causal_lm": {"VOCAB": 50, "TOKENS": 3, "DRAWS": 128, "PROMPT": 6, "CONTINUATIONS": 4},
    "softmax": {"ROWS": 16, "WIDTH": 16, "VOCAB": 20, "LARGE": 40, "CUTOFFS": (10, 20)},
    "mixture": {"ROWS": 16, "WIDTH": 8, "VOCAB": 20, "COMPONENTS": 3},
    "xlnet": {"VOCAB": 30, "WIDTH": 8, "LAYERS": 1, "HEADS": 2, "INNER": 16, "CHUNK": 4, "LENGTH": 12, "ROWS": 2, "LONG": 24},
    "images": {"SIDE": 4, "IMAGES": 2, "BASES": {"PixelCNN": PixelCnnConfig(8, 1, image=(4, 4, 1))}},
    "translation": {
        "VOCAB": 30,
        "WIDTH": 8,
        "LAYERS": 1,
        "HEADS": 2,
        "INNER": 16,
        "SOURCES": 2,
        "LENGTH": 4,
        "TOKENS": 5,
        "PAIRS": 2,
        "DRAWS": 2,
    },
    "eforcing": {"VOCAB": 20, "DRAWN": 4, "LAYOUTS": {"27 x 150": (2, 6)}},
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """On the device, without new processes, in which it would have to be simulated again."""
    monkeypatch.setenv(VARIABLE, "cuda")
    monkeypatch.setattr(_timing, "in_new_process", lambda function, *inputs: function(*inputs))
    monkeypatch.setattr(_runner, "in_new_process", lambda function, *inputs: function(*inputs))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name, value in {"WIDTH": 8, "LAYERS": 1, "HEADS": 2, "INNER": 16}.items():
        for module in ("sampling", "causal_lm"):
            monkeypatch.setattr(import_module(f"benchmarks.{module}"), name, value, raising=False)
        monkeypatch.setattr(_drawing, name, value)


@pytest.mark.parametrize("name", SIZES)
def test_both_sides_run_on_the_device(name, monkeypatch):
    benchmark, waits = import_module(f"benchmarks.{name}"), []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waits.append(device))
    for constant, value in SIZES[name].items():
        monkeypatch.setattr(benchmark, constant, value)
    assert benchmark.tables(1) and len(waits) > 3
    assert {str(device) for device in waits} <= {"cuda:0"}
