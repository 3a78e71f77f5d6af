"""What every model folder has: its file names, its config, and how `generate` is told to sample."""

import json
from pathlib import Path
from typing import Any

from esscher.data.images import Codec
from esscher.data.tokenizers import Tokenizer
from esscher.space import Space
from esscher.storage import write_file

CONFIG, WEIGHTS, CARD, GENERATION = "config.json", "model.safetensors", "README.md", "generation_config.json"
PREFIX = "esscher-"


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model folder of any kind."""
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no model folder {folder}. Nothing was loaded; check the path, or train one there.")
    file = folder / CONFIG
    if not file.is_file():
        raise FileNotFoundError(f"The folder {folder} holds no {CONFIG}: it is no model, or its training has not ended.")
    return read_json(file)


def read_json(file: Path) -> dict[str, Any]:
    """The settings in a JSON file."""
    try:
        settings = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}. Nothing was loaded; restore the file.") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{file} holds no settings. Nothing was loaded; restore the file.")
    return settings


def plain_sampling(space: Space, *, begin: int | None, pad: int | None) -> dict[str, Any]:
    """Generation settings that sample from the model itself: the default of `generate` would cut to 50 tokens."""
    settings = {
        "do_sample": True,
        "top_k": 0,
        "top_p": 1.0,
        "temperature": 1.0,
        "max_new_tokens": space.max_length,
        "eos_token_id": space.eos,
        "bos_token_id": begin,
        "pad_token_id": pad,
    }
    return {key: value for key, value in settings.items() if value is not None}


def check_tokenizer(tokenizer: Tokenizer | Codec, space: Space) -> None:
    """A base is saved with the tokenizer it speaks."""
    if tokenizer.vocab_size != space.vocab_size:
        raise ValueError(
            f"The tokenizer has {tokenizer.vocab_size} tokens and the base speaks {space.vocab_size}. Nothing was saved; "
            f"save the base with the tokenizer it was trained on."
        )


def write_tokenizer(folder: Path, tokenizer: Tokenizer | Codec | None) -> None:
    """The files of the tokenizer, or of a codec, when there is one."""
    for file, content in (tokenizer.files() if tokenizer is not None else {}).items():
        write_file(folder / file, content)
