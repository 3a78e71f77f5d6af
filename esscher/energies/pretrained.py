"""What all parts made of Hugging Face folders share: weights, tokenizer, the longest text they read, and quiet loading."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

UNBOUNDED = 10**6  # tokenizers state lengths beyond this when they do not know


def read_weights(folder: Path, auto: str, what: str) -> tuple[Any, list[str]]:
    """The model of a folder by this class of transformers, in single precision, and the weights it lacks."""
    try:
        with quiet():
            model, report = getattr(import_module("transformers"), auto).from_pretrained(
                str(folder), local_files_only=True, use_safetensors=True, dtype=torch.float32, output_loading_info=True
            )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"The folder {folder} holds no {what} that can be read: {error}. Nothing was loaded; save one there with "
            f"save_pretrained, its weights in safetensors."
        ) from error
    return model, sorted(report["missing_keys"])


def read_tokenizer(folder: Path, what: str) -> Any:
    """The tokenizer of a folder; `what` names the model in the error."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # files missing, of an unknown class, or not convertible
        raise ValueError(f"The {what} in {folder} has no readable tokenizer: {error}. Nothing was loaded.") from error


def longest_text(model: Any, tokenizer: Any | None) -> int | None:
    """The most tokens it reads, as tokenizer or model say."""
    stated = UNBOUNDED if tokenizer is None else tokenizer.model_max_length
    positions = getattr(model.config, "max_position_embeddings", None)
    longest = min(stated, UNBOUNDED if positions is None else positions)
    return None if longest >= UNBOUNDED else int(longest)


@contextmanager
def quiet() -> Iterator[None]:
    """Within it, transformers shows neither bars nor advice."""
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
