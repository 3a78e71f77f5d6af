"""Folders of energies that are networks.

    config.json         model_type "esscher-bidirectional-energy" ..., the settings, the base (path and digest), log Z
    model.safetensors   the weights
    reader/             of pretrained readers: their config and tokenizer in the manner of Hugging Face, without weights
    README.md           the same for people

A folder stands by itself, except that a shared reader needs its base.
"""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from torch import nn

from esscher.cut import Cut
from esscher.energies.building import AnyReader
from esscher.energies.config import EnergyConfig, from_dict, to_dict
from esscher.energies.encoder import TextReader
from esscher.energies.network import NetworkEnergy
from esscher.energies.origin import refuse_other_base
from esscher.energies.pretrained import read_tokenizer
from esscher.energies.readers import NetworkReader, SharedReader
from esscher.energies.reading import Decode
from esscher.energies.saved_reader import READER, empty_model, empty_reader, save_reader
from esscher.estimate import Estimate
from esscher.randomness import Seeded
from esscher.storage import fill_module, read_tensors, write_file, write_json, write_tensors
from esscher.target import Base

CONFIG, CARD, WEIGHTS = "config.json", "README.md", "model.safetensors"
SUFFIX = "-energy"
KINDS = tuple(f"esscher-{reader}{SUFFIX}" for reader in ("unidirectional", "bidirectional", "encoder", "shared"))


@dataclass(frozen=True)
class Origin:
    """What an energy was trained on: folder and digest of the base, log Z of the tilted model, the seed, how text was cut."""

    base: str
    base_digest: str
    log_z: Estimate
    seed: int
    cut: Cut = field(default_factory=Cut)


@dataclass(frozen=True)
class SavedNetwork:
    """An energy that is a network, as it is kept in a folder."""

    folder: Path
    config: EnergyConfig
    origin: Origin
    vocab_size: int | None
    opening: int | None  # of pretrained readers of tokens

    @property
    def log_z(self) -> Estimate:
        return self.origin.log_z

    @property
    def cut(self) -> Cut:
        return self.origin.cut

    def energy(self, decode: Decode | None = None, base: Base | None = None) -> NetworkEnergy:
        """The energy itself, ready to be used; an encoder of text needs `decode`, a shared reader its base."""
        with Seeded(0).governs_torch():
            energy = NetworkEnergy(self._reader(decode, base), self.config)
        fill_module(energy, read_tensors(self.folder / WEIGHTS), self.folder / WEIGHTS)
        return energy.eval()

    def check_base(self, base: nn.Module) -> None:
        """Refuse a base with other weights, or another space, than the one this energy was trained on."""
        refuse_other_base(base, fitted_on=self.origin.base, known=self.origin.base_digest)

    def _reader(self, decode: Decode | None, base: Base | None) -> AnyReader:
        both_sides = self.config.reader != "unidirectional"
        if self.config.reader == "shared":
            if base is None:
                raise ValueError(
                    f"The energy in {self.folder} reads the states of its base. Nothing was loaded; give the base too."
                )
            return SharedReader(base)
        reader = empty_reader(self.folder, self.config.network, self.vocab_size, self.opening, both_sides=both_sides)
        if reader is not None:
            return reader
        if decode is None:
            raise ValueError(
                f"The energy in {self.folder} reads text. Nothing was loaded; give the decoder of the base's tokenizer."
            )
        return TextReader(empty_model(self.folder / READER), read_tokenizer(self.folder / READER, "energy"), decode)


def save_network_energy(folder: str | Path, energy: NetworkEnergy, origin: Origin) -> Path:
    """Write the folder; config.json last, so that a folder with one is whole."""
    folder, reader = Path(folder), energy.reader
    write_tensors(folder / WEIGHTS, save_reader(folder, energy))
    write_file(folder / CARD, _card(energy, origin).encode())
    state = {"vocab_size": getattr(energy, "vocab_size", None), "opening": getattr(reader, "opening", None)}
    kind = f"esscher-{energy.config.reader}{SUFFIX}"
    settings = {"model_type": kind, "energy": to_dict(energy.config), **state, **asdict(origin)}
    write_json(folder / CONFIG, settings)
    return folder


def saved_network(folder: Path, config: dict[str, Any]) -> SavedNetwork:
    """What the config.json of a folder says, its `model_type` apart."""
    known = {"energy", "vocab_size", "opening", *(one.name for one in fields(Origin))}
    if set(config) != known:
        raise ValueError(
            f"{folder / CONFIG} has keys {sorted(config)}; an energy of this type has {sorted(known)}. Nothing was loaded."
        )
    try:
        settings = from_dict(config["energy"])
        origin = Origin(
            config["base"], config["base_digest"], Estimate(**config["log_z"]), config["seed"], Cut(**config["cut"])
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{folder / CONFIG} does not describe an energy: {error} Nothing was loaded; restore the file."
        ) from error
    return SavedNetwork(folder, settings, origin, config["vocab_size"], config["opening"])


def _card(energy: NetworkEnergy, origin: Origin) -> str:
    config, learnt = energy.config, sum(weight.numel() for weight in energy.parameters())
    reads: Literal["text", "tokens"] = "text" if isinstance(energy.reader, TextReader) else "tokens"
    what = type(energy.reader.network if isinstance(energy.reader, NetworkReader) else getattr(energy.reader, "model", None))
    network = "the base's own states" if config.reader == "shared" else what.__name__
    return "\n".join(
        [
            f"---\nlibrary_name: esscher\ntags:\n- esscher-{config.reader}{SUFFIX}\n---\n",
            f"# An energy: {config.reader}\n",
            f"p(x) ~ a(x) exp(-E(x)), where a is the base in `{origin.base}` and E reads {reads} with {network}; "
            f"{learnt:,} parameters, pooling {config.pooling}.\n",
            f"log Z = {origin.log_z}\n",
            "```python\nfrom esscher.energies.saved import load_energy\n\n"
            "saved = load_energy('path/of/this/folder')\nsaved.check_base(base)\n"
            "energy = saved.energy(tokenizer.decode, base)\n```\n",
        ]
    )
