"""`esscher init VERB`: a YAML file with every setting of a verb, its default and its help, for `--config`.

The file comes from what the command line itself is made of, so that it cannot differ from it. Settings of a kind are those of
the kind named (`esscher init train --base.kind xlnet`), or of the default kind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass
from inspect import Parameter as Signature
from pathlib import Path
from textwrap import wrap
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from cyclopts import Argument

from esscher.cli.app import command_app
from esscher.cli.binding import chosen_kind
from esscher.cli.commands import COMMANDS
from esscher.core.console import write_data
from esscher.reports.report import Report

WIDTH = 110
HEAD = """\
Every setting of `esscher {verb}` with its default. A line without a value is required, or has no value by default: \
remove the # and give one. Flags override this file.

    esscher {verb} --config {file}
"""


@dataclass(frozen=True)
class InitConfig:
    """A line for each setting, with its help as a comment and its default as the value. `--config FILE` reads the file back to
    exactly the defaults. Kinds are chosen as on the command line: esscher init train --base.kind xlnet."""

    verb: tuple[str, ...] = field(metadata={"hyphens": True})
    """The verb, and the kinds of its parts, such as --base.kind xlnet."""
    out: str | None = field(default=None, kw_only=True)
    """File to write; standard output by default. An existing file is never replaced."""


def init(settings: InitConfig) -> Report | None:
    """Write the settings of a verb as YAML."""
    words = list(settings.verb)
    flags = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    verb, kinds = " ".join(words[:flags]), words[flags:]
    if verb not in COMMANDS or verb == "init":
        known = ", ".join(name for name in COMMANDS if name != "init")
        raise ValueError(f"There is no verb {verb!r}. Nothing was written; the verbs are: {known}.")
    text = settings_file(verb, kinds, settings.out or f"{verb.replace(' ', '-')}.yaml")
    if settings.out is None:
        write_data(text)
        return None
    file = Path(settings.out)
    if file.exists():
        raise FileExistsError(f"The file {file} exists already. Nothing was written; choose another name, or remove it.")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf8")
    return Report("esscher init", {"verb": verb, "file": file, "use": f"esscher {verb} --config {file}"}, {})


def settings_file(verb: str, kinds: Sequence[str], file: str) -> str:
    """The YAML of a verb with parts of these kinds, written as flags."""
    asked: set[str] = set()

    def chosen(path: str) -> str | None:
        asked.add(f"--{path}.kind")
        return chosen_kind(kinds, {}, path)

    app = command_app(verb.rpartition(" ")[2], COMMANDS[verb], chosen, 0)
    for word in kinds:
        if word.startswith("-") and word.partition("=")[0] not in asked:
            names = ", ".join(sorted(asked)) if asked else "none"
            raise ValueError(
                f"{word} does not choose a kind; flags of {verb} that do: {names}. Nothing was written; set values in the file."
            )
    lines = [f"# {line}".rstrip() for line in _head(verb, file)]
    for argument in app.assemble_argument_collection(parse_docstring=True):
        if argument.keys and len(argument.keys) == 1:
            lines += ["", *_lines(argument, _default(argument))]
    if all(line.startswith("#") for line in lines):
        lines.append("{}  # it has no settings")
    return "\n".join(lines) + "\n"


def _head(verb: str, file: str) -> Iterator[str]:
    for paragraph in HEAD.format(verb=verb, file=file).split("\n"):
        yield from (wrap(paragraph, WIDTH, break_on_hyphens=False) if not paragraph.startswith(" ") else [paragraph]) or [""]


def _lines(argument: Argument, default: Any, commented: bool = False) -> Iterator[str]:
    """The lines of one setting, or of a group of them; all are comments where the group is None by default."""
    indent, name = "  " * (len(argument.keys) - 1), _yaml(argument.keys[-1])  # YAML reads a plain `on` as a truth value
    help_ = " ".join((argument.parameter.help or "").split())
    choices = _choices(argument.hint) if not argument.children else ()
    about = f"{help_} One of: {', '.join(map(str, choices))}." if choices else help_
    yield from (f"{indent}# {line}" for line in wrap(about, WIDTH - len(indent), break_on_hyphens=False))
    if not argument.children:
        absent = default is Signature.empty or default is None or default == ()
        value = "" if absent else f" {_yaml(default)}"
        required = "  # required" if default is Signature.empty else ""
        yield f"{indent}{'# ' if absent or commented else ''}{name}:{value}{required}"
        return
    inner_commented = commented or default is None
    inside = [_lines(child, _inner(child, default), inner_commented) for child in argument.children]
    lines = [line for part in inside for line in part]
    active = any(line.strip() and not line.strip().startswith("#") for line in lines)
    yield f"{indent}{'' if active else '# '}{name}:"
    yield from lines


def _default(argument: Argument) -> Any:
    return argument.field_info.default


def _inner(child: Argument, default: Any) -> Any:
    """The default of a setting in a group: that of the group's own default, where it has one."""
    if is_dataclass(default) and not isinstance(default, type) and hasattr(default, child.keys[-1]):
        return getattr(default, child.keys[-1])
    return _default(child)


def _choices(hint: Any) -> tuple[Any, ...]:
    """The words of a `Literal`, with None left out."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return next((words for part in get_args(hint) if (words := _choices(part))), ())
    return ()


def _yaml(value: Any) -> str:
    """A plain value on one line."""
    import yaml

    plain = list(value) if isinstance(value, tuple) else value
    dumped: str = yaml.safe_dump(plain, default_flow_style=True, width=10**6)
    return dumped.removesuffix("\n").removesuffix("\n...")
