"""Folders of energies, and the digest of the base that an energy belongs to.

    config.json         model_type, the settings or features with their weights, the base (path and digest), log Z
    README.md           the same for people
    model.safetensors   of network energies: the weights, LoRA adapters merged, so that loading needs no `peft`
    encoder/            of pretrained encoders: config and tokenizer as Hugging Face writes them, without weights

An energy refuses a base whose digest of weights and space differs. Files that features read stay where they are; the folder
holds their paths and digests, and a changed file is refused.
"""

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from esscher.core.bounded_files import RefusedError
from esscher.core.chunking import Chunking
from esscher.core.config import from_dict, to_dict
from esscher.core.estimate import Estimate
from esscher.core.manifest import check_manifest, write_manifest
from esscher.core.model_folder import check_folder, load_pretrained, model_from_config
from esscher.core.randomness import SeededRng
from esscher.core.reading import describing, read_json_object
from esscher.core.space import Space
from esscher.core.storage import (
    digest,
    load_module_tensors,
    module_tensors,
    read_tensors,
    write_file,
    write_json,
    write_tensors,
)
from esscher.core.target import Base
from esscher.core.truncation import Truncation
from esscher.energies.config import EncoderKind, EnergyConfig
from esscher.energies.declared_features import features_from_specs
from esscher.energies.encoders import NetworkEncoder, PretrainedEncoder, SharedEncoder, TextEncoder
from esscher.energies.feature_spec import FeatureSpec, spec_from_dict, spec_to_dict
from esscher.energies.features import Decode, LogLinear
from esscher.energies.network import AnyEncoder, NetworkEnergy, network_encoder
from esscher.energies.pretrained import merge_lora, read_tokenizer
from esscher.energies.self_energy import SavedSelfEnergy, is_self_energy
from esscher.energies.text_scorers import with_digest
from esscher.networks.registry import NetworkConfig

CONFIG_FILE, CARD_FILE, WEIGHTS_FILE, ENCODER_FOLDER = "config.json", "README.md", "model.safetensors", "encoder"
LOG_LINEAR_TYPE = "esscher-log-linear"
NETWORK_TYPES = tuple(f"esscher-{kind}-energy" for kind in get_args(EncoderKind))


def base_digest(base: nn.Module) -> str:
    """A digest of a base's weights and space."""
    space = getattr(base, "space", None)
    assert isinstance(space, Space)
    numbers = [space.vocab_size, space.max_length, -1 if space.eos is None else space.eos]
    return digest({**module_tensors(base), "space": torch.tensor(numbers)})


def refuse_wrong_base(base: nn.Module, *, fitted_on: str, known: str) -> None:
    """Raise an error unless the base has the digest `known`; `fitted_on` is the folder that had it."""
    actual = base_digest(base)
    if actual != known:
        raise ValueError(
            f"This energy was fitted on the base in {fitted_on} (digest {known[:12]}), and the base given has digest "
            f"{actual[:12]}: the energy is meaningless there. Nothing was computed; give that base, with the same maximum "
            f"length and end symbol, or fit the energy anew on this one."
        )


def save_encoder(folder: Path, module: nn.Module) -> dict[str, Tensor]:
    """Write config and tokenizer of the module's pretrained `encoder`, if any; return the tensors of the module to save."""
    encoder, tensors = module.encoder, module_tensors(module)
    if isinstance(encoder, PretrainedEncoder | TextEncoder):
        merged: Any = merge_lora(encoder.model)
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("encoder.model.")}
        tensors |= {f"encoder.model.{name}": tensor for name, tensor in module_tensors(merged).items()}
        merged.config.save_pretrained(str(folder / ENCODER_FOLDER))
        if isinstance(encoder, TextEncoder):
            encoder.tokenizer.save_pretrained(str(folder / ENCODER_FOLDER))
    return tensors


def empty_encoder(
    folder: Path, network: NetworkConfig | None, vocab_size: int | None, bos: int | None, *, bidirectional: bool
) -> NetworkEncoder | PretrainedEncoder | None:
    """An encoder of tokens with the shapes of the saved weights; None if the folder's encoder reads text."""
    if network is not None:
        assert vocab_size is not None
        return network_encoder(network, vocab_size, bidirectional=bidirectional)
    return None if bos is None else PretrainedEncoder(_empty_model(folder / ENCODER_FOLDER), bos, bidirectional=bidirectional)


def _empty_model(folder: Path) -> nn.Module:
    """The Hugging Face model of a config, with the shapes of the saved weights."""
    try:
        return model_from_config("AutoModel", load_pretrained("AutoConfig", folder), folder.parent)
    except RefusedError:
        raise
    except Exception as error:  # of many classes: an unknown type, a missing file, settings that do not fit together
        raise ValueError(f"{folder} does not describe a network: {error}. Nothing was loaded; restore the folder.") from error


@dataclass(frozen=True)
class Origin:
    """What an energy was trained on: folder and digest of the base, the seed, the chunking; and log Z of the tilted model."""

    base: str
    base_digest: str
    log_z: Estimate
    seed: int
    chunking: Chunking = field(default_factory=Chunking)
    verdict: str = "good"  # on the draws behind log Z


