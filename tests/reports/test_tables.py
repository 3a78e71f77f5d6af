"""Numbers are rounded to their uncertainty, and tables fit: no number is broken, whatever the rows hold."""

import math
import re
from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from esscher.core.estimate import Estimate
from esscher.reports.report import Report, print_report
from esscher.reports.tables import format_estimate, format_number, rich_table

WIDTH = 80


def estimate(value, low, high, unit="", n=100):
    return Estimate(value, low, high, 0.95, n, "a long way of estimating", unit)


@pytest.mark.parametrize(("value", "low", "high", "shown"), [
    (0.42702, 0.39218, 0.46502, "0.427 [0.392, 0.465]"),
    (499.92, 493.53, 506.41, "499.9 [493.5, 506.4]"),
    (1.1326e6, 7.9121e5, 1.6368e6, "1.13e6 [7.9e5, 1.64e6]"),
    (1160.4, 1.0, 2.07e11, "1,200 [1, 2.1e11]"),  # the value is not rounded to nothing beside its end
    (6.565, 1.0, 6.565, "6.6 [1.0, 6.6]"),
    (0.5, 0.2, math.inf, "0.50 [0.20, unbounded]"),
    (0.5, -math.inf, math.inf, "0.5 [unbounded]"),
    (-0.0001, -0.02, 0.02, "0.000 [-0.020, 0.020]"),
    (3e-6, -1e-6, 7e-6, "3.0e-6 [-1.0e-6, 7.0e-6]"),
    (0.25, 0.25, 0.25, "0.25 [0.25, 0.25]"),
    (math.nan, -math.inf, math.inf, "undefined"),
])  # fmt: skip
def test_estimates_have_the_digits_that_their_interval_justifies(value, low, high, shown):
    assert format_estimate(estimate(value, low, high)) == shown


def test_plain_numbers_have_four_digits():
    numbers = (0.0, 1.0, -0.0, 0.064466, -217.334, 1234.56, 123456.7, 1e7, 1.5e-7, math.inf)
    assert [format_number(number) for number in numbers] == [
        "0", "1", "0", "0.06447", "-217.3", "1,235", "123,500", "1e7", "1.5e-7", "unbounded",
    ]  # fmt: skip
    assert format_estimate(Estimate.exact(0.123456)) == "0.1235"


def printed(capsys, report, **options):
    print_report(report, as_json=False, **options)
    return capsys.readouterr().out


def check_fits(out):
    """No line is wider than the terminal, and every interval that is opened on a line is closed on it."""
    for line in out.splitlines():
        assert cell_len(line) <= WIDTH or " " not in line.split("  ")[-1], line  # a path stays whole
        assert line.count("[") == line.count("]"), line


FEW, MANY = estimate(499.92, 493.53, 506.41, "per token"), estimate(-1234.5678, -2000.1, -1000.2, "nats")
TABLES = {
    "short": [{"model": "base", "perplexity": FEW}],
    "long text": [{"text": "words of a long text " * 12, "log_base": -217.334, "energy": 1.5, "log_weight": 0.0}] * 2,
    "lines": [{"text": "a\nb", "log_base": -1.0}],
    "many numbers": [{"position": place, **{f"number {k}": MANY for k in range(6)}} for place in range(3)],
    "many texts": [{f"text {k}": "some words " * 3 for k in range(5)} | {"value": MANY}],
    "long key": [{"feature": "matches " + "x" * 90, "wanted": 0.5, "base": MANY, "tilted": MANY, "weight": MANY}],
    "wide characters": [{"text": "日本語" * 30, "energy": 1.0}],
    "empty cells": [{"a": None, "b": 1}, {"b": 2, "c": ""}],
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_fit_and_break_no_number(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    out = printed(
        capsys, Report("title", {"kl": MANY, "words": "a fact of many words " * 9}, {name: TABLES[name]}, ["note " * 40])
    )
    check_fits(out)
    for row in TABLES[name]:
        for value in row.values():
            if isinstance(value, Estimate):
                assert format_estimate(value) in out
            elif isinstance(value, str):
                assert re.sub(r"\s", "", value) in re.sub(r"\s", "", out)  # nothing is lost


def test_units_stand_in_the_header_once():
    console = Console(width=WIDTH, record=True, file=StringIO())
    rows = [{"model": name, "perplexity": FEW, "kl": MANY} for name in ("base", "tilted")]
    console.print(rich_table("t", rows, console))
    text = console.export_text()
    assert text.count("nats") == text.count("(nats)") == 1 and text.count("perplexity per token") == 1
    units = [{"per": unit, "base": estimate(2.0, 1.9, 2.1, f"nats per {unit}")} for unit in ("token", "byte")]
    console.print(rich_table("t", units, console))
    assert "nats per" not in console.export_text()  # the row says of what


def test_units_stand_in_the_cells_whose_rows_do_not_name_them():
    console = Console(file=StringIO(), width=WIDTH)
    rows = [
        {"number": "perplexity per token", "run": estimate(2.0, 1.9, 2.1, "per token")},
        {"number": "log Z", "run": estimate(1.0, 0.9, 1.1, "nats")},
    ]
    console.print(rich_table("t", rows, console))
    shown = console.file.getvalue()
    assert "1.00 [0.90, 1.10] nats" in shown and shown.count("per token") == 1


def test_methods_and_details_are_printed_only_where_asked(capsys):
    facts = {"kl": MANY, "regime": "newton", "device": "cpu", "seed": 3}
    report = Report("title", facts, {"rows": [{"a": FEW}], "more": [{"b": 1}]}, details=("regime", "more"))
    short, full = printed(capsys, report), printed(capsys, report, verbose=True)
    assert "a long way" not in short and "newton" not in short and "more" not in short
    assert "a long way of estimating" in full and "95 % interval, 100 draws" in full and "newton" in full and "more" in full
    assert all(text.splitlines()[-1] == "device cpu, seed 3" for text in (short, full))
    print_report(report, as_json=True)
    assert '"regime": "newton"' in (line := capsys.readouterr().out) and "a long way of estimating" in line
