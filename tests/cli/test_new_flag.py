"""A new flag is one field of the settings: the command line, YAML files, --help and Python have it without another change."""

import inspect
from dataclasses import dataclass, field, replace

import pytest
from cli_calls import answer, call

from esscher.cli.commands import COMMANDS, Call
from esscher.core.config import from_dict, takes, to_dict
from esscher.reports.report import Report
from esscher.workflow.config.measure import MeasureConfig


@dataclass(frozen=True)
class WithBurnIn(MeasureConfig):
    """The settings of `measure`, and one field more."""

    burn_in: int = field(default=3, kw_only=True)
    """Draws that are dropped first."""


@dataclass(frozen=True)
class Result:
    report: Report


def show(settings: WithBurnIn) -> Result:
    assert type(settings) is WithBurnIn
    return Result(Report("esscher measure", {"burn_in": settings.burn_in}, {}, []))


@pytest.fixture
def measure(monkeypatch):
    """`esscher measure` with the field more, and a call that shows it."""
    path = f"{__name__}:WithBurnIn"
    call_of_settings = Call(path, f"{__name__}:show")
    monkeypatch.setitem(COMMANDS, "measure", replace(COMMANDS["measure"], call=call_of_settings))


def test_a_field_is_a_flag_with_its_help(measure, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    page = call(capsys, "measure", "--help")[1]
    assert "--burn-in" in page and "Draws that are dropped first." in page and "default: 3" in page
    assert answer(capsys, "measure", "--data", "my.txt")["burn_in"] == 3
    assert answer(capsys, "measure", "--data", "my.txt", "--burn-in", "7")["burn_in"] == 7


def test_a_field_is_a_key_of_the_yaml_file(measure, capsys, tmp_path):
    file = tmp_path / "measure.yaml"
    file.write_text("data: my.txt\nburn_in: 5\n")
    assert answer(capsys, "measure", "--config", str(file))["burn_in"] == 5
    assert answer(capsys, "measure", "--config", str(file), "--burn-in", "6")["burn_in"] == 6


def test_a_field_is_a_keyword_in_python_and_survives_the_serialiser():
    method = takes(WithBurnIn)(lambda self, settings: settings)
    assert inspect.signature(method).parameters["burn_in"].default == 3
    settings = method(None, "my.txt", burn_in=9)
    assert settings.burn_in == 9 and from_dict(WithBurnIn, to_dict(settings)) == settings
