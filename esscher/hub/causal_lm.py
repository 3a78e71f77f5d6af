"""Folders of `transformers`: any causal language model with safetensors weights, and what distilling one leaves.

A saved folder is a plain Hugging Face model; `esscher.json` beside it keeps what `transformers` has no word for, the space
and the opening token. Weights are read from safetensors only, code that a folder brings along is never run, and a model
whose weights are incomplete, or which looks ahead, is refused.
"""

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from logging import CRITICAL
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from esscher.bases.causal_lm import CausalLM, causal_lm, end_symbols, text_config
from esscher.data.tokenizers import Tokenizer, load_tokenizer
from esscher.hub.card import Card, card_text
from esscher.hub.folder import CARD, CONFIG, GENERATION, plain_sampling, read_json, write_tokenizer
from esscher.space import Space
from esscher.storage import saving_failed, sync_folder, write_file, write_json

OURS = "esscher.json"
KEYS = ("space", "opening", "esscher_version")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


def save_causal_lm(folder: Path, base: CausalLM, tokenizer: Tokenizer | None, card: Card) -> None:
    """Write the files of a folder, config.json last."""
    kind = str(base.model.config.model_type)
    write_tokenizer(folder, tokenizer)
    _save_model(folder, base)
    write_json(folder / GENERATION, sampling_of(base))
    text = card_text(card, base, base.space, kind=kind, tags=[kind, "esscher"], library="transformers")
    write_file(folder / CARD, text.encode())
    write_json(folder / OURS, {"space": asdict(base.space), "opening": base.opening, "esscher_version": version("esscher")})
    os.replace(folder / f".{CONFIG}", folder / CONFIG)
    sync_folder(folder)


def load_causal_lm(
    folder: Path, config: dict[str, Any], *, eos: str | None, device: torch.device
) -> tuple[CausalLM, Tokenizer | None]:
    """The base of a folder with this config, and its tokenizer when it has one; `eos` names another end symbol."""
    _refuse_pickle(folder)
    dtype = torch.float32 if device.type == "cpu" else "auto"
    model = _read_model(folder, str(config.get("model_type", "")), dtype)
    _refuse_look_ahead(folder, model)
    ours = _read_ours(folder)
    space = None if ours is None else Space(**ours["space"])
    stated = end_symbols(model) if space is None else [] if space.eos is None else [space.eos]
    tokenizer = _read_tokenizer(folder, text_config(model).vocab_size, eos, stated)
    if ours is None or space is None:
        return causal_lm(model, eos="model" if tokenizer is None else tokenizer.eos), tokenizer
    if eos is not None and tokenizer is not None:
        space = replace(space, eos=tokenizer.eos)
    return CausalLM(model, space, ours["opening"]), tokenizer


def sampling_of(base: CausalLM) -> dict[str, Any]:
    """Generation settings that sample from this base."""
    return plain_sampling(base.space, begin=base.opening, pad=getattr(text_config(base.model), "pad_token_id", None))


@contextmanager
def quiet() -> Iterator[None]:
    """Within it `transformers` shows neither bars nor advice."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _read_model(folder: Path, kind: str, dtype: torch.dtype | str) -> Any:
    try:
        with quiet():
            both: Any = AutoModelForCausalLM.from_pretrained(
                str(folder), local_files_only=True, use_safetensors=True, trust_remote_code=False, dtype=dtype,
                output_loading_info=True,
            )  # fmt: skip
    except Exception as error:  # of many classes: an unknown type, files missing or cut short, shapes that differ
        raise ValueError(
            f"{folder} holds a model of type {kind!r}, which transformers {transformers.__version__} does not load as a "
            f"causal language model: {error} Nothing was loaded."
        ) from error
    model, found = both
    missing = sorted(found["missing_keys"]) or sorted(str(key) for key in found["mismatched_keys"])
    if missing:
        raise ValueError(
            f"The weights in {folder} do not fill the model: {len(missing)} tensors are missing or of another shape, the first "
            f"is {missing[0]}. Nothing was loaded; restore the files, or the config they came with."
        )
    return model


def _refuse_pickle(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickled:
        raise ValueError(
            f"The weights in {folder} are pickled ({pickled[0]}), and reading a pickle runs the code in it. Nothing was "
            f"loaded; if you trust the file, convert it with transformers: from_pretrained, then save_pretrained."
        )
    raise FileNotFoundError(f"The folder {folder} holds no *.safetensors file: it has no weights. Nothing was loaded.")


@torch.no_grad()
def _refuse_look_ahead(folder: Path, model: Any) -> None:
    """Encoders too have a class for causal language models; what they say of a token depends on those after it."""
    ids = torch.tensor([[0, 0], [0, 1]])
    first = model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, 0]
    if not torch.allclose(first[0], first[1], atol=1e-4, rtol=1e-3):
        raise ValueError(
            f"The model in {folder} ({type(model).__name__}) looks ahead: its first logits change with the second token. "
            f"Nothing was loaded; use a decoder."
        )


def _read_ours(folder: Path) -> dict[str, Any] | None:
    file = folder / OURS
    if not file.is_file():
        return None
    ours = read_json(file)
    stated = ours.get("space")
    if set(ours) != set(KEYS) or not isinstance(stated, dict) or set(stated) != {one.name for one in fields(Space)}:
        raise ValueError(f"{file} does not state {', '.join(KEYS)}. Nothing was loaded; restore the file, or remove it.")
    return ours


def _read_tokenizer(folder: Path, size: int, eos: str | None, stated: list[int]) -> Tokenizer | None:
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        with quiet():
            return load_tokenizer(folder, eos=eos, ends=stated if eos is None else (), size=size)
    if eos is not None:
        raise ValueError(
            f"{folder} holds no tokenizer that would know the end symbol {eos!r}. Nothing was loaded; leave eos out."
        )
    return None


def _save_model(folder: Path, base: CausalLM) -> None:
    """Weights and config in the manner of `transformers`, put in place when all are written, the config as .config.json."""
    beside = folder / f".saving.{os.getpid()}"
    size = sum(weight.nbytes for weight in base.parameters())
    try:
        beside.mkdir(parents=True, exist_ok=True)
        with quiet():
            base.model.save_pretrained(str(beside))
        for file in sorted(beside.iterdir()):
            if file.name != GENERATION:
                os.replace(file, folder / (f".{CONFIG}" if file.name == CONFIG else file.name))
        sync_folder(folder)
    except OSError as error:
        raise saving_failed(folder, error, size) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
