"""Saved models: folders in the layout of a Hugging Face repository, read and written offline.

    config.json               model_type "esscher-lstm" ..., the network's config, the space; or a config of `transformers`
    model.safetensors         the weights
    tokenizer.json, ...       the tokenizer, if there is text
    codec.json                for image models: the size and levels of images
    generation_config.json    plain sampling, top_k 0: the default of `generate` would truncate to 50 tokens
    README.md                 the model card
    esscher.json              for models of `transformers`: the space and the BOS token
    esscher-manifest.json     sizes and digests of all these, which are checked on loading (`esscher.core.manifest`)

Each file is replaced atomically, the manifest last. `transformers` loads networks of esscher after `import esscher.hub.auto`.
"""

from dataclasses import replace
from pathlib import Path

import torch

from esscher.bases.causal_lm import CausalLM
from esscher.bases.network import NetworkBase
from esscher.bases.seq2seq_lm import Seq2SeqLM
from esscher.core.config import DtypeName
from esscher.core.device import place, resolve_device, resolve_dtype
from esscher.core.manifest import check_manifest
from esscher.data.images import ImageCodec
from esscher.data.tokenizers import Tokenizer
from esscher.hub.folder import CONFIG, PREFIX, ModelCard, read_config
from esscher.hub.network_folder import load_network, save_network
from esscher.hub.packaged_models import resolve_model_folder

__all__ = ["CONFIG", "ModelCard", "SavedBase", "load_base", "read_base", "read_config", "save_base"]

SavedBase = NetworkBase | CausalLM | Seq2SeqLM


def save_base(
    folder: str | Path, base: SavedBase, tokenizer: Tokenizer | ImageCodec | None = None, card: ModelCard | None = None
) -> Path:
    """Write a base, and its tokenizer or image codec, as a model folder; other files in the folder stay."""
    folder, card = Path(folder), ModelCard("A base model") if card is None else card
    if tokenizer is not None and tokenizer.vocab_size != base.space.vocab_size:
        raise ValueError(
            f"The tokenizer has {tokenizer.vocab_size} tokens and the base has {base.space.vocab_size}. Nothing was saved; "
            f"save the base with the tokenizer it was trained on."
        )
    if isinstance(base, NetworkBase):
        save_network(folder, base, tokenizer, card)
    elif isinstance(tokenizer, ImageCodec):
        raise ValueError("Hugging Face models are not supported as image models. Nothing was saved.")
    else:
        from esscher.hub.transformers_folder import save_transformers_base

        save_transformers_base(folder, base, tokenizer, card)
    return folder


def load_base(
    folder: str | Path,
    *,
    max_length: int | None = None,
    eos: str | None = None,
    chunks: bool = False,
    device: str | torch.device = "cpu",
    dtype: DtypeName = "auto",
) -> tuple[SavedBase, Tokenizer | None]:
    """The base of a model folder of esscher or Hugging Face, or of a packaged model (`esscher.hub.packaged_models`), in
    evaluation mode, and its tokenizer, if it has one.

    `max_length` replaces that of the saved space; a Hugging Face model without one has points of up to 256 tokens. `eos` names
    the token that ends texts, if it is not the EOS token of a Hugging Face model. With `chunks` all points have `max_length`
    tokens and no token ends them. With the dtype `auto`, weights are float32 on a CPU and as saved elsewhere.
    """
    device = resolve_device(device)
    base, tokenizer = read_base(folder, max_length=max_length, eos=eos, chunks=chunks)
    return place(base, device, resolve_dtype(dtype, device)), tokenizer


def read_base(
    folder: str | Path, *, max_length: int | None = None, eos: str | None = None, chunks: bool = False
) -> tuple[SavedBase, Tokenizer | None]:
    """The same on the CPU, in the dtype of the files."""
    folder = resolve_model_folder(folder)
    check_manifest(folder)
    config = read_config(folder)
    base: SavedBase
    if str(config.get("model_type", "")).startswith(PREFIX):
        if eos is not None:
            raise ValueError(f"The EOS token of {folder} was chosen when it was trained. Nothing was loaded; leave eos out.")
        base, tokenizer = load_network(folder, config)
    elif config.get("model_type") == "xlnet":
        from esscher.hub.xlnet import load_xlnet

        base, tokenizer = load_xlnet(folder, config, eos=eos)
    else:
        from esscher.hub.transformers_folder import load_transformers_base

        base, tokenizer = load_transformers_base(folder, config, eos=eos)
    if max_length is not None:
        base.space = replace(base.space, max_length=max_length)
    if base.max_positions is not None and base.space.max_length > base.max_positions:
        where = folder / CONFIG if max_length is None else "the settings"
        raise ValueError(
            f"max_length in {where} is {base.space.max_length}, and the weights in {folder} have {base.max_positions} "
            f"positions. Nothing was loaded; restore max_length, or give one of at most {base.max_positions}."
        )
    if chunks:
        base.space = replace(base.space, eos=None)
    return base.eval(), tokenizer
