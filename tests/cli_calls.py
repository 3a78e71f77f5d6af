"""The command line as tests call it: within the process, with what it prints and its exit code."""

import json

from esscher.cli import main


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    capsys.readouterr()
    code = 0
    try:
        main(list(arguments))
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def answer(capsys, *arguments: str) -> dict:
    """The last line of standard output, as JSON."""
    code, out, err = call(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1])
