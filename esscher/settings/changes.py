"""What was started with some settings is resumed with the same."""

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

MAY_CHANGE = ("tracker", "sharded", "recompute")  # settings that a resumed run may have otherwise


def changed_key(old: Any, new: Any, prefix: str = "") -> tuple[str, Any, Any] | None:
    """The first setting that differs between two nested settings and may not: its dotted key, the old and the new value."""
    old, new = (asdict(value) if is_dataclass(value) and not isinstance(value, type) else value for value in (old, new))
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return None if old == new else (prefix.removesuffix("."), old, new)
    for key in [*old, *(key for key in new if key not in old)]:
        if key in MAY_CHANGE:
            continue
        found = changed_key(old.get(key), new.get(key), f"{prefix}{key}.")
        if found is not None:
            return found
    return None


def refuse_change(what: str, old: Any, new: Any) -> None:
    """An error that names the first setting that differs and may not."""
    changed = changed_key(old, new)
    if changed is not None:
        key, before, now = changed
        raise ValueError(
            f"{what} was started with {key} = {before!r}, and is resumed with {key} = {now!r}: it would not be the same run. "
            f"Nothing was trained or changed; give the old value back, or start a new run in another folder."
        )
