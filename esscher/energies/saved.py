"""An energy's folder: what was declared, the fitted weights, and the base they belong to.

    config.json   model_type "esscher-log-linear", features with their weights, the base (path and digest), log Z
    README.md     the same for people

`load_energy` reads these and the folders of networks (`esscher.energies.saved_network`): both give
an energy by `.energy(decode, base)`, and refuse another base by `.check_base(base)`. So does what it gives for the word `own`,
the level of a base's own logits, which has no folder (`esscher.energies.own_level`).

Weights fitted on one base mean nothing on another, so the base is known by the digest of its weights and its space, and
`check_base` refuses any other. Files that features read (word lists, references, classifiers) stay where they
are; the folder has their path and the digest of their content, and `SavedEnergy.energy` refuses a changed one.
"""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from esscher.cut import Cut
from esscher.energies.content import pinned
from esscher.energies.declaration import Declared
from esscher.energies.declared import Decode, declared_features
from esscher.energies.features import LogLinear
from esscher.energies.origin import base_digest, refuse_other_base
from esscher.energies.own_level import SavedLevel, named_own
from esscher.energies.parsing import from_dict, to_dict
from esscher.energies.saved_network import KINDS, SavedNetwork, saved_network
from esscher.estimate import Estimate
from esscher.storage import write_file, write_json
from esscher.target import Base

__all__ = ["SavedEnergy", "SavedLevel", "SavedNetwork", "base_digest", "load_energy", "save_energy"]

CONFIG, CARD, MODEL_TYPE = "config.json", "README.md", "esscher-log-linear"


@dataclass(frozen=True)
class SavedEnergy:
    """A log-linear energy of declared features, as it is kept in a folder."""

    features: tuple[Declared, ...]
    weights: tuple[Estimate, ...]
    base: str  # the folder of the base it was fitted on
    base_digest: str
    log_z: Estimate
    seed: int
    cut: Cut = field(default_factory=Cut)

    def energy(self, decode: Decode | None = None, base: Base | None = None) -> LogLinear:
        """The energy itself, reading the text that `decode` makes of tokens; features on tokens alone need none."""
        weights = torch.tensor([weight.value for weight in self.weights], dtype=torch.float64)
        return LogLinear(declared_features(self.features, decode), weights)

    def check_base(self, base: nn.Module) -> None:
        """Refuse a base with other weights, or another space, than the one this energy was fitted on."""
        refuse_other_base(base, fitted_on=self.base, known=self.base_digest)


def save_energy(folder: str | Path, saved: SavedEnergy) -> Path:
    """Write the folder; config.json last, so that a folder with one is whole."""
    folder, saved = Path(folder), replace(saved, features=tuple(pinned(one) for one in saved.features))
    write_file(folder / CARD, _card(saved).encode())
    write_json(
        folder / CONFIG, {"model_type": MODEL_TYPE, **asdict(saved), "features": [to_dict(one) for one in saved.features]}
    )
    return folder


def load_energy(folder: str | Path) -> SavedEnergy | SavedNetwork | SavedLevel:
    """Read the folder of an energy of any kind, or `own`; a missing or changed one is an error that names it."""
    if named_own(folder):
        return SavedLevel()
    file = Path(folder) / CONFIG
    if not file.is_file():
        raise FileNotFoundError(f"There is no energy in {folder}: {file} is missing. Nothing was loaded; check the path.")
    try:
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf8"))
        kind = config.pop("model_type")
    except (ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} does not describe an energy: {error}. Nothing was loaded; restore the file.") from error
    if kind in KINDS:
        return saved_network(Path(folder), config)
    if kind != MODEL_TYPE:
        types = ", ".join([MODEL_TYPE, *KINDS])
        raise ValueError(f"{folder} holds a model of type {kind!r}, not an energy ({types}). Nothing was loaded.")
    return _log_linear(file, config)


def _log_linear(file: Path, config: dict[str, Any]) -> SavedEnergy:
    known = {one.name for one in fields(SavedEnergy)}
    if set(config) != known:
        raise ValueError(f"{file} has keys {sorted(config)}; an energy has {sorted(known)}. Nothing was loaded.")
    try:
        features = tuple(from_dict(one) for one in config.pop("features"))
    except ValueError as error:
        raise ValueError(f"{file} has a feature that cannot be used: {error} Nothing was loaded; restore the file.") from error
    weights = tuple(Estimate(**one) for one in config.pop("weights"))
    log_z, cut = Estimate(**config.pop("log_z")), Cut(**config.pop("cut"))
    return SavedEnergy(features, weights, log_z=log_z, cut=cut, **config)


def _card(saved: SavedEnergy) -> str:
    pairs = zip(saved.features, saved.weights, strict=True)
    rows = [f"| {one.title} | {one.kind} | {weight} |" for one, weight in pairs]
    return "\n".join(
        [
            "---\nlibrary_name: esscher\ntags:\n- esscher-log-linear\n---\n",
            "# A log-linear energy\n",
            f"p(x) ~ a(x) exp(sum of weight times feature), where a is the base in `{saved.base}`.\n",
            f"log Z = {saved.log_z}\n",
            "| feature | kind | weight |\n| --- | --- | --- |",
            *rows,
            "",
        ]
    )