@dataclass(frozen=True)
class SavedNetworkEnergy:
    """A network energy in a folder."""

    folder: Path
    config: EnergyConfig
    origin: Origin
    vocab_size: int | None
    bos: int | None  # of pretrained encoders of tokens

    @property
    def log_z(self) -> Estimate:
        return self.origin.log_z

    @property
    def chunking(self) -> Chunking:
        return self.origin.chunking

    def energy(self, decode: Decode | None = None, base: Base | None = None) -> NetworkEnergy:
        """The energy, in evaluation mode; an encoder of text needs `decode`, a shared encoder its base."""
        with SeededRng(0).fork_torch_rng():
            energy = NetworkEnergy(self._encoder(decode, base), self.config)
        load_module_tensors(energy, read_tensors(self.folder / WEIGHTS_FILE), self.folder / WEIGHTS_FILE)
        return energy.eval()

    def check_base(self, base: nn.Module) -> None:
        """Refuse a base with other weights, or another space, than the one this energy was trained on."""
        refuse_wrong_base(base, fitted_on=self.origin.base, known=self.origin.base_digest)

    def _encoder(self, decode: Decode | None, base: Base | None) -> AnyEncoder:
        config, folder = self.config, self.folder / ENCODER_FOLDER
        if config.kind == "shared":
            if base is None:
                raise ValueError(f"The energy in {self.folder} reads its base. Nothing was loaded; give the base too.")
            return SharedEncoder(base)
        bidirectional = config.kind != "unidirectional"
        encoder = empty_encoder(self.folder, config.network, self.vocab_size, self.bos, bidirectional=bidirectional)
        if encoder is not None:
            return encoder
        if decode is None:
            raise ValueError(f"The energy in {self.folder} reads text. Nothing was loaded; give the base's decoder.")
        return TextEncoder(_empty_model(folder), read_tokenizer(folder, "energy"), decode)


@dataclass(frozen=True)
class SavedLogLinear:
    """A log-linear energy of declared features in a folder."""

    features: tuple[FeatureSpec, ...]
    weights: tuple[Estimate, ...]
    base: str  # the folder of the base it was fitted on
    base_digest: str
    log_z: Estimate
    seed: int
    chunking: Chunking = field(default_factory=Chunking)
    verdict: str = "good"  # on the draws behind log Z and the moments
    wanted: tuple[float, ...] = ()  # the mean of each feature that the weights were fitted to
    moments: tuple[Estimate, ...] = ()  # the mean of each feature under the tilted model, by draws not fitted on
    prompt: str | None = None  # the text after which the weights were fitted, and log Z is; None is no prompt
    truncation: Truncation = field(default_factory=Truncation)  # of the base that the weights were fitted on

    def energy(self, decode: Decode | None = None, base: Base | None = None) -> LogLinear:
        """The energy; features of text need `decode`, which turns tokens into text."""
        weights = torch.tensor([weight.value for weight in self.weights], dtype=torch.float64)
        return LogLinear(features_from_specs(self.features, decode), weights)

    def check_base(self, base: nn.Module) -> None:
        """Refuse a base with other weights, or another space, than the one this energy was fitted on."""
        refuse_wrong_base(base, fitted_on=self.base, known=self.base_digest)


def save_network_energy(folder: str | Path, energy: NetworkEnergy, origin: Origin) -> Path:
    """Write the folder; config.json and the manifest last, so that a folder with them is complete."""
    folder, config, encoder = Path(folder), energy.config, energy.encoder
    (folder / CONFIG_FILE).unlink(missing_ok=True)  # of other weights
    write_tensors(folder / WEIGHTS_FILE, save_encoder(folder, energy))
    network = type(encoder.network if isinstance(encoder, NetworkEncoder) else getattr(encoder, "model", None)).__name__
    description = (
        f"E reads {'text' if isinstance(encoder, TextEncoder) else 'tokens'} with "
        f"{'the hidden states of the base' if config.kind == 'shared' else network}; "
        f"{sum(weight.numel() for weight in energy.parameters()):,} parameters, pooling {config.pooling}."
    )
    usage = (
        "```python\nfrom esscher.energies.serialization import load_energy\n\nsaved = load_energy('path/of/this/folder')\n"
        "saved.check_base(base)\nenergy = saved.energy(tokenizer.decode, base)\n```\n"
    )
    model_type = f"esscher-{config.kind}-energy"
    _write_card(folder, model_type, f"An energy: {config.kind}", description, origin.base, origin.log_z, usage)
    sizes = {"vocab_size": getattr(energy, "vocab_size", None), "bos": getattr(encoder, "bos", None)}
    write_json(folder / CONFIG_FILE, {"model_type": model_type, "energy": to_dict(config), **sizes, **asdict(origin)})
    write_manifest(folder)
    return folder


