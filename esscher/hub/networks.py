"""Folders of our own networks: config.json names the kind "esscher-lstm" ..., the base's settings, its space.

The other keys of config.json tell `transformers` what follows from these (`esscher.hub.network_lm`): its vocabulary has the
opening symbol too.
"""

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from esscher.bases.config import KINDS, PIXELS, from_dict, name, to_dict
from esscher.bases.network import NetworkBase, build_base
from esscher.data.images import Codec
from esscher.data.tokenizers import Tokenizer, load_tokenizer
from esscher.hub.card import Card, card_text
from esscher.hub.folder import CARD, CONFIG, GENERATION, PREFIX, WEIGHTS, plain_sampling, write_tokenizer
from esscher.hub.opening import opening_symbol, with_opening
from esscher.randomness import Seeded
from esscher.space import Space
from esscher.storage import fill_module, module_tensors, read_tensors, write_file, write_json, write_tensors

KEYS = (
    "model_type",
    "architectures",
    "base",
    "space",
    "vocab_size",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "dtype",
    "esscher_version",
    "transformers_version",
    "use_cache",
)
CLASSES = {  # of those that `transformers` may load; one that reads a source apart is no causal language model
    "lstm": "EsscherLstmForCausalLM",
    "gru": "EsscherGruForCausalLM",
    "awd-lstm": "EsscherAwdLstmForCausalLM",
    "enas": "EsscherEnasForCausalLM",
    "trellisnet": "EsscherTrellisNetForCausalLM",
    "transformer": "EsscherTransformerForCausalLM",
    "transformer-xl": "EsscherTransformerXLForCausalLM",
    "deq": "EsscherDeqForCausalLM",
    "xlnet": "EsscherXLNetForCausalLM",
}


def save_network(folder: Path, base: NetworkBase, tokenizer: Tokenizer | Codec | None, card: Card) -> None:
    """Write the files of a folder, config.json last."""
    write_tokenizer(folder, with_opening(tokenizer, base.space) if isinstance(tokenizer, Tokenizer) else tokenizer)
    write_tensors(folder / WEIGHTS, module_tensors(base))
    opening = opening_symbol(base.space)
    write_json(folder / GENERATION, plain_sampling(base.space, begin=opening, pad=opening))
    write_card(folder, base, card)
    write_json(folder / CONFIG, config_of(base))


def write_card(folder: Path, base: NetworkBase, card: Card) -> None:
    """The model card of a base."""
    kind = name(base.config)
    auto = "AutoModelForCausalLM" if kind in CLASSES else None
    use = "sample" if kind in PIXELS else "translate"
    text = card_text(card, base, base.space, kind=kind, tags=[PREFIX + kind], library="esscher", auto=auto, use=use)
    write_file(folder / CARD, text.encode())


def load_network(folder: Path, config: dict[str, Any]) -> tuple[NetworkBase, Tokenizer | None]:
    """The base of a folder with this config, and its tokenizer when it has one."""
    kind = str(config.get("model_type", ""))
    if kind.removeprefix(PREFIX) not in KINDS:
        known = ", ".join(PREFIX + one for one in KINDS)
        raise ValueError(
            f"{folder} holds a model of type {kind!r}, not a base; the known types are {known}, and those of Hugging Face "
            f"transformers. Nothing was loaded."
        )
    unknown = [key for key in config if key not in KEYS]
    if unknown:
        raise ValueError(f"{folder / CONFIG} has an unknown key {unknown[0]!r}; the known keys are {', '.join(KEYS)}.")
    try:
        settings, space = from_dict(config["base"]), Space(**config["space"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder / CONFIG} does not describe a base: {error}. Nothing was loaded; restore the file."
        ) from error
    base = build_base(settings, space, rng=Seeded(0))
    fill_module(base, read_tensors(folder / WEIGHTS), folder / WEIGHTS)
    return base, _tokenizer(folder, space)


def config_of(base: NetworkBase) -> dict[str, Any]:
    """What the config.json of a base says."""
    opening = opening_symbol(base.space)
    return {
        "model_type": PREFIX + name(base.config),
        "architectures": [CLASSES[name(base.config)]] if name(base.config) in CLASSES else [],
        "base": to_dict(base.config),
        "space": asdict(base.space),
        "vocab_size": opening + 1,
        "bos_token_id": opening,
        "eos_token_id": base.space.eos,
        "pad_token_id": opening,
        "dtype": str(next(base.parameters()).dtype).removeprefix("torch."),
        "esscher_version": version("esscher"),
    }


def _tokenizer(folder: Path, space: Space) -> Tokenizer | None:
    if not (folder / "tokenizer.json").is_file():
        return None
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocab_size != space.vocab_size:
        raise ValueError(
            f"The tokenizer in {folder} has {tokenizer.vocab_size} tokens and the base speaks {space.vocab_size}: one of them "
            f"was replaced. Nothing was loaded; restore the tokenizer the base was trained on."
        )
    return tokenizer
