"""Notebooks run, in small versions; what is committed was executed, shows figures and is small."""

import json
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from page_models import page_folder
from pages import HOME

from esscher.workflow.config.tilt import TiltRun

FOLDER = HOME / "docs" / "notebooks"
sys.path.insert(0, str(FOLDER))

from execute import run_notebook, set_parameters
from render import notebook_page

NAMES = [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
SMALL = {
    "laboratory": {"REPLICATIONS": 60, "DRAWS": 200},
    "own_text": {"STEPS": 60, "DRAWS": 600, "CANDIDATES": 3000},
    "pretrained": {"MODEL": "runs/base", "PROMPT": "the", "WORDS": "cat,garden", "WANTED": 0.7, "LENGTH": 10},
}
PROMPTS = "prompt" in {field.name for field in fields(TiltRun)}  # whether weights can be fitted after a prompt


def cells(name, kind="code"):
    return [cell for cell in json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"] if cell["cell_type"] == kind]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(HOME))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    return tmp_path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_small_versions_run(name, folder):
    if name == "pretrained":
        if not PROMPTS:
            pytest.skip("weights cannot be fitted after a prompt yet")
        page_folder()
    executed = run_notebook(FOLDER / f"{name}.ipynb", folder, SMALL[name])
    figures = [output for cell in executed.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    assert len(figures) >= 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_notebooks_run_as_they_are(name, folder):
    if name == "pretrained":
        packaged = pytest.importorskip("esscher.hub.packaged_models", reason="there are no packaged models yet")
        if not packaged.is_available("smollm2"):
            pytest.skip("SmolLM2 is not installed")
    run_notebook(FOLDER / f"{name}.ipynb", folder)


@pytest.mark.parametrize("name", NAMES)
def test_committed_notebooks_were_executed(name):
    counts = [cell["execution_count"] for cell in cells(name)]
    assert counts == list(range(1, len(counts) + 1)), "run: python docs/notebooks/execute.py " + name
    outputs = [output for cell in cells(name) for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 300_000
    assert str(Path.home()) not in json.dumps(outputs)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_the_tests_are_those_of_the_notebook(name):
    (cell,) = [cell for cell in cells(name) if "parameters" in cell["metadata"].get("tags", [])]
    scope = {}
    exec(set_parameters("".join(cell["source"]), SMALL[name]), scope)
    assert {key: scope[key] for key in SMALL[name]} == SMALL[name]


def test_a_parameter_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="STEPZ"):
        set_parameters("STEPS = 300  # updates", {"STEPZ": 3})


def test_a_notebook_becomes_a_page():
    picture = {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": "<Figure>"}}
    said = [
        {"output_type": "stream", "name": "stdout", "text": ["1\n"]},
        {"output_type": "stream", "name": "stderr", "text": "x"},
    ]
    notebook = {
        "cells": [
            {"cell_type": "markdown", "metadata": {}, "source": ["# Title"]},
            {"cell_type": "code", "metadata": {}, "source": ["print(1)"], "outputs": [*said, picture]},
            {"cell_type": "code", "metadata": {"tags": ["remove"]}, "source": ["hidden"], "outputs": []},
        ]
    }
    text, images = notebook_page(notebook, "own")
    assert images == {"own-1.png": b"hi"}
    assert text.startswith("# Title\n\n```python\nprint(1)\n```\n\n```{ .text .output }\n1\n```\n\n![")
    assert "own-1.png" in text and "hidden" not in text and "\nx\n" not in text
    assert "own.ipynb" in text
