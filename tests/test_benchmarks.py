"""The benchmarks' runner on toys, and the shape that all benchmarks share; nothing is timed here."""

import importlib
import inspect
import json
import os
import sys
import warnings
from pathlib import Path

import pytest

from benchmarks import _runner
from benchmarks.__main__ import main
from benchmarks._page import BUSY, format_cell, page
from benchmarks._runner import PAGE, benchmark_docs, run, write_page
from benchmarks._timing import in_new_process, peak_memory, spread, versus

FOLDER = Path(__file__).parent.parent / "benchmarks"
QUICK = '''"""Quick against slow.

How they are compared.
"""
from benchmarks._timing import Table, spread

REPEATS = 3


def tables(repeats):
    ratio = spread([1.0 + n for n in range(repeats)])
    return [Table("a race", [{"side": "SIDE", "times as fast": ratio, "wanted": "at least 2"}])]
'''
BROKEN = '"""Broken."""\nREPEATS = 1\n\n\ndef tables(repeats):\n    raise RuntimeError("the wheel\\ncame off")\n'
LACKING = (
    '"""Lacking."""\nfrom benchmarks._timing import MissingPartError\n\nREPEATS = 1\n\n\n'
    'def tables(repeats):\n    raise MissingPartError("There is no road: build one.")\n'
)


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """A folder of benchmarks; the environment that the runner sets is put back."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "toy_benchmarks"  # a name that no module of the tests has
    folder.mkdir()
    for name, text in {"quick": QUICK, "later": QUICK.replace("SIDE", "tortoise"), "_part": "", "broken": BROKEN}.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "lacking.py").write_text(LACKING)
    return folder


@pytest.fixture
def in_this_process(monkeypatch):
    """The toys are imported anew for each run, which else a new process does."""

    def import_and_call(function, module, repeats):
        sys.modules.pop(module, None)
        importlib.invalidate_caches()
        with warnings.catch_warnings():
            return function(module, repeats)

    monkeypatch.setattr(_runner, "in_new_process", import_and_call)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a toy that changes within a second keeps its time and size


def sections(folder: Path) -> dict[str, str]:
    head, *rest = (folder / PAGE).read_text().split("\n## ")
    return {"": head} | {text.splitlines()[0]: text for text in rest}


def test_a_run_renders_all_and_a_failure_loses_nothing(toys, in_this_process):
    assert not run(toys, list(benchmark_docs(toys)), None, 1, "python -m toys")
    actual = sections(toys)
    assert list(actual) == ["", "broken", "lacking", "later", "quick"]
    assert "Quick against slow.\n\nHow they are compared." in actual["quick"]
    assert "`python -m benchmarks quick --repeats 3 --threads 1`" in actual["quick"]
    assert (
        "| side | times as fast | wanted |\n| --- | ---: | --- |\n| SIDE | 2.00 [1.00, 3.00] | at least 2 |" in actual["quick"]
    )
    assert "there is no earlier result.** RuntimeError: the wheel came off" in actual["broken"]
    assert "there is no earlier result.** There is no road: build one." in actual["lacking"]
    assert (
        "`python -m toys`" in actual[""] and "torch " in actual[""] and "GB" in actual[""] and "from 2 runs" not in actual[""]
    )


@pytest.mark.slow
def test_one_section_is_replaced_and_the_rest_stays(toys, in_this_process):
    assert run(toys, ["quick", "later"], 1, 1, "first")
    before = sections(toys)
    (toys / "quick.py").write_text(QUICK.replace("SIDE", "hare"))
    (toys / "later.py").write_text(BROKEN)
    assert not run(toys, ["quick", "later"], 2, 1, "second")
    after = sections(toys)
    assert "| hare | 1.50 [1.00, 2.00]" in after["quick"] and "`second`" in after[""]
    assert "tortoise" in after["later"] and "the tables are those of the run before.** RuntimeError" in after["later"]
    assert "from 2 runs" in after[""] and "`first`" in after[""] and "Not measured yet" in after["broken"] == before["broken"]
    written = (toys / PAGE).read_text()
    write_page(toys)
    assert (toys / PAGE).read_text() == written


@pytest.mark.slow
def test_a_part_that_the_machine_lacks_is_no_failure(toys):
    """Each in a process of its own."""
    assert run(toys, ["lacking", "quick"], 1, 1, "python -m toys")
    record = json.loads((toys / "results" / "quick.json").read_text())
    assert "tables" in record and record["run"]["device"] == "cpu" and "torch build" in record["run"]


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "sampling", "--device", "cuda:7"])
    with pytest.raises(SystemExit, match="There is no device 'cuda:7'"):
        main()


def test_a_busy_machine_is_told():
    record = {"run": {"command": "c", "began": "now", "threads": 2, "load": BUSY + 0.1, "machine": "m", "versions": {}}}
    record |= {"repeats": 1, "seconds": 60.0, "tables": []}
    assert "Other work was running" in page({"one": "One."}, {"one": record})
    record["run"]["load"] = BUSY
    assert "Other work was running" not in page({"one": "One."}, {"one": record})


def test_ratios_are_taken_within_a_repeat():
    seconds = {"ours": [1.0, 2.0, 4.0], "peer": [2.0, 6.0, 4.0]}
    row = versus(seconds, "ours", "peer")
    assert row["times as fast"] == {"median": 2.0, "low": 1.0, "high": 3.0}
    assert (row["ms, ours"], row["ms, peer"]) == (2000, 4000)
    row = versus(seconds, "ours", "peer", {"ours": 10, "peer": 20}, "tokens/s")
    assert row["times as fast"]["median"] == 1 and (row["tokens/s, ours"], row["tokens/s, peer"]) == (5, 5)


def test_numbers_are_told_with_the_digits_they_deserve():
    actual = [
        format_cell(item)
        for item in (1234.5, 12.345, 1.2345, 0.12345, 0.00012, 0.0, 12_345, "text", None, spread([80.0, 100.0, 120.0]))
    ]
    assert actual == ["1,234", "12.35", "1.23", "0.123", "1.2e-04", "0", "12,345", "text", "", "100 [80, 120]"]


def test_a_process_of_its_own_tells_its_peak_and_its_failure():
    assert 30 < peak_memory(filling, 40) < 60
    with pytest.raises(ZeroDivisionError):
        in_new_process(divmod, 1, 0)


def filling(megabytes: int):
    return lambda: bytearray(b"x") * (megabytes * 2**20)


@pytest.mark.parametrize("name", benchmark_docs(FOLDER))
def test_every_benchmark_has_the_shape(name):
    benchmark = importlib.import_module(f"benchmarks.{name}")
    assert isinstance(benchmark.REPEATS, int) and benchmark.REPEATS > 1
    assert list(inspect.signature(benchmark.tables).parameters) == ["repeats"]
    first, _, rest = benchmark.__doc__.partition("\n\n")
    assert first.endswith(".") and "\n" not in first and rest, "the docstring says in a line what is compared, then how"
