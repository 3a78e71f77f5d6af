"""What kept work was made with: a record of digests beside the files, so that work of another model or setting is never used.

    made_with.json    digests of base, energy, data and settings, by name

Work whose record differs, or that has none, is refused, or made anew where it is a by-product of the run that owns the folder.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from torch import Tensor, nn

from esscher.core.config import changed_key
from esscher.core.distributed import is_main_process
from esscher.core.draws import Draws
from esscher.core.reading import parse_json, read_json_object
from esscher.core.space import Sequences
from esscher.core.storage import digest, module_tensors, write_json
from esscher.core.target import Base, Energy, Tilted
from esscher.energies.features import LogLinear
from esscher.objectives.noise_contrastive import base_fingerprint

RECORD = "made_with.json"


def claim_folder(
    folder: Path,
    made_with: Mapping[str, Any],
    *,
    kept: Sequence[str] = ("*.safetensors",),
    remake: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Let the work in a folder belong to what it is made with.

    Args:
        made_with: JSON values, such as digests, by what they are of.
        kept: patterns of the files that hold the work.
        remake: remove work that was made with something else, instead of refusing it.
    """
    if not is_main_process():
        return
    before, now = _read(folder / RECORD), parse_json(json.dumps(made_with), RECORD)
    found = [file for pattern in kept for file in sorted(folder.glob(pattern))]
    changed = changed_key(before, now) if before is not None else ("record", "none", "one") if found else None
    if changed is None and before is not None:
        return
    if changed is not None and found:
        name, old, new = changed
        if before is None:
            difference = f"The work in {folder} does not say what it was made with ({RECORD} is missing or damaged)"
        else:
            difference = f"By {RECORD}, the work in {folder} was made with {name} = {old!r}, and now {name} = {new!r}"
        if not remake:
            raise ValueError(
                f"{difference}: it would be used for something else. Nothing was changed; give the old {name} back, choose "
                f"another folder, or remove this one."
            )
        say(f"{difference}: it is made anew.")
        for file in found:
            file.unlink()
    write_json(folder / RECORD, now)


def target_digests(target: Tilted) -> dict[str, str]:
    """Digests of the base and of the energy."""
    return {"base": base_fingerprint(target.base) or fingerprint(target.base), "energy": energy_fingerprint(target.energy)}


def proposal_digests(proposal: Base | None) -> dict[str, str]:
    """The digest of a proposal; nothing without one."""
    return {} if proposal is None else {"proposal": base_fingerprint(proposal) or fingerprint(proposal)}


def energy_fingerprint(energy: Energy) -> str:
    """A digest of an energy: its weights and features, or the code of a function with the values that it uses."""
    if isinstance(energy, nn.Module):
        names = [feature.name for feature in energy.features] if isinstance(energy, LogLinear) else []
        return fingerprint((type(energy).__qualname__, names, digest(module_tensors(energy))))
    return fingerprint(energy)


def sequences_fingerprint(x: Sequences) -> str:
    """A digest of sequences, whatever stands in their padding."""
    return digest({"tokens": x.tokens.where(x.inside, 0), "start": x.start, "stop": x.stop})


def draws_fingerprint(draws: Draws) -> str:
    """A digest of weighted draws."""
    return fingerprint((sequences_fingerprint(draws.x), draws.log_weight, draws.log_base))


def fingerprint(value: Any) -> str:
    """A digest of plain values, tensors, modules, dataclasses and functions; of other objects only the type counts."""
    content_hash = hashlib.blake2b(digest_size=16)
    content_hash.update(repr(_plain(value, 0)).encode())
    return content_hash.hexdigest()


MAX_DEPTH = 8  # of values inside values


def _plain(value: Any, depth: int) -> Any:
    """The value as nested tuples of words and numbers, the same in every process."""
    inside = functools.partial(_plain, depth=depth + 1)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if value is None or isinstance(value, bool | int | float | str | bytes | Path):
        return value
    if depth > MAX_DEPTH:
        return kind
    if isinstance(value, Tensor):
        return kind, digest({"": value})
    if isinstance(value, nn.Module):
        return kind, digest(module_tensors(value))
    if isinstance(value, Mapping):
        return tuple((inside(key), inside(entry)) for key, entry in value.items())
    if isinstance(value, tuple | list):
        return tuple(map(inside, value))
    if isinstance(value, functools.partial):
        return inside((value.func, value.args, value.keywords))
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, tuple(map(inside, value.co_consts))
    if hasattr(value, "__code__"):
        cells = tuple(cell.cell_contents for cell in getattr(value, "__closure__", None) or ())
        return value.__qualname__, inside((value.__code__, value.__defaults__, cells, getattr(value, "__self__", None)))
    if is_dataclass(value) and not isinstance(value, type):
        return kind, tuple((field.name, inside(getattr(value, field.name))) for field in fields(value))
    return kind


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return read_json_object(file) if file.is_file() else None
    except ValueError:
        return None  # corrupted, and so no record
