"""Benchmarks on the device, at sizes that measure nothing: both sides run there, and the record says so."""

import json
import os
from importlib import import_module

import pytest
import torch

from benchmarks import _drawing, _runner, _timing
from benchmarks._device import VARIABLE
from esscher.networks.pixelcnn_config import PixelCnnConfig
from esscher.networks.recurrent_config import LstmConfig

pytestmark = pytest.mark.slow
MIXTURE = LstmConfig(8, 1, embedding=8, tied=True, output="mos", components=2)
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
    "transformer_xl": {
        "VOCAB": 30,
        "SEGMENT": 4,
        "ROWS": 2,
        "TOKENS": 4,
        "LENGTHS": {8: None},
        "CHUNK": 4,
        "LONG": (8, 16),
    },
    "rejection": {"ACCEPTED": 1, "MOTIF": [1, 0]},
    "eforcing": {"VOCAB": 20, "DRAWN": 4, "LAYOUTS": {"27 x 150": (2, 6)}, "BASES": {"mixture": MIXTURE}},
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """On the device, without new processes, in which it would have to be simulated again."""
    monkeypatch.setenv(VARIABLE, "cuda")
    monkeypatch.setattr(_timing, "in_new_process", lambda function, *inputs: function(*inputs))
    monkeypatch.setattr(_runner, "in_new_process", lambda function, *inputs: function(*inputs))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name, value in {"WIDTH": 8, "LAYERS": 1, "HEADS": 2, "INNER": 16}.items():
        for module in ("sampling", "causal_lm", "transformer_xl"):
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


def test_the_record_says_where(tmp_path, monkeypatch):
    """Beside the records of the CPU, which stay; benchmarks without models are not on the page."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "toys_on_device"
    folder.mkdir()
    body = "REPEATS = 2\n\n\ndef tables(repeats):\n    return []\n"
    (folder / "models.py").write_text(f'"""Models."""\nfrom benchmarks._device import on_device\n\n{body}')
    (folder / "others.py").write_text(f'"""Others."""\n{body}')
    assert _runner.run(folder, ["models"], 1, 1, "python -m toys")
    about = json.loads((folder / "results" / "cuda" / "models.json").read_text())["run"]
    assert (
        about["device"].startswith("cuda:0, ")
        and about["dtype"].startswith("float32")
        and torch.__version__ in about["torch build"]
    )
    page = (folder / "RESULTS-cuda.md").read_text()
    assert "--device cuda:0`" in page and "## models" in page and "## others" not in page
    assert not (folder / "RESULTS.md").exists()
