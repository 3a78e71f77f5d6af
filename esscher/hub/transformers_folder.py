"""Folders of causal and encoder-decoder language models of `transformers`: reading and writing.

A saved folder is a plain Hugging Face model, with an `esscher.json` for the space and the BOS token. Weights are read from
safetensors only, and code in a folder is never run. Refused: incomplete weights, a "causal" model that looks ahead, and two
tokenizers or vocabularies for sources and targets (Marian): use `esscher.bases.seq2seq_lm` with tokens from `AutoTokenizer`.
"""

import os
import shutil
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers

from esscher.bases.causal_lm import CausalLM, causal_lm, special_token_ids, text_config
from esscher.bases.network import NetworkBase
from esscher.bases.seq2seq_lm import Seq2SeqLM, check_steps_match_scores, seq2seq_lm
from esscher.core.bounded_files import RefusedError
from esscher.core.config import from_dict
from esscher.core.manifest import write_manifest
from esscher.core.model_folder import load_pretrained, quiet_transformers
from esscher.core.reading import describing, read_json_object
from esscher.core.space import Space
from esscher.core.storage import fsync_folder, saving_error, write_json
from esscher.data.tokenizers import Tokenizer, load_tokenizer
from esscher.hub.folder import CONFIG, GENERATION, ModelCard, generation_settings, write_card, write_tokenizer

SIDECAR = "esscher.json"
SIDECAR_KEYS = ("space", "bos", "esscher_version")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
SEPARATE_TOKENIZER_FILES = ("source.spm", "target.spm")
AUTO_CLASSES = {
    "causal": ("AutoModelForCausalLM", "a causal language model"),
    "seq2seq": ("AutoModelForSeq2SeqLM", "an encoder-decoder model"),
}


def save_transformers_base(folder: Path, base: CausalLM | Seq2SeqLM, tokenizer: Tokenizer | None, card: ModelCard) -> None:
    """Write the folder of a base."""
    auto = AUTO_CLASSES["causal" if isinstance(base, CausalLM) else "seq2seq"][0]
    write_transformers_folder(folder, base, base.model, base.bos, tokenizer, generation_settings_of(base), card, auto)


def write_transformers_folder(
    folder: Path, base: CausalLM | Seq2SeqLM | NetworkBase, model: Any, bos: int, tokenizer: Tokenizer | None,
    generation: dict[str, Any], card: ModelCard, auto: str,
) -> None:  # fmt: skip
    """Write a base as a `transformers` model with all files, config.json and the manifest last; the class `auto` loads it."""
    kind = str(model.config.model_type)
    write_tokenizer(folder, tokenizer)
    _save_pretrained_model(folder, model)
    write_json(folder / GENERATION, generation)
    write_card(folder, card, base, base.space, kind=kind, tags=[kind, "esscher"], library="transformers", auto=auto)
    write_json(folder / SIDECAR, {"space": asdict(base.space), "bos": bos, "esscher_version": version("esscher")})
    os.replace(folder / f".{CONFIG}", folder / CONFIG)
    fsync_folder(folder)
    write_manifest(folder)


def generation_settings_of(base: CausalLM | Seq2SeqLM) -> dict[str, Any]:
    """Generation settings that sample from a base: nothing is truncated, forced or forbidden."""
    if isinstance(base, CausalLM):
        return generation_settings(base.space, bos=base.bos, pad=getattr(text_config(base.model), "pad_token_id", None))
    return generation_settings(base.space, pad=getattr(base.model.config, "pad_token_id", None), decoder_start=base.bos)


def load_pretrained_model(folder: Path, config: dict[str, Any], kind: str) -> Any:
    """The model of a folder with this config as one of `AUTO_CLASSES`, in the dtype of its files."""
    auto, what = AUTO_CLASSES[kind]
    try:
        loaded: Any = load_pretrained(auto, folder, dtype="auto", output_loading_info=True)
    except (RefusedError, FileNotFoundError):
        raise
    except Exception as error:  # of many classes: an unknown type, missing or truncated files, wrong shapes
        raise ValueError(
            f"{folder / CONFIG} describes a model of type {config.get('model_type', '')!r}, which transformers "
            f"{transformers.__version__} does not load as {what}: {error} Nothing was loaded."
        ) from error
    model, info = loaded
    missing = sorted(info["missing_keys"]) or sorted(str(key) for key in info["mismatched_keys"])
    if missing:
        raise ValueError(
            f"The weights in {folder} do not fill the model: {len(missing)} tensors are missing or of another shape, the first "
            f"is {missing[0]}. Nothing was loaded; restore the files, or the config they came with."
        )
    return model