def save_energy(folder: str | Path, saved: SavedLogLinear) -> Path:
    """Write the folder; config.json and the manifest last, so that a folder with them is complete."""
    folder, saved = Path(folder), replace(saved, features=tuple(with_digest(spec) for spec in saved.features))
    pairs = zip(saved.features, saved.weights, strict=True)
    table = [
        "| feature | kind | weight |\n| --- | --- | --- |",
        *(f"| {spec.title} | {spec.kind} | {weight} |" for spec, weight in pairs),
        "",
    ]
    description = "-E(x) is the sum of weight times feature."
    if saved.truncation.truncates:
        settings = ", ".join(f"{name} {value:g}" for name, value in saved.truncation.changed_settings().items())
        description += f" The base is truncated: {settings}."
    if saved.prompt is not None:
        description += f" Weights and log Z are for continuations of {saved.prompt!r}."
    _write_card(folder, LOG_LINEAR_TYPE, "A log-linear energy", description, saved.base, saved.log_z, "\n".join(table))
    features = [spec_to_dict(spec) for spec in saved.features]
    write_json(folder / CONFIG_FILE, {"model_type": LOG_LINEAR_TYPE, **asdict(saved), "features": features})
    write_manifest(folder)
    return folder


def _write_card(folder: Path, model_type: str, title: str, description: str, base: str, log_z: Estimate, details: str) -> None:
    lines = [
        f"---\nlibrary_name: esscher\ntags:\n- {model_type}\n---\n",
        f"# {title}\n",
        f"p(x) ~ a(x) exp(-E(x)), where a is the base in `{base}`. {description}\n",
        f"log Z = {log_z}\n",
        details,
    ]
    write_file(folder / CARD_FILE, "\n".join(lines).encode())


def load_energy(folder: str | Path) -> SavedLogLinear | SavedNetworkEnergy | SavedSelfEnergy:
    """Read the folder of an energy of any kind, or the word `self`; a missing or corrupt folder is an error that names it."""
    if is_self_energy(folder):
        return SavedSelfEnergy()
    file = Path(folder) / CONFIG_FILE
    if not file.is_file():
        raise FileNotFoundError(f"There is no energy in {folder}: {file} is missing. Nothing was loaded; check the path.")
    check_folder(file.parent)
    check_manifest(Path(folder))
    config = read_json_object(file)
    model_type = config.pop("model_type", None)
    if model_type not in (LOG_LINEAR_TYPE, *NETWORK_TYPES):
        types = ", ".join([LOG_LINEAR_TYPE, *NETWORK_TYPES])
        raise ValueError(f"{file} holds a model of type {model_type!r}, not an energy ({types}). Nothing was loaded.")
    own = ["energy", "vocab_size", "bos"] if model_type in NETWORK_TYPES else [entry.name for entry in fields(SavedLogLinear)]
    known = {*own, *(field_.name for field_ in fields(Origin))}
    if set(config) != known:
        raise ValueError(f"{file} has keys {sorted(config)}; an energy of this type has {sorted(known)}. Nothing was loaded.")
    with describing(file, "an energy"):
        return (_read_network if model_type in NETWORK_TYPES else _read_log_linear)(file, config)


def _read_network(file: Path, config: dict[str, Any]) -> SavedNetworkEnergy:
    settings = from_dict(EnergyConfig, config.pop("energy"), "energy.")
    sizes = config.pop("vocab_size"), config.pop("bos")
    if not all(isinstance(size, int | None) for size in sizes):
        raise ValueError(f"vocab_size and bos are {sizes}")
    return SavedNetworkEnergy(file.parent, settings, from_dict(Origin, config), *sizes)


def _read_log_linear(file: Path, config: dict[str, Any]) -> SavedLogLinear:
    features = tuple(spec_from_dict(values) for values in config.pop("features"))
    unknown = next((spec for spec in features if spec.source and not spec.digest), None)
    if unknown is not None:
        raise RefusedError(
            f"{file} has the feature {unknown.title!r}, which reads {unknown.source} without stating its digest, so any file "
            f"could be there. Nothing was loaded; save the energy anew."
        )
    weights = tuple(from_dict(Estimate, values, "weights.") for values in config.pop("weights"))
    if len(features) != len(weights):
        raise ValueError(f"it has {len(features)} features and {len(weights)} weights")
    moments = tuple(from_dict(Estimate, values, "moments.") for values in config.pop("moments"))
    wanted = tuple(float(value) for value in config.pop("wanted"))
    if any(part and len(part) != len(features) for part in (moments, wanted)):
        raise ValueError(f"it has {len(features)} features, {len(wanted)} wanted means and {len(moments)} means")
    prompt, truncation = config.pop("prompt"), from_dict(Truncation, config.pop("truncation"), "truncation.")
    if not isinstance(prompt, str | None):
        raise ValueError(f"its prompt is {prompt!r}, which is no text")
    origin = {field_.name: getattr(from_dict(Origin, config), field_.name) for field_ in fields(Origin)}
    return SavedLogLinear(features, weights, **origin, wanted=wanted, moments=moments, prompt=prompt, truncation=truncation)
