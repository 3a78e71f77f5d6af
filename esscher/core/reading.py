"""The only readers of JSON and YAML, without torch: whatever is wrong with a file is an error that names it.

What a file can cost is bounded: its size, its depth, and what the aliases of YAML stand for. Safetensors have one reader,
too: `esscher.core.storage.read_tensors`. Left out: lists of rows that people bring as data.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esscher.core.bounded_files import RefusedError

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 256 * 2**20  # of a JSON or YAML file; a vocabulary has up to some 50 MB
MAX_NODES = 200_000  # of a YAML file, each alias counted as what it stands for
RESTORE = "Nothing was loaded; restore the file."


def read_text(file: Path, *, then: str = RESTORE) -> str:
    """The text of a UTF-8 file; `then` is what became of the work and what to do, for the error."""
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise RefusedError(f"The file {file} has {size:,} bytes; settings have at most {MAX_BYTES:,}. {then}")
        return file.read_text(encoding="utf8")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"There is no file {file}. {then}") from error
    except (UnicodeDecodeError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"The file {file} cannot be read as text: {reason}. {then}") from error


def read_json(file: Path, *, then: str = RESTORE, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """The value in a JSON file; `hook` converts its objects."""
    return parse_json(read_text(file, then=then), f"The file {file}", then=then, hook=hook)


def read_json_object(file: Path, *, then: str = RESTORE) -> dict[str, Any]:
    """The JSON object in a file."""
    return _mapping(read_json(file, then=then), file, "JSON object", then)


def read_json_lines(file: Path, *, then: str = RESTORE) -> list[dict[str, Any]]:
    """The JSON object in each line that is complete; a last line without an end is of a write that was interrupted."""
    lines = read_text(file, then=then).split("\n")[:-1]
    rows = [(f"{file}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    return [_mapping(parse_json(line, where, then=then), where, "JSON object", then) for where, line in rows]


def parse_json(text: str | bytes, where: str, *, then: str = RESTORE, hook: Callable[..., Any] | None = None) -> Any:
    """The value of a JSON text, which is at `where`."""
    try:
        return json.loads(text, object_hook=hook)
    except RecursionError:
        raise RefusedError(f"{where} is nested too deeply. {then}") from None
    except (ValueError, TypeError) as error:
        raise RefusedError(f"{where} is not valid JSON: {error}. {then}") from error


def read_yaml(file: Path, *, then: str = RESTORE) -> Any:
    """The value in a YAML file."""
    import yaml

    text = read_text(file, then=then)
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        if root is not None and _expanded_nodes(root, {}) > MAX_NODES:
            raise RefusedError(f"{file} stands for more than {MAX_NODES:,} values by its aliases. {then}")
        return yaml.safe_load(text)
    except RefusedError:
        raise
    except RecursionError:
        raise RefusedError(f"{file} is nested too deeply, or an alias contains itself. {then}") from None
    except Exception as error:  # also ValueError and TypeError of what looks like dates or keys
        raise RefusedError(f"{file} is not valid YAML: {error}. {then}") from error


def _expanded_nodes(node: "yaml.Node", known: dict[int, int]) -> int:
    """How many nodes a node stands for, with aliases written out."""
    if id(node) not in known:
        children = node.value if isinstance(node.value, list) else []
        flat = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
        known[id(node)] = 1 + sum(_expanded_nodes(child, known) for child in flat)
    return known[id(node)]


def read_yaml_mapping(file: Path, *, then: str = RESTORE) -> dict[str, Any]:
    """The mapping of keys to values in a YAML file."""
    return _mapping(read_yaml(file, then=then), file, "mapping of keys to values", then)


def _mapping(value: Any, where: Path | str, what: str, then: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{where} holds no {what}. {then}")
    return value


@contextmanager
def describing(file: Path, what: str, *, then: str = RESTORE) -> Iterator[None]:
    """Turn errors in the block, which makes `what` of the file's values, into one that names the file."""
    try:
        yield
    except RefusedError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{file} does not describe {what}: {reason.removesuffix('.')}. {then}") from error
