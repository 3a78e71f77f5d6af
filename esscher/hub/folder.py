"""The files that all model folders share: names, config, tokenizer, generation config, and the model card (README.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from esscher.core.estimate import Estimate
from esscher.core.model_folder import check_folder
from esscher.core.reading import read_json_object
from esscher.core.space import Space
from esscher.core.storage import write_file
from esscher.data.images import ImageCodec
from esscher.data.tokenizers import Tokenizer

CONFIG, WEIGHTS, CARD, GENERATION = "config.json", "model.safetensors", "README.md", "generation_config.json"
PREFIX = "esscher-"
TASKS = {"sample": "unconditional-image-generation", "translate": "translation"}


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model folder of any kind."""
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no model folder {folder}. Nothing was loaded; check the path, or train one there.")
    file = folder / CONFIG
    if not file.is_file():
        raise FileNotFoundError(f"The folder {folder} holds no {CONFIG}: it is no model, or its training has not ended.")
    check_folder(folder)
    return read_json_object(file)


def generation_settings(
    space: Space, *, bos: int | None = None, pad: int | None = None, decoder_start: int | None = None
) -> dict[str, Any]:
    """A generation config that samples from the model itself; by default `generate` would truncate to the top 50 tokens."""
    settings = {
        "do_sample": True,
        "top_k": 0,
        "top_p": 1.0,
        "temperature": 1.0,
        "max_new_tokens": space.max_length,
        "eos_token_id": space.eos,
        "bos_token_id": bos,
        "pad_token_id": pad,
        "decoder_start_token_id": decoder_start,
    }
    return {key: value for key, value in settings.items() if value is not None}


def write_tokenizer(folder: Path, tokenizer: Tokenizer | ImageCodec | None) -> None:
    """Write the files of a tokenizer or image codec, if there is one."""
    for file, content in (tokenizer.files() if tokenizer is not None else {}).items():
        write_file(folder / file, content)


@dataclass(frozen=True)
class ModelCard:
    """The content of a model card; `results` are estimates with their names."""

    title: str
    data: str = "not stated"
    training: Mapping[str, Any] | None = None
    results: Sequence[tuple[str, Estimate]] = ()
    notes: str = ""


def write_card(
    folder: Path, card: ModelCard, base: nn.Module, space: Space, *, kind: str, tags: Sequence[str], library: str,
    auto: str | None, use: str = "",
) -> None:  # fmt: skip
    """Write a model card. `kind` names the network, `library` loads the weights; `auto` is the class of `transformers` that
    loads the model, too, or None, and then `use` is the command of esscher for it."""
    task = "text-generation" if auto == "AutoModelForCausalLM" else TASKS.get(use, "translation")
    head = {"library_name": library, "pipeline_tag": task, "tags": list(tags)}
    parameters = sum(parameter.numel() for parameter in base.parameters())
    end = "no end symbol" if space.eos is None else f"end symbol {space.eos}"
    lines = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n",
        f"# {card.title}\n",
        f"A {kind} with {parameters:,} parameters over {space.vocab_size:,} tokens; points of at most "
        f"{space.max_length:,} tokens, {end}. It is a normalised autoregressive base for `esscher`.\n",
        _loading_section(library, auto, use),
        f"## Data\n\n{card.data}\n",
    ]
    if card.results:
        lines.append("## Results\n\n| name | value | interval | unit | method |\n| --- | --- | --- | --- | --- |")
        for name, estimate in card.results:
            draws = f" ({estimate.confidence:.0%}, {estimate.n:,} {estimate.counted})"
            interval = f"[{estimate.low:.5g}, {estimate.high:.5g}]{draws}" if estimate.n else "exact"
            lines.append(f"| {name} | {estimate.value:.5g} | {interval} | {estimate.unit} | {estimate.method} |")
        lines.append("\nThe EOS token is counted; prompts and padding are not.\n")
    if card.training:
        lines.append(f"## Training\n\n```yaml\n{yaml.safe_dump(dict(card.training), sort_keys=False)}```\n")
    if card.notes:
        lines.append(f"## Notes\n\n{card.notes}\n")
    write_file(folder / CARD, "\n".join(lines).encode())


def _loading_section(library: str, auto: str | None, use: str) -> str:
    folder = "'path/of/this/folder'"
    ours = f"```python\nfrom esscher.hub import load_base\n\nbase, tokenizer = load_base({folder})\n```\n"
    if auto is None:
        return f"{ours}\nTo use it: `esscher {use} {folder[1:-1]}`.\n"
    register = "import esscher.hub.auto  # registers this kind of model with transformers\n" if library == "esscher" else ""
    return (
        f"{ours}\nor, as a model of `transformers`,\n\n```python\n{register}from transformers import {auto}, AutoTokenizer\n\n"
        f"model = {auto}.from_pretrained({folder})\ntokenizer = AutoTokenizer.from_pretrained({folder})\n```\n"
    )
