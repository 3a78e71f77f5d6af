"""Every environment variable is declared once, documented and shown."""

import re
from pathlib import Path

from cli_calls import answer

import esscher
from esscher.core.environment import VARIABLES

PACKAGE = Path(esscher.__file__).parent
GUIDE = PACKAGE.parent / "docs" / "guide" / "command_line.md"


def test_every_variable_that_the_package_names_is_declared():
    files = [file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "core" / "environment.py"]
    named = {name for file in files for name in re.findall(r"ESSCHER_[A-Z_]+", file.read_text(encoding="utf8"))}
    assert {"ESSCHER_TOKEN", "ESSCHER_DEBUG", "ESSCHER_DATA"} <= named <= {variable.name for variable in VARIABLES}


def test_the_guide_has_the_same_table():
    row = r"^\| `([A-Z_]+)` \| (.+?) \| (.+?) \|$"
    rows = re.findall(row, GUIDE.read_text(encoding="utf8"), re.MULTILINE)
    assert rows == [(variable.name, variable.meaning, variable.default) for variable in VARIABLES]


def test_env_shows_values_but_no_secret(capsys, monkeypatch):
    monkeypatch.setenv("ESSCHER_TOKEN", "hunter2")
    monkeypatch.setenv("ESSCHER_DATA", "/data")
    output = answer(capsys, "env")
    shown = {row["variable"]: row["value"] for row in output["variables"]}
    assert shown["ESSCHER_TOKEN"] == "(set)" and shown["ESSCHER_DATA"] == "/data" and "hunter2" not in str(output)
    assert set(shown) == {variable.name for variable in VARIABLES}
