"""A learnt twist in the folder of its energy.

    twist_config.json    its network, its offset, the digests of base and energy that it belongs to, what it was learnt from
    twist.safetensors    its weights

Both are recorded in the folder's manifest. A twist of another base or energy is refused: its weights would be proper, and
useless. An energy that is fitted anew has another digest, so a twist that an older one left behind is never used silently.
"""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from esscher.core.config import from_dict, to_dict
from esscher.core.estimate import Estimate
from esscher.core.manifest import write_manifest
from esscher.core.reading import describing, read_json_object
from esscher.core.storage import module_tensors, read_tensors, write_json, write_tensors
from esscher.core.target import Base
from esscher.energies.config import TwistConfig
from esscher.energies.twist import LearntTwist, TwistSizes

TWIST_CONFIG, TWIST_WEIGHTS = "twist_config.json", "twist.safetensors"
TWIST_FILES = (TWIST_CONFIG, TWIST_WEIGHTS)


@dataclass(frozen=True)
class TwistOrigin:
    """What a twist belongs to and was learnt from: digests of base and energy, how many sequences were drawn, and log Z and the
    effective share of fresh draws of its proposal, beside that of the base."""

    base_digest: str
    energy_digest: str
    cost: int
    seed: int
    log_z: Estimate
    ess: float
    base_ess: float


@dataclass(frozen=True)
class SavedTwist:
    """A twist and its origin."""

    twist: LearntTwist
    origin: TwistOrigin


def save_twist(folder: Path, saved: SavedTwist) -> None:
    """Write a twist into the folder of its energy; the manifest last."""
    twist, origin = saved.twist, saved.origin
    (folder / TWIST_CONFIG).unlink(missing_ok=True)  # of other weights
    write_tensors(folder / TWIST_WEIGHTS, module_tensors(twist))
    facts = {"twist": to_dict(twist.config), "sizes": asdict(twist.sizes), "offset": twist.offset, **asdict(origin)}
    write_json(folder / TWIST_CONFIG, facts)
    write_manifest(folder, TWIST_FILES)


def has_twist(folder: Path) -> bool:
    """Whether the folder of an energy holds a twist."""
    return (folder / TWIST_CONFIG).is_file()


def load_twist(folder: Path, base: Base, *, base_digest: str, energy_digest: str) -> SavedTwist:
    """The twist of a folder, in evaluation mode; an error where it belongs to another base or energy."""
    file = folder / TWIST_CONFIG
    values = read_json_object(file)
    known = {"twist", "sizes", "offset", *(field.name for field in fields(TwistOrigin))}
    if set(values) != known:
        raise ValueError(f"{file} has keys {sorted(values)}; a twist has {sorted(known)}. Nothing was loaded.")
    with describing(file, "a twist"):
        network, sizes, offset = _parts(values)
        origin = from_dict(TwistOrigin, values)
    for what, stated, actual in (("base", origin.base_digest, base_digest), ("energy", origin.energy_digest, energy_digest)):
        if stated != actual:
            raise ValueError(
                f"The twist in {folder} was learnt for the {what} with digest {stated[:12]}, and this {what} has "
                f"{actual[:12]}: it knows nothing of it. Nothing was loaded; learn it anew, or remove {TWIST_CONFIG} and "
                f"{TWIST_WEIGHTS} and accept the folder (esscher verify {folder} --accept)."
            )
    if sizes != TwistSizes.of(base):
        raise ValueError(f"{file} has {sizes}, and its base has {TwistSizes.of(base)}. Nothing was loaded; restore the file.")
    with torch.device("meta"):  # the file says how large it is: nothing is allocated before the weights fit
        twist = LearntTwist(network, sizes, offset)
    tensors, expected = read_tensors(folder / TWIST_WEIGHTS), twist.state_dict()
    if {name: part.shape for name, part in tensors.items()} != {name: part.shape for name, part in expected.items()}:
        raise ValueError(f"The weights in {folder / TWIST_WEIGHTS} do not fit {file}. Nothing was loaded; restore both.")
    twist.load_state_dict(tensors, assign=True)
    return SavedTwist(twist.eval(), origin)


def _parts(values: dict[str, Any]) -> tuple[TwistConfig, TwistSizes, float]:
    network = from_dict(TwistConfig, values.pop("twist"), "twist.")
    sizes = from_dict(TwistSizes, values.pop("sizes"), "sizes.")
    return network, sizes, float(values.pop("offset"))
