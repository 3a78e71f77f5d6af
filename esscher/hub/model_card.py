"""The model card (README.md) of a folder: YAML metadata, and a page for readers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from torch import nn

from esscher.core.estimate import Estimate
from esscher.core.space import Space

TASKS = {"sample": "unconditional-image-generation", "translate": "translation"}


@dataclass(frozen=True)
class ModelCard:
    """The content of a model card; `results` are estimates with their names."""

    title: str
    data: str = "not stated"
    training: Mapping[str, Any] | None = None
    results: Sequence[tuple[str, Estimate]] = ()
    notes: str = ""


def model_card_text(
    card: ModelCard,
    base: nn.Module,
    space: Space,
    *,
    kind: str,
    tags: Sequence[str],
    library: str,
    auto: str | None = "AutoModelForCausalLM",
    use: str = "",
) -> str:
    """The text of a card. `kind` names the network, `library` loads the weights; `auto` is the class of `transformers` that
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
    return "\n".join(lines)


def _loading_section(library: str, auto: str | None, use: str) -> str:
    """The ways to load the model."""
    folder = "'path/of/this/folder'"
    ours = f"```python\nfrom esscher.hub import load_base\n\nbase, tokenizer = load_base({folder})\n```\n"
    if auto is None:
        return f"{ours}\nTo use it: `esscher {use} {folder[1:-1]}`.\n"
    register = "import esscher.hub.auto  # registers this kind of model with transformers\n" if library == "esscher" else ""
    return (
        f"{ours}\nor, as a model of `transformers`,\n\n```python\n{register}from transformers import {auto}, AutoTokenizer\n\n"
        f"model = {auto}.from_pretrained({folder})\ntokenizer = AutoTokenizer.from_pretrained({folder})\n```\n"
    )
