"""Saved models: a folder in the manner of a Hugging Face repository, read and written offline.

    config.json               model_type "esscher-lstm" ..., the base's settings, its space
    model.safetensors         the weights
    tokenizer.json, ...       the tokenizer, when there is text
    generation_config.json    plain sampling: top_k 0, because the default of `generate` would cut to 50 tokens
    README.md                 the model card

Each file is replaced in one piece, config.json last. A path is a folder here; nothing is ever fetched.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from esscher.bases.config import KINDS, from_dict, name, to_dict
from esscher.bases.network import NetworkBase, build_base
from esscher.data.tokenizers import Tokenizer, load_tokenizer
from esscher.estimate import Estimate
from esscher.randomness import Seeded
from esscher.space import Space
from esscher.storage import fill_module, module_tensors, read_tensors, write_file, write_json, write_tensors

CONFIG, WEIGHTS, CARD, GENERATION = "config.json", "model.safetensors", "README.md", "generation_config.json"
PREFIX = "esscher-"
KEYS = ("model_type", "architectures", "base", "space", "vocab_size", "eos_token_id", "dtype", "esscher_version")


@dataclass(frozen=True)
class Card:
    """What a reader of the model's page wants to know; measured numbers come with their interval and unit."""

    title: str
    data: str = "not stated"
    training: Mapping[str, Any] | None = None
    measured: Sequence[tuple[str, Estimate]] = ()
    notes: str = ""


def save_base(folder: str | Path, base: NetworkBase, tokenizer: Tokenizer | None = None, card: Card | None = None) -> Path:
    """Write a base, and its tokenizer, as a model folder; files of other names in the folder stay."""
    folder, space = Path(folder), base.space
    if tokenizer is not None and tokenizer.vocab_size != space.vocab_size:
        raise ValueError(
            f"The tokenizer has {tokenizer.vocab_size} tokens and the base speaks {space.vocab_size}. Nothing was saved; "
            f"save the base with the tokenizer it was trained on."
        )
    for file, content in (tokenizer.files() if tokenizer is not None else {}).items():
        write_file(folder / file, content)
    write_tensors(folder / WEIGHTS, module_tensors(base))
    write_json(folder / GENERATION, _generation(space))
    write_file(folder / CARD, card_text(base, Card("A base model") if card is None else card).encode())
    write_json(folder / CONFIG, _config(base))
    return folder


def load_base(folder: str | Path) -> tuple[NetworkBase, Tokenizer | None]:
    """The base of a model folder, ready to be used, and its tokenizer when it has one."""
    folder = Path(folder)
    config = read_config(folder)
    kind = str(config.get("model_type", ""))
    if kind.removeprefix(PREFIX) not in KINDS or not kind.startswith(PREFIX):
        known = ", ".join(PREFIX + one for one in KINDS)
        raise ValueError(
            f"{folder} holds a model of type {kind!r}, not a base; the known types are {known}. Nothing was loaded."
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
    return base.eval(), _tokenizer(folder, space)


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model folder of any kind."""
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no model folder {folder}. Nothing was loaded; check the path, or train one there.")
    file = folder / CONFIG
    if not file.is_file():
        raise FileNotFoundError(f"The folder {folder} holds no {CONFIG}: it is no model, or its training has not ended.")
    try:
        config = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}. Nothing was loaded; restore the file.") from error
    if not isinstance(config, dict):
        raise ValueError(f"{file} holds no settings. Nothing was loaded; restore the file.")
    return config


def card_text(base: NetworkBase, card: Card) -> str:
    """The model card: a YAML head for machines, and a page for people."""
    head = {"library_name": "esscher", "pipeline_tag": "text-generation", "tags": [PREFIX + name(base.config)]}
    parameters = sum(parameter.numel() for parameter in base.parameters())
    end = "no end symbol" if base.space.eos is None else f"end symbol {base.space.eos}"
    lines = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n",
        f"# {card.title}\n",
        f"A {name(base.config)} with {parameters:,} parameters over {base.space.vocab_size:,} tokens; points of at most "
        f"{base.space.max_length:,} tokens, {end}. It is a normalised autoregressive base for `esscher`.\n",
        f"```python\nfrom esscher.hub import load_base\n\nbase, tokenizer = load_base({'path/of/this/folder'!r})\n```\n",
        f"## Data\n\n{card.data}\n",
    ]
    if card.measured:
        rows = [
            f"| {what} | {found.value:.5g} | {_interval(found)} | {found.unit} | {found.method} |"
            for what, found in card.measured
        ]
        lines.append(
            "## Measured\n\n| what | value | interval | unit | method |\n| --- | --- | --- | --- | --- |\n" + "\n".join(rows)
        )
        lines.append("\nThe end symbol is counted; prompts and padding are not.\n")
    if card.training:
        lines.append(f"## Training\n\n```yaml\n{yaml.safe_dump(dict(card.training), sort_keys=False)}```\n")
    if card.notes:
        lines.append(f"## Notes\n\n{card.notes}\n")
    return "\n".join(lines)


def _interval(found: Estimate) -> str:
    if found.draws == 0:
        return "exact"
    return f"[{found.low:.5g}, {found.high:.5g}] ({found.level:.0%}, {found.draws:,} draws)"


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


def _generation(space: Space) -> dict[str, Any]:
    return {
        "do_sample": True,
        "top_k": 0,
        "top_p": 1.0,
        "temperature": 1.0,
        "max_new_tokens": space.max_length,
        "eos_token_id": space.eos,
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
