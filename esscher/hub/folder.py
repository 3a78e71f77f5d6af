"""The files that all model folders share: names, config, tokenizer and generation config."""

import json
from pathlib import Path
from typing import Any

from esscher.core.space import Space
from esscher.core.storage import write_file
from esscher.data.images import ImageCodec
from esscher.data.tokenizers import Tokenizer

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
    """The JSON object in a file."""
    try:
        values = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}. Nothing was loaded; restore the file.") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file} holds no JSON object. Nothing was loaded; restore the file.")
    return values


def generation_settings(
    space: Space, *, bos: int | None = None, pad: int | None = None, decoder_start: int | None = None
) -> dict[str, Any]:
    """A generation config that samples from the model itself; by default `generate` would truncate to the top 50 tokens."""
    settings = {
        "do_sample": True,
        "top_k": 0,
        "top_p": 1.0,
        "temperature": 1.0,
        "max_new_tokens": space.max_length,
        "eos_token_id": space.eos,
        "bos_token_id": bos,
        "pad_token_id": pad,
        "decoder_start_token_id": decoder_start,
    }
    return {key: value for key, value in settings.items() if value is not None}


def write_tokenizer(folder: Path, tokenizer: Tokenizer | ImageCodec | None) -> None:
    """Write the files of a tokenizer or image codec, if there is one."""
    for file, content in (tokenizer.files() if tokenizer is not None else {}).items():
        write_file(folder / file, content)
