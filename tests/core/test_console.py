"""What goes to the terminal: control characters are shown as escapes, and nothing else changes."""

import sys

import pytest
from cli_calls import call

from esscher.core.console import console, escaped, write_data, write_line
from esscher.core.progress import LineProgress
from esscher.reports.report import Report, print_report

EVIL = ["\x1b[2J", "\x1b]52;c;aGk=\x07", "\x9b31m", "a\u202eb", "a\rb", "a\x08", "\x7f", "\u2028", "\ud800", "\u2066"]


@pytest.mark.parametrize("text", EVIL)
def test_escapes_are_shown(capsys, text):
    shown = escaped(text)
    assert shown.isprintable() and "\\" in shown and escaped(shown) == shown
    write_line(text)
    write_line(text, error=True)
    LineProgress().say(text)
    out, err = capsys.readouterr()
    assert out == f"{shown}\n" and err == f"{shown}\n" * 2
    print_report(Report(text, {"fact": text}, {"rows": [{"text": text}]}, [text]), as_json=False)
    code, _, err = call(capsys, "sample", f"nowhere{text}")
    assert code == 1 and shown in err


@pytest.mark.parametrize("text", EVIL)
def test_reports_and_consoles_send_none(capsys, text):
    print_report(Report(text, {"fact": text, text: 1}, {"rows": [{"text": text, text: text}]}, [text]), as_json=False)
    console().print(text, markup=False)
    out = capsys.readouterr().out
    assert escaped(text) in out and not set(text) & set(out) - set("abcJmhiGkaHk[]2531;c=")


@pytest.mark.parametrize("text", ["plain", "a\tb\nc", "äöü 漢字", "\U0001f468\u200d\U0001f469", "می\u200cخ"])
def test_all_else_stays(text):
    assert escaped(text) == text


def test_results_are_data_unless_a_terminal_reads_them(capsys, monkeypatch):
    write_data("\x1b[2J\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    write_data("\x1b[2J\n")
    assert capsys.readouterr().out == "\x1b[2J\n\\x1b[2J\n"
