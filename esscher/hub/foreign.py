"""Folders of `transformers`, whatever the model: how they are read and written.

A saved folder is a plain Hugging Face model; `esscher.json` beside it keeps what `transformers` has no word for, the space
and the opening token. Weights are read from safetensors only, code that a folder brings along is never run, and a model
whose weights are incomplete is refused.
"""

import os
import shutil
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from esscher.bases.causal_lm import CausalLM
from esscher.bases.seq2seq_lm import Seq2SeqLM
from esscher.data.tokenizers import Tokenizer, load_tokenizer
from esscher.energies.pretrained import quiet
from esscher.hub.card import Card, card_text
from esscher.hub.folder import CARD, CONFIG, GENERATION, read_json, write_tokenizer
from esscher.space import Space
from esscher.storage import saving_failed, sync_folder, write_file, write_json

OURS = "esscher.json"
KEYS = ("space", "opening", "esscher_version")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
KINDS = {
    "causal": (AutoModelForCausalLM, "a causal language model"),
    "seq2seq": (AutoModelForSeq2SeqLM, "an encoder-decoder model"),
}


def save_foreign(
    folder: Path, base: CausalLM | Seq2SeqLM, tokenizer: Tokenizer | None, card: Card, generation: dict[str, Any]
) -> None:
    """Write the files of a folder, config.json last."""
    kind = str(base.model.config.model_type)
    write_tokenizer(folder, tokenizer)
    save_model(folder, base.model)
    write_json(folder / GENERATION, generation)
    auto = KINDS["causal" if isinstance(base, CausalLM) else "seq2seq"][0].__name__
    text = card_text(card, base, base.space, kind=kind, tags=[kind, "esscher"], library="transformers", auto=auto)
    write_file(folder / CARD, text.encode())
    write_json(folder / OURS, {"space": asdict(base.space), "opening": base.opening, "esscher_version": version("esscher")})
    os.replace(folder / f".{CONFIG}", folder / CONFIG)
    sync_folder(folder)


def read_model(folder: Path, config: dict[str, Any], kind: str, device: torch.device) -> Any:
    """The model of a folder with this config, as one of `KINDS`; on a CPU in single precision."""
    _refuse_pickle(folder)
    auto, what = KINDS[kind]
    dtype = torch.float32 if device.type == "cpu" else "auto"
    try:
        with quiet():
            both: Any = auto.from_pretrained(
                str(folder), local_files_only=True, use_safetensors=True, trust_remote_code=False, dtype=dtype,
                output_loading_info=True,
            )  # fmt: skip
    except Exception as error:  # of many classes: an unknown type, files missing or cut short, shapes that differ
        raise ValueError(
            f"{folder} holds a model of type {config.get('model_type', '')!r}, which transformers {transformers.__version__} "
            f"does not load as {what}: {error} Nothing was loaded."
        ) from error
    model, found = both
    missing = sorted(found["missing_keys"]) or sorted(str(key) for key in found["mismatched_keys"])
    if missing:
        raise ValueError(
            f"The weights in {folder} do not fill the model: {len(missing)} tensors are missing or of another shape, the first "
            f"is {missing[0]}. Nothing was loaded; restore the files, or the config they came with."
        )
    return model


def read_points(folder: Path, size: int, ends: list[int], eos: str | None) -> tuple[tuple[Space, int] | None, Tokenizer | None]:
    """The space and the opening token of a folder that was saved here, and the tokenizer of one that has some.

    Of a folder from elsewhere `size` is the number of the model's tokens, `ends` its end symbols; `eos` names another one.
    """
    ours = _read_ours(folder)
    if ours is not None:
        size, ends = ours[0].vocab_size, [] if ours[0].eos is None else [ours[0].eos]
    tokenizer = _read_tokenizer(folder, size, eos, ends)
    if ours is not None and eos is not None and tokenizer is not None:
        ours = replace(ours[0], eos=tokenizer.eos), ours[1]
    return ours, tokenizer


def _read_ours(folder: Path) -> tuple[Space, int] | None:
    """The space and the opening token that the folder remembers, if it was saved here."""
    file = folder / OURS
    if not file.is_file():
        return None
    ours = read_json(file)
    stated = ours.get("space")
    if set(ours) != set(KEYS) or not isinstance(stated, dict) or set(stated) != {one.name for one in fields(Space)}:
        raise ValueError(f"{file} does not state {', '.join(KEYS)}. Nothing was loaded; restore the file, or remove it.")
    return Space(**stated), ours["opening"]


def _read_tokenizer(folder: Path, size: int, eos: str | None, stated: list[int]) -> Tokenizer | None:
    """The tokenizer of a folder, if it has one, for a model of so many tokens; `stated` are the model's end symbols."""
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        with quiet():
            return load_tokenizer(folder, eos=eos, ends=stated if eos is None else (), size=size)
    if eos is not None:
        raise ValueError(
            f"{folder} holds no tokenizer that would know the end symbol {eos!r}. Nothing was loaded; leave eos out."
        )
    return None


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


def save_model(folder: Path, model: Any) -> None:
    """Weights and config in the manner of `transformers`, put in place when all are written, the config as .config.json."""
    beside = folder / f".saving.{os.getpid()}"
    size = sum(weight.nbytes for weight in model.parameters())
    try:
        beside.mkdir(parents=True, exist_ok=True)
        with quiet():
            model.save_pretrained(str(beside))
        for file in sorted(beside.iterdir()):
            if file.name != GENERATION:
                os.replace(file, folder / (f".{CONFIG}" if file.name == CONFIG else file.name))
        sync_folder(folder)
    except OSError as error:
        raise saving_failed(folder, error, size) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
