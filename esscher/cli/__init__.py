"""The command line, without torch until a verb is called, and without the parser of flags for the overview."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields

from esscher.cli.commands import COMMANDS, COMPLETE, called_verb, overview
from esscher.core.console import write_line
from esscher.core.interruption import Interrupted, handled_signals


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors of the user's making are a message and exit code 1, not a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments in (["--help"], ["-h"]):
        return write_line(overview())
    if arguments[:1] == [COMPLETE]:
        from esscher.cli.app import build_app, shared_options_app
        from esscher.cli.completion import complete

        return complete(arguments[1:], build_app, shared_options_app())
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    try:
        with handled_signals():
            _call(arguments, flags)
    except Interrupted as stop:
        _fail(str(stop) if stop.saved else f"{stop} What was saved is kept; {_how_to_go_on(flags)}.", arguments, stop.exit_code)
    except KeyboardInterrupt:  # not of a signal that is handled here
        _fail(f"Stopped by the keyboard. What was saved is kept; {_how_to_go_on(flags)}.", arguments, 130)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        if os.environ.get("ESSCHER_DEBUG"):
            raise
        message = str(error) or type(error).__name__
        if isinstance(error, FileNotFoundError) and error.filename is not None:
            message = f"There is no file {error.filename}. Nothing was done; check the path."
        _fail(message, arguments, 1)


def _call(arguments: list[str], flags: Sequence[str]) -> None:
    """Run the command line, or show help."""
    from esscher.cli.app import build_app, shared_options_app

    if not flags or {"--help", "-h", "--version"} & set(flags):
        build_app(arguments)(arguments)
    else:
        shared_options_app()(arguments)


def _how_to_go_on(flags: Sequence[str]) -> str:
    """What to do after a stop: to resume, if the verb can."""
    from esscher.core.config import load_object

    called = called_verb(flags)
    settings = None if called is None else load_object(COMMANDS[called].call.settings)
    resumes = settings is not None and "resume" in {field.name for field in fields(settings)}
    return "the same command with --resume goes on" if resumes else "the same command starts again"


def _fail(message: str, arguments: Sequence[str], code: int) -> None:
    write_line(f"esscher: {message}", error=True)
    if "--json" in arguments:
        write_line(json.dumps({"error": message}))
    sys.exit(code)
