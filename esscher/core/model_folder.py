"""The one door to models and tokenizers of `transformers`, and what a folder of someone else's may not do.

`load_pretrained` is the only caller of `from_pretrained`: local files, safetensors, no code of the folder. Before anything is
loaded, `check_folder` refuses what would run code or read another place: `auto_map`, kernels by name, adapters that name a
base, pickled weights, an index or settings that name files outside, links that leave the folder. The weights that a config
describes are counted while the model is built without memory, and refused if they exceed the machine's.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

from esscher.core.bounded_files import RefusedError, refuse_link_outside
from esscher.core.memory import MAX_TENSORS, bounded_weights, check_weights_fit
from esscher.core.reading import read_json

INDEX, ADAPTER = "model.safetensors.index.json", "adapter_config.json"
CODE_KEYS = ("auto_map", "custom_pipelines", "custom_generate")  # name Python files of the folder or of the hub
KERNEL_KEYS = ("attn_implementation", "experts_implementation", "kernel_config")  # name compiled code if there is a slash
OTHER_MODEL_KEYS = ("use_pretrained_backbone",)  # a model that is loaded from elsewhere
PATH_KEYS = ("_file", "_path", "vocab", "merges", "init_inputs")  # endings of keys whose values may be opened
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
SETTINGS = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "processor_config.json", "preprocessor_config.json", "chat_template.json",
)  # fmt: skip


def load_pretrained(auto: str, folder: Path, **options: Any) -> Any:
    """What the class `auto` of `transformers` loads from a folder, which is checked before."""
    gguf = "gguf_file" in options
    check_folder(folder)
    _check_paths(folder)
    if auto.startswith("AutoModel") and not gguf:
        _check_weights(folder)
    if auto.startswith("AutoModel") and not gguf:
        options["use_safetensors"] = True
    most = _most_tensors(folder) if auto.startswith("AutoModel") and not gguf else MAX_TENSORS
    with quiet_transformers(), bounded_weights(f"The model that {folder} describes", most):
        loader = getattr(import_module("transformers"), auto)
        return loader.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False, **options)


def model_from_config(auto: str, config: Any, weights: Path | None = None, **options: Any) -> Any:
    """The model of a config that `load_pretrained` returned, with random weights; those in the folder `weights` must fit."""
    loader = getattr(import_module("transformers"), auto)

    def build() -> Any:
        return loader.from_config(deepcopy(config), trust_remote_code=False, **options)

    with quiet_transformers():
        with import_module("transformers.initialization").no_init_weights():
            most = MAX_TENSORS if weights is None else _most_tensors(weights)
            check_weights_fit(f"The model of this {type(config).__name__}", build, most)
        return build()


def check_folder(folder: Path) -> None:
    """Refuse a folder of any kind whose settings name code or another model, or whose files are links that leave it."""
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        refuse_link_outside(file, folder)
    for name in SETTINGS:
        if (folder / name).is_file():
            _check_code(read_json(folder / name), folder / name)
    if (folder / ADAPTER).is_file():
        base = read_json(folder / ADAPTER)
        named = base.get("base_model_name_or_path") if isinstance(base, dict) else None
        raise RefusedError(
            f"The folder {folder} holds an adapter ({ADAPTER}) for the base {named!r}, which would be loaded in its place. "
            f"Nothing was loaded; merge the adapter into its base with peft (merge_and_unload), and save that."
        )


def _check_weights(folder: Path) -> None:
    """Refuse pickled weights, and an index that names anything but safetensors files inside of the folder."""
    present = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    safe, pickled = (sorted(n for n in present if n.endswith(e)) for e in (".safetensors", PICKLED))
    if not safe and pickled:
        raise RefusedError(
            f"The weights in {folder} are pickled ({pickled[0]}), and reading a pickle runs the code in it. Nothing was "
            f"loaded; if you trust the file, convert it with transformers: from_pretrained, then save_pretrained."
        )
    if not safe:
        raise FileNotFoundError(f"The folder {folder} holds no *.safetensors file: it has no weights. Nothing was loaded.")
    for index in sorted(name for name in present if name.endswith(".index.json")):
        values = read_json(folder / index)
        names = values.get("weight_map") if isinstance(values, dict) else None
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise ValueError(f"{folder / index} has no weight_map of file names. Nothing was loaded; restore it.")
        if index != INDEX and INDEX not in present and "model.safetensors" in present:
            continue  # of the pickled copy beside it, which is not read
        wrong = [name for name in names.values() if Path(name).name != name or not name.endswith(".safetensors")]
        if wrong and index == INDEX:
            raise RefusedError(
                f"{folder / index} names the weights {wrong[0]!r}, which is no safetensors file of this folder. Nothing was "
                f"loaded; weights are read from safetensors beside the index only."
            )


def _most_tensors(folder: Path) -> int:
    """The most tensors of a model that the weights of a folder belong to; some are tied, and some are not saved."""
    from esscher.core.storage import open_tensors  # here, because it imports torch

    tensors = 0
    for file in folder.glob("*.safetensors"):
        with open_tensors(file) as content:
            tensors += len(content.keys())
    return min(MAX_TENSORS, 1000 + 4 * tensors)


def _check_code(settings: Any, file: Path) -> None:
    """Refuse settings that name code or another model, at any depth."""
    for name, value in _named_values(settings):
        if name in CODE_KEYS and value:
            raise RefusedError(
                f"{file} has {name!r}: the model would run Python code that came with it ({str(value)[:80]}). Nothing was "
                f"loaded or run; code of others is never run here. If transformers knows the model itself, remove the key."
            )
        if name.removeprefix("_") in KERNEL_KEYS and "/" in str(value):
            raise RefusedError(f"{file} names compiled code, {name} = {str(value)[:60]!r}. Nothing was loaded; remove the key.")
        if name in OTHER_MODEL_KEYS and value:
            raise RefusedError(f"{file} has {name!r}: another model would be loaded. Nothing was loaded; remove the key.")


def _check_paths(folder: Path) -> None:
    """Refuse settings of `transformers` that name an existing file outside of the folder, which some tokenizers would open."""
    for file in (folder / name for name in SETTINGS if (folder / name).is_file()):
        for name, value in _named_values(read_json(file)):
            if isinstance(value, str) and _is_file_outside(value, name, folder):
                raise RefusedError(
                    f"{file} names the file {value!r} ({name}), outside of its folder. Nothing was loaded; put the file into "
                    f"the folder, or remove the key."
                )


def _named_values(settings: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All values in nested settings, each with the key that it stands under."""
    yield name, settings
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield from _named_values(value, key)
    elif isinstance(settings, list):
        for value in settings:
            yield from _named_values(value, name)


def _is_file_outside(value: str, key: str, folder: Path) -> bool:
    """Whether a setting is the path of a file that exists, but not in the folder; the name that a model had is no path."""
    if key.endswith("name_or_path") or not (key.endswith(PATH_KEYS) or any(mark in value for mark in "/\\.")):
        return False
    try:
        place = Path(value).expanduser()
        outside = not Path(os.path.realpath(place)).is_relative_to(os.path.realpath(folder))
        return place.is_file() and outside
    except (OSError, RuntimeError, ValueError):  # too long, an unknown user, a null character: no path
        return False


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress the progress bars, logs and warnings of transformers."""
    logging: Any = import_module("transformers.utils.logging")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
