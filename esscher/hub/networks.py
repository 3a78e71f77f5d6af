"""Folders of our own networks: config.json names the kind "esscher-lstm" ..., the base's settings, its space."""

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from esscher.bases.config import KINDS, from_dict, name, to_dict
from esscher.bases.network import NetworkBase, build_base
from esscher.data.tokenizers import Tokenizer, load_tokenizer
from esscher.hub.card import Card, card_text
from esscher.hub.folder import CARD, CONFIG, GENERATION, PREFIX, WEIGHTS, plain_sampling, write_tokenizer
from esscher.randomness import Seeded
from esscher.space import Space
from esscher.storage import fill_module, module_tensors, read_tensors, write_file, write_json, write_tensors

KEYS = ("model_type", "architectures", "base", "space", "vocab_size", "eos_token_id", "dtype", "esscher_version")


def save_network(folder: Path, base: NetworkBase, tokenizer: Tokenizer | None, card: Card) -> None:
    """Write the files of a folder, config.json last."""
    kind = name(base.config)
    write_tokenizer(folder, tokenizer)
    write_tensors(folder / WEIGHTS, module_tensors(base))
    write_json(folder / GENERATION, plain_sampling(base.space))
    text = card_text(card, base, base.space, kind=kind, tags=[PREFIX + kind], library="esscher")
    write_file(folder / CARD, text.encode())
    write_json(folder / CONFIG, _config(base))


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


def _config(base: NetworkBase) -> dict[str, Any]:
    return {
        "model_type": PREFIX + name(base.config),
        "architectures": [type(base).__name__],
        "base": to_dict(base.config),
        "space": asdict(base.space),
        "vocab_size": base.space.vocab_size,
        "eos_token_id": base.space.eos,
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