def load_space_and_tokenizer(
    folder: Path, size: int, ends: list[int], eos: str | None
) -> tuple[tuple[Space, int] | None, Tokenizer | None]:
    """The space and the BOS token of a folder saved by esscher, and the tokenizer; None for what a folder lacks. `size` is the
    model's number of tokens, `ends` are its EOS tokens; `eos` names another EOS token."""
    sidecar = _load_sidecar(folder)
    if sidecar is not None:
        size, stated, ends = sidecar[0].vocab_size, ends, [] if sidecar[0].eos is None else [sidecar[0].eos]
    tokenizer = None
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        with quiet_transformers():
            tokenizer = load_tokenizer(folder, eos=eos, ends=ends if eos is None else (), size=size)
    elif eos is not None:
        raise ValueError(f"{folder} has no tokenizer, so there is no EOS token {eos!r}. Nothing was loaded; leave eos out.")
    if sidecar is not None and eos is None and (end := sidecar[0].eos) is not None and end not in stated:
        raise ValueError(
            f"space.eos in {folder / SIDECAR} is {end}, and eos_token_id in {GENERATION} or {CONFIG} is {stated}. Nothing was "
            f"loaded; restore these files."
        )
    if sidecar is not None and eos is not None and tokenizer is not None:
        sidecar = replace(sidecar[0], eos=tokenizer.eos), sidecar[1]
    return sidecar, tokenizer


def _load_sidecar(folder: Path) -> tuple[Space, int] | None:
    """The space and the BOS token in esscher.json; None if there is no such file."""
    file = folder / SIDECAR
    if not file.is_file():
        return None
    sidecar, names = read_json_object(file), {field.name for field in fields(Space)}
    space = sidecar.get("space")
    if set(sidecar) != set(SIDECAR_KEYS) or not isinstance(space, dict) or set(space) != names:
        raise ValueError(f"{file} does not state {', '.join(SIDECAR_KEYS)}. Nothing was loaded; restore or remove it.")
    with describing(file, "a space and a BOS token"):
        if not isinstance(sidecar["bos"], int):
            raise ValueError(f"bos is {sidecar['bos']!r}")
        return from_dict(Space, space, "space."), sidecar["bos"]


def _save_pretrained_model(folder: Path, model: Any) -> None:
    """Write weights and config by `save_pretrained`, moved into the folder when complete, the config as .config.json."""
    staging = folder / f".saving.{os.getpid()}"
    size = sum(weight.nbytes for weight in model.parameters())
    try:
        staging.mkdir(parents=True, exist_ok=True)
        with quiet_transformers():
            model.save_pretrained(str(staging))
        for file in sorted(staging.iterdir()):
            if file.name != GENERATION:
                os.replace(file, folder / (f".{CONFIG}" if file.name == CONFIG else file.name))
        fsync_folder(folder)
    except OSError as error:
        raise saving_error(folder, error, size) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def load_transformers_base(
    folder: Path, config: dict[str, Any], *, eos: str | None
) -> tuple[CausalLM | Seq2SeqLM, Tokenizer | None]:
    """The base of a folder with this config, and its tokenizer, if it has one; `eos` names another EOS token."""
    seq2seq = bool(config.get("is_encoder_decoder"))
    model = load_pretrained_model(folder, config, "seq2seq" if seq2seq else "causal")
    (_refuse_two_tokenizers if seq2seq else _refuse_bidirectional)(folder, model)
    ends = special_token_ids(model, "eos_token_id")
    sidecar, tokenizer = load_space_and_tokenizer(folder, int(text_config(model).vocab_size), ends, eos)
    if sidecar is None:
        return (seq2seq_lm if seq2seq else causal_lm)(model, eos="model" if tokenizer is None else tokenizer.eos), tokenizer
    with describing(folder / SIDECAR, "the space of this model"):
        base = (Seq2SeqLM if seq2seq else CausalLM)(model, *sidecar)
    if isinstance(base, Seq2SeqLM):
        check_steps_match_scores(base)
    return base, tokenizer


@torch.no_grad()
def _refuse_bidirectional(folder: Path, model: Any) -> None:
    """Refuse encoders, which also load as causal language models: their logits depend on later tokens."""
    ids = torch.tensor([[0, 0], [0, 1]])
    first = model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, 0]
    if not torch.allclose(first[0], first[1], atol=1e-4, rtol=1e-3):
        raise ValueError(
            f"The model in {folder} ({type(model).__name__}) looks ahead: its first logits change with the second token. "
            f"Nothing was loaded; use a decoder."
        )


def _refuse_two_tokenizers(folder: Path, model: Any) -> None:
    sources, targets = model.get_encoder().get_input_embeddings().weight.shape[0], int(text_config(model).vocab_size)
    separate = sources != targets or all((folder / name).is_file() for name in SEPARATE_TOKENIZER_FILES)
    if separate and any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(
            f"The model in {folder} has {sources} source tokens and {targets} target tokens, with a tokenizer for each; a "
            f"Tokenizer is one for both. Nothing was loaded; make the base with esscher.bases.seq2seq_lm, and its tokens with "
            f"AutoTokenizer."
        )
