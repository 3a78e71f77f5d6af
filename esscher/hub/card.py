"""The model card: a YAML head for machines, and a page for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from torch import nn

from esscher.estimate import Estimate
from esscher.space import Space

TASKS = {"sample": "unconditional-image-generation", "translate": "translation"}


@dataclass(frozen=True)
class Card:
    """What a reader of the model's page wants to know; measured numbers come with their interval and unit."""

    title: str
    data: str = "not stated"
    training: Mapping[str, Any] | None = None
    measured: Sequence[tuple[str, Estimate]] = ()
    notes: str = ""


def card_text(
    card: Card,
    base: nn.Module,
    space: Space,
    *,
    kind: str,
    tags: Sequence[str],
    library: str,
    auto: str | None = "AutoModelForCausalLM",
    use: str = "",
) -> str:
    """The card of a base; `kind` is its network in words, `library` what its weights are loaded with, `auto` the class of
    `transformers` that loads it too, if there is one, and otherwise `use` the verb that it is for."""
    task = "text-generation" if auto == "AutoModelForCausalLM" else TASKS.get(use, "translation")
    head = {"library_name": library, "pipeline_tag": task, "tags": list(tags)}
    parameters = sum(parameter.numel() for parameter in base.parameters())
    end = "no end symbol" if space.eos is None else f"end symbol {space.eos}"
    lines = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n",
        f"# {card.title}\n",
        f"A {kind} with {parameters:,} parameters over {space.vocab_size:,} tokens; points of at most "
        f"{space.max_length:,} tokens, {end}. It is a normalised autoregressive base for `esscher`.\n",
        _loading(library, auto, use),
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


def _loading(library: str, auto: str | None, use: str) -> str:
    """All ways to load the model; those of our own kinds need an import to be known to `transformers`."""
    known = "import esscher.hub.auto  # makes this kind of model known to transformers\n" if library == "esscher" else ""
    folder = "path/of/this/folder"
    ours = ["```python", "from esscher.hub import load_base\n", f"base, tokenizer = load_base({folder!r})", "```\n"]
    if auto is None:
        return "\n".join([*ours, f"To use it: `esscher {use} {folder}`.\n"])
    return "\n".join(
        [
            *ours,
            "or, as a model of `transformers`,\n",
            "```python",
            f"{known}from transformers import {auto}, AutoTokenizer\n",
            f"model = {auto}.from_pretrained({folder!r})",
            f"tokenizer = AutoTokenizer.from_pretrained({folder!r})",
            "```\n",
        ]
    )


def _interval(found: Estimate) -> str:
    if found.draws == 0:
        return "exact"
    return f"[{found.low:.5g}, {found.high:.5g}] ({found.level:.0%}, {found.draws:,} draws)"
