"""The command line, without torch until a verb is called. Settings come from defaults, then the YAML file of --config, then
flags; an unknown key is an error that names the file and the key."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from cyclopts.config import Dict

from esscher.cli.binding import chosen_kind, expand_groups
from esscher.cli.commands import COMMANDS, GROUPS, command_app
from esscher.cli.completion import COMPLETE, complete, install_completion
from esscher.core.config import load_object
from esscher.core.console import console, write_line
from esscher.core.interruption import Interrupted, handled_signals
from esscher.core.reading import read_yaml_mapping

INSTALL_COMPLETION = "--install-completion"
EXAMPLE = "Each verb has --help with an example. To start: esscher train --out runs/first; esscher sample runs/first"


def build_app(tokens: Sequence[str], file_settings: Mapping[str, Any] | None = None, source: str = "") -> App:
    """The app for these tokens: all verbs by name, and the flags of the one that is called."""
    app = App(
        name="esscher",
        help="Better autoregressive sequence models by energies over whole sequences: p(x) ~ a(x) exp(-E(x)).",
        help_epilogue=EXAMPLE,
        help_format="plaintext",
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # `main` says what became of the work
        console=console(),
        error_console=console(error=True),
    )
    app.command(install_completion, name=INSTALL_COMPLETION, sort_key=len(COMMANDS))
    called, groups = _called(tokens), {"": app}
    for place, (path, command) in enumerate(COMMANDS.items()):
        group, _, verb = path.rpartition(" ")
        if group not in groups:
            groups[group] = App(name=group, help=GROUPS[group], sort_key=place)
            app.command(groups[group])
        if path != called:
            groups[group].command(App(name=verb, help=command.help, sort_key=place))
            continue
        groups[group].command(command_app(verb, command, partial(chosen_kind, tokens, file_settings or {}), place))
        if file_settings is not None:
            nested: Any = file_settings
            for name in reversed(path.split()):
                nested = {name: nested}
            app.config = (Dict(nested, source=source),)
    return app


def _called(tokens: Sequence[str]) -> str | None:
    """The path of the verb that is called, if any."""
    words = [token for token in tokens if not token.startswith("-")]
    return next((path for path in COMMANDS if words[: len(path.split())] == path.split()), None)


def run(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    config: Annotated[Path | None, Parameter(help="YAML file with settings of the verb; flags override it.")] = None,
    json_: Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object as the last line.")] = False,
    json_lines: Annotated[bool, Parameter(negative="", help="Show progress as JSON objects on standard error.")] = False,
    quiet: Annotated[bool, Parameter(negative="", help="Show no progress.")] = False,
    verbose: Annotated[bool, Parameter(negative="", help="Also print how each number was estimated, and all details.")] = False,
    dry_run: Annotated[bool, Parameter(negative="", help="Print what a long verb would cost, and do nothing.")] = False,
) -> None:
    """Run the verb and show its report."""
    from esscher.core.progress import progress_as
    from esscher.reports.report import Report, print_report

    app = build_app(tokens) if config is None else build_app(tokens, read_settings(config), str(config))
    with ExitStack() as stack:
        if quiet or json_lines:
            stack.enter_context(progress_as("quiet" if quiet else "json-lines"))
        if dry_run:
            result = _plan(app, tokens)
        else:
            result = app(_expanded(tokens))
        if result is not None:
            report = result if isinstance(result, Report) else result.report
            print_report(report, as_json=json_, verbose=verbose)
            if report.failed:
                sys.exit(1)


def _plan(app: App, tokens: Sequence[str]) -> Any:
    """The cost of the verb that is called, as a report."""
    from esscher.cli.commands import PLANNED

    called = _called(tokens)
    if called not in PLANNED:
        raise ValueError(
            f"--dry-run is for the verbs that can take long: {', '.join(PLANNED)}. Nothing was done; leave it out of "
            f"{'a call without a verb' if called is None else called}."
        )
    from esscher.workflow.cost import dry_run

    with dry_run() as planned:
        return app(_expanded(tokens))  # a verb that ends before its work, such as the list of recipes
    return planned.cost.report()


def read_settings(file: Path) -> dict[str, Any]:
    """The settings in a YAML file."""
    settings = read_yaml_mapping(file, then="Nothing was done; correct the file.")
    if (key := _key_that_is_no_word(settings)) is not None:
        raise ValueError(
            f"{file} has the key {key!r}, which is no word: YAML reads on, off, yes and no as truth values. Nothing was done; "
            f"write it in quotes, such as 'on'."
        )
    return settings


def _key_that_is_no_word(settings: Mapping[Any, Any]) -> Any:
    """The first key at any depth that is no string; None if there is none."""
    for key, value in settings.items():
        if not isinstance(key, str):
            return key
        if isinstance(value, Mapping) and (inner := _key_that_is_no_word(value)) is not None:
            return inner
    return None


def _meta() -> App:
    """The app of the options that all verbs share."""
    meta = App(
        name="esscher", help_flags=(), version_flags=(), result_action="return_value", suppress_keyboard_interrupt=False,
        console=console(), error_console=console(error=True),
    )  # fmt: skip
    meta.default(run)
    return meta


def check_arguments(arguments: Sequence[str]) -> None:
    """Parse a command line down to every flag and value without running it; raise an error if it would not start."""
    _, bound, _ = _meta().parse_args(list(arguments), exit_on_error=False, print_error=False)
    build_app(bound.args).parse_args(_expanded(bound.args), exit_on_error=False, print_error=False)


def _expanded(tokens: Sequence[str]) -> list[str]:
    """The tokens with the flags that stand for a field of a group of settings spelled out."""
    called = _called(tokens)
    return list(tokens) if called is None else expand_groups(load_object(COMMANDS[called].call.settings), tokens)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors of the user's making are a message and exit code 1, not a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == [COMPLETE]:
        return complete(arguments[1:], build_app, _meta())
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
    if not flags or {"--help", "-h", "--version"} & set(flags):
        build_app(arguments)(arguments)
    else:
        _meta()(arguments)


def _how_to_go_on(flags: Sequence[str]) -> str:
    """What to do after a stop: to resume, if the verb can."""
    called = _called(flags)
    settings = None if called is None else load_object(COMMANDS[called].call.settings)
    resumes = settings is not None and "resume" in {field.name for field in fields(settings)}
    return "the same command with --resume goes on" if resumes else "the same command starts again"


def _fail(message: str, arguments: Sequence[str], code: int) -> None:
    write_line(f"esscher: {message}", error=True)
    if "--json" in arguments:
        write_line(json.dumps({"error": message}))
    sys.exit(code)
