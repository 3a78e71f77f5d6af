"""What all parts made of Hugging Face folders share: their tokenizer, the longest text they read, and quiet loading."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

UNBOUNDED = 10**6  # tokenizers state lengths beyond this when they do not know


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
    """Within it, transformers shows no progress bar and no remarks."""
    logging: Any = import_module("transformers.utils.logging")
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
