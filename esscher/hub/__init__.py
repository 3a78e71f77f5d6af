"""Saved models: a folder in the manner of a Hugging Face repository, read and written offline.

    config.json               model_type "esscher-lstm" ..., the base's settings, its space; or that of `transformers`
    model.safetensors         the weights
    tokenizer.json, ...       the tokenizer, when there is text
    codec.json                of a model of images: their size and levels
    generation_config.json    plain sampling: top_k 0, because the default of `generate` would cut to 50 tokens
    README.md                 the model card
    esscher.json              of a model of `transformers`: its space and opening token

Each file is replaced in one piece, config.json last. A path is a folder here; nothing is ever fetched. `transformers` loads
all of them: our own kinds after `import esscher.hub.auto`, which nothing here does, because it takes seconds.
"""

from dataclasses import replace
from pathlib import Path

import torch

from esscher.bases.causal_lm import CausalLM
from esscher.bases.network import NetworkBase
from esscher.bases.seq2seq_lm import Seq2SeqLM
from esscher.data.images import Codec
from esscher.data.tokenizers import Tokenizer
from esscher.hub.card import Card
from esscher.hub.folder import CONFIG, PREFIX, check_tokenizer, read_config
from esscher.hub.networks import load_network, save_network

__all__ = ["CONFIG", "Card", "SavedBase", "load_base", "read_config", "save_base"]

SavedBase = NetworkBase | CausalLM | Seq2SeqLM


def save_base(
    folder: str | Path, base: SavedBase, tokenizer: Tokenizer | Codec | None = None, card: Card | None = None
) -> Path:
    """Write a base, and its tokenizer or the codec of its images, as a model folder; files of other names there stay."""
    folder, card = Path(folder), Card("A base model") if card is None else card
    if tokenizer is not None:
        check_tokenizer(tokenizer, base.space)
    if isinstance(base, NetworkBase):
        save_network(folder, base, tokenizer, card)
    elif isinstance(tokenizer, Codec):
        raise ValueError("A model of Hugging Face is no model of images here. Nothing was saved.")
    else:
        from esscher.hub.causal_lm import sampling_of
        from esscher.hub.foreign import save_foreign
        from esscher.hub.seq2seq_lm import seq2seq_sampling

        generation = sampling_of(base) if isinstance(base, CausalLM) else seq2seq_sampling(base)
        save_foreign(folder, base, tokenizer, card, generation)
    return folder


def load_base(
    folder: str | Path,
    *,
    max_length: int | None = None,
    eos: str | None = None,
    chunks: bool = False,
    device: str | torch.device = "cpu",
) -> tuple[SavedBase, Tokenizer | None]:
    """The base of a model folder, ours or of Hugging Face, ready to be used, and its tokenizer when it has one.

    `max_length` replaces that of its points; a Hugging Face model that states none has points of up to 256 tokens. `eos` names
    the token that ends its texts, where that is not the end symbol a Hugging Face model states; of `chunks` of a stream no
    token ends a point, and all have the same length. On a CPU weights are in single precision, whatever the folder holds;
    elsewhere a Hugging Face model keeps its own.
    """
    folder, device = Path(folder), torch.device(device)
    config = read_config(folder)
    base: SavedBase
    if str(config.get("model_type", "")).startswith(PREFIX):
        if eos is not None:
            raise ValueError(f"The end symbol of {folder} was chosen when it was trained. Nothing was loaded; leave eos out.")
        base, tokenizer = load_network(folder, config)
    elif config.get("is_encoder_decoder"):
        from esscher.hub.seq2seq_lm import load_seq2seq_lm

        base, tokenizer = load_seq2seq_lm(folder, config, eos=eos, device=device)
    elif config.get("model_type") == "xlnet":
        from esscher.hub.xlnet import load_xlnet

        base, tokenizer = load_xlnet(folder, config, eos=eos, device=device)
    else:
        from esscher.hub.causal_lm import load_causal_lm

        base, tokenizer = load_causal_lm(folder, config, eos=eos, device=device)
    if max_length is not None:
        base.space = replace(base.space, max_length=max_length)
    if chunks:
        base.space = replace(base.space, eos=None)
    return base.to(device).eval(), tokenizer
