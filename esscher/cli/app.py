"""The app of cyclopts behind the verbs: settings come from defaults, then the YAML file of --config, then flags; an unknown key
is an error that names the file and the key."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from cyclopts.config import Dict

from esscher.cli.binding import Chosen, bind, chosen_kind, expand_groups, is_optional, settings_from
from esscher.cli.commands import ABOUT, COMMANDS, EXAMPLE, GROUPS, INSTALL_COMPLETION, PLANNED, Command, called_verb
from esscher.cli.completion import install_completion
from esscher.core.config import load_object
from esscher.core.console import console
from esscher.core.reading import read_yaml_mapping


def build_app(tokens: Sequence[str], file_settings: Mapping[str, Any] | None = None, source: str = "") -> App:
    """The app for these tokens: all verbs by name, and the flags of the one that is called."""
    app = App(
        name="esscher",
        help=ABOUT,
        help_epilogue=EXAMPLE,
        help_format="plaintext",
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # `main` says what became of the work
        console=console(),
        error_console=console(error=True),
    )
    app.command(install_completion, name=INSTALL_COMPLETION, sort_key=len(COMMANDS))
    called, groups = called_verb(tokens), {"": app}
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


def command_app(name: str, command: Command, chosen: Chosen, place: int) -> App:
    """The app of one verb, with the flags of the kinds chosen."""
    call, cls = command.call, load_object(command.call.settings)
    bound: Any = bind(cls, chosen)
    default = bound() if is_optional(bound) else None

    def run_on_model(load: Any, settings: Any = default) -> Any:
        checked = settings_from(settings)  # before the model is loaded, so that a mistake costs nothing
        return load_object(call.function)(load_object("esscher.workflow.model:load_model")(load), checked)

    def run_alone(settings: Any = default) -> Any:
        return load_object(call.function)(settings_from(settings))

    def run_without_settings() -> Any:
        return load_object(call.function)(cls())

    run: Any = run_alone if call.loads is None else run_on_model
    run.__annotations__ = {"settings": Annotated[bound, Parameter(name="*")]}
    if call.loads is not None:
        run.__annotations__["load"] = Annotated[load_object(call.loads), Parameter(name="*")]
    if default is None:
        run.__defaults__ = None
    about = "\n\n".join(" ".join(paragraph.split()) for paragraph in (cls.__doc__ or "").split("\n\n"))
    planned = "\n\n--dry-run prints what it would cost, and writes nothing." if name in PLANNED else ""
    app = App(
        name=name, help=f"{command.help}\n\n{about}", help_epilogue=f"Example: {command.example}{planned}", sort_key=place
    )
    app.default(run if fields(cls) else run_without_settings)
    return app


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
            result = app(expanded(tokens))
        if result is not None:
            report = result if isinstance(result, Report) else result.report
            print_report(report, as_json=json_, verbose=verbose)
            if report.failed:
                sys.exit(1)


def _plan(app: App, tokens: Sequence[str]) -> Any:
    """The cost of the verb that is called, as a report."""
    called = called_verb(tokens)
    if called not in PLANNED:
        raise ValueError(
            f"--dry-run is for the verbs that can take long: {', '.join(PLANNED)}. Nothing was done; leave it out of "
            f"{'a call without a verb' if called is None else called}."
        )
    from esscher.workflow.cost import dry_run

    with dry_run() as planned:
        return app(expanded(tokens))  # a verb that ends before its work, such as the list of recipes
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


def shared_options_app() -> App:
    """The app of the options that all verbs share."""
    meta = App(
        name="esscher", help_flags=(), version_flags=(), result_action="return_value", suppress_keyboard_interrupt=False,
        console=console(), error_console=console(error=True),
    )  # fmt: skip
    meta.default(run)
    return meta


def check_arguments(arguments: Sequence[str]) -> None:
    """Parse a command line down to every flag and value without running it; raise an error if it would not start."""
    _, bound, _ = shared_options_app().parse_args(list(arguments), exit_on_error=False, print_error=False)
    build_app(bound.args).parse_args(expanded(bound.args), exit_on_error=False, print_error=False)


def expanded(tokens: Sequence[str]) -> list[str]:
    """The tokens with the flags that stand for a field of a group of settings spelled out."""
    called = called_verb(tokens)
    return list(tokens) if called is None else expand_groups(load_object(COMMANDS[called].call.settings), tokens)
