"""An energy's folder: what was declared, the fitted weights, and the base they belong to.

    config.json   model_type "esscher-log-linear", features with their weights, the base (path and digest), log Z
    README.md     the same for people

Weights fitted on one base mean nothing on another, so the base is known by the digest of its weights, and
`SavedEnergy.check_base` refuses any other. What it leaves out: energies that are networks.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from esscher.energies.declared import Declared, Decode, declared_feature
from esscher.energies.features import LogLinear
from esscher.estimate import Estimate
from esscher.storage import write_file, write_json

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

    def energy(self, decode: Decode) -> LogLinear:
        """The energy itself, reading the text that `decode` makes of tokens."""
        weights = torch.tensor([weight.value for weight in self.weights], dtype=torch.float64)
        return LogLinear([declared_feature(feature, decode) for feature in self.features], weights)

    def check_base(self, digest: str) -> None:
        """Refuse a base with other weights than the one this energy was fitted on."""
        if digest != self.base_digest:
            raise ValueError(
                f"This energy was fitted on the base in {self.base} (digest {self.base_digest[:12]}), and the base given "
                f"has digest {digest[:12]}: its weights mean nothing there. Nothing was computed; fit it anew on this base."
            )


def save_energy(folder: str | Path, saved: SavedEnergy) -> Path:
    """Write the folder; config.json last, so that a folder with one is whole."""
    folder = Path(folder)
    write_file(folder / CARD, _card(saved).encode())
    write_json(folder / CONFIG, {"model_type": MODEL_TYPE, **asdict(saved)})
    return folder


def load_energy(folder: str | Path) -> SavedEnergy:
    """Read a folder that `save_energy` wrote; a missing or changed one is an error that names it."""
    file = Path(folder) / CONFIG
    if not file.is_file():
        raise FileNotFoundError(f"There is no energy in {folder}: {file} is missing. Nothing was loaded; check the path.")
    try:
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf8"))
        kind = config.pop("model_type")
    except (ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} does not describe an energy: {error}. Nothing was loaded; restore the file.") from error
    if kind != MODEL_TYPE:
        raise ValueError(f"{folder} holds a model of type {kind!r}, not an energy ({MODEL_TYPE!r}). Nothing was loaded.")
    known = {one.name for one in fields(SavedEnergy)}
    if set(config) != known:
        raise ValueError(f"{file} has keys {sorted(config)}; an energy has {sorted(known)}. Nothing was loaded.")
    features = tuple(Declared(**one) for one in config.pop("features"))
    weights = tuple(Estimate(**one) for one in config.pop("weights"))
    return SavedEnergy(features, weights, log_z=Estimate(**config.pop("log_z")), **config)


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
