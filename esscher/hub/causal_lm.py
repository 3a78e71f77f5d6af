"""Folders of causal language models of `transformers`, and what distilling one leaves.

How such folders are read and written is told in `esscher.hub.foreign`; a model that looks ahead is refused.
"""

from pathlib import Path
from typing import Any

import torch

from esscher.bases.causal_lm import CausalLM, causal_lm, end_symbols, text_config
from esscher.data.tokenizers import Tokenizer
from esscher.hub.folder import plain_sampling
from esscher.hub.foreign import read_model, read_points


def load_causal_lm(
    folder: Path, config: dict[str, Any], *, eos: str | None, device: torch.device
) -> tuple[CausalLM, Tokenizer | None]:
    """The base of a folder with this config, and its tokenizer when it has one; `eos` names another end symbol."""
    model = read_model(folder, config, "causal", device)
    _refuse_look_ahead(folder, model)
    ours, tokenizer = read_points(folder, text_config(model).vocab_size, end_symbols(model), eos)
    if ours is None:
        return causal_lm(model, eos="model" if tokenizer is None else tokenizer.eos), tokenizer
    return CausalLM(model, *ours), tokenizer


def sampling_of(base: CausalLM) -> dict[str, Any]:
    """Generation settings that sample from this base."""
    return plain_sampling(base.space, begin=base.opening, pad=getattr(text_config(base.model), "pad_token_id", None))


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
