"""Folders of encoder-decoder language models of `transformers`: T5, BART and their like, and what training leaves of one.

How such folders are read and written is told in `esscher.hub.foreign`. A `Tokenizer` is one for sources and targets. Folders
that cut the two in different ways (Marian: source.spm and target.spm), or number their tokens apart, are refused when they
bring a tokenizer: `esscher.bases.seq2seq_lm` takes such a model with tokens of the tokenizers of `transformers`.
"""

from pathlib import Path
from typing import Any

import torch

from esscher.bases.seq2seq_lm import Seq2SeqLM, check_steps, decoder_symbols, seq2seq_lm, spoken_tokens
from esscher.data.tokenizers import Tokenizer
from esscher.hub.folder import plain_sampling
from esscher.hub.foreign import TOKENIZER_FILES, read_model, read_points

TWO = ("source.spm", "target.spm")


def load_seq2seq_lm(
    folder: Path, config: dict[str, Any], *, eos: str | None, device: torch.device
) -> tuple[Seq2SeqLM, Tokenizer | None]:
    """The base of a folder with this config, and its tokenizer when it has one; `eos` names another end symbol."""
    model = read_model(folder, config, "seq2seq", device)
    _refuse_two_tokenizers(folder, model)
    ours, tokenizer = read_points(folder, spoken_tokens(model), decoder_symbols(model, "eos_token_id"), eos)
    if ours is None:
        return seq2seq_lm(model, eos="model" if tokenizer is None else tokenizer.eos), tokenizer
    base = Seq2SeqLM(model, *ours)
    check_steps(base)
    return base, tokenizer


def seq2seq_sampling(base: Seq2SeqLM) -> dict[str, Any]:
    """Generation settings that sample from this base: nothing is cut, forced or forbidden."""
    settings = plain_sampling(base.space, begin=None, pad=getattr(base.model.config, "pad_token_id", None))
    return {**settings, "decoder_start_token_id": base.opening}


def _refuse_two_tokenizers(folder: Path, model: Any) -> None:
    reads, speaks = model.get_encoder().get_input_embeddings().weight.shape[0], spoken_tokens(model)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return
    if reads == speaks and not all((folder / name).is_file() for name in TWO):
        return
    raise ValueError(
        f"The model in {folder} reads {reads} tokens and speaks {speaks}, and sources and targets have tokenizers of their own "
        f"there; a Tokenizer is one for both. Nothing was loaded; make the base with esscher.bases.seq2seq_lm, and its tokens "
        f"with AutoTokenizer."
    )
