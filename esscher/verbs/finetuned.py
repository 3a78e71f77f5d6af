"""Folders of fine-tuned models, and what they predict.

config.json         model_type "esscher-finetuned", the task and what it knows, the head, the reader, the longest row
model.safetensors   the weights
tokenizer.json ...  the tokenizer
reader/             of pretrained readers of Hugging Face: their config, without weights
README.md           the same for people, with what was measured
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from esscher.bases import config as bases
from esscher.data.examples import Columns, Example, Task
from esscher.data.layout import Layout
from esscher.data.tokenizers import load_tokenizer
from esscher.energies.labeller import Labeller
from esscher.energies.labeller_config import LabellerConfig
from esscher.energies.readers import NetworkReader
from esscher.energies.saved_reader import empty_reader, save_reader
from esscher.estimate import Estimate
from esscher.hub.folder import CARD, CONFIG, WEIGHTS, read_config, write_tokenizer
from esscher.randomness import Seeded
from esscher.storage import fill_module, read_tensors, write_file, write_json, write_tensors
from esscher.verbs.labelling import LABELLINGS, Answer, Labelling

KIND = "esscher-finetuned"
TOGETHER = 32  # examples that are judged at once


@dataclass(frozen=True)
class Finetuned:
    """A labeller, how texts are laid out for it, its task, and the columns that examples had."""

    labeller: Labeller
    layout: Layout
    task: Task
    labelling: Labelling
    columns: Columns

    @torch.no_grad()
    def predict(self, examples: Sequence[Example]) -> list[Answer]:
        """What it says of each example."""
        self.labeller.eval()
        device, found = next(self.labeller.parameters()).device, []
        for first in range(0, len(examples), TOGETHER):
            some = examples[first : first + TOGETHER]
            data = self.labelling.labelled(some, self.layout).to(device)
            found += self.labelling.answers(self.labeller(data.x).double().cpu(), data.to("cpu"), some, self.layout)
        return found


def save_finetuned(folder: Path, model: Finetuned, card: str) -> None:
    """Write the folder, config.json last, so that a folder with one is whole."""
    reader, layout = model.labeller.reader, model.layout
    write_tensors(folder / WEIGHTS, save_reader(folder, model.labeller))
    write_tokenizer(folder, layout.tokenizer)
    write_file(folder / CARD, card.encode())
    network = bases.to_dict(reader.network.config) if isinstance(reader, NetworkReader) else None
    settings: dict[str, Any] = {
        "model_type": KIND,
        "task": model.task,
        "labelling": asdict(model.labelling),  # type: ignore[call-overload]
        "head": asdict(model.labeller.config),
        "reader": {
            "network": network, "vocab_size": reader.vocab_size, "opening": getattr(reader, "opening", None),
            "both_sides": reader.both_sides,
        },
        "columns": asdict(model.columns),
        "layout": {"longest": layout.longest, "separator": layout.separator, "summary": layout.summary},
        "eos": layout.tokenizer.backend.id_to_token(layout.tokenizer.eos),
    }  # fmt: skip
    write_json(folder / CONFIG, settings)


def load_finetuned(folder: str | Path) -> Finetuned:
    """The model of a folder, ready to predict."""
    folder = Path(folder)
    config = read_config(folder)
    if config.get("model_type") != KIND:
        raise ValueError(
            f"{folder} holds a model of type {config.get('model_type')!r}, which has not learnt a task. Nothing was loaded; "
            f"fine-tune it first: esscher finetune {folder} --out ... --data.source ..."
        )
    told = config["reader"]
    network = None if told["network"] is None else bases.from_dict(told["network"])
    with Seeded(0).governs_torch():
        reader = empty_reader(folder, network, told["vocab_size"], told["opening"], both_sides=told["both_sides"])
        assert reader is not None
        labeller = Labeller(reader, LabellerConfig(**config["head"]))
    fill_module(labeller, read_tensors(folder / WEIGHTS), folder / WEIGHTS)
    tokenizer = load_tokenizer(folder, eos=config["eos"])
    told_of_task = config["labelling"].items()
    known: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told_of_task}
    labelling: Labelling = LABELLINGS[config["task"]](**known)
    layout, columns = Layout(tokenizer, **config["layout"]), Columns(**config["columns"])
    return Finetuned(labeller.eval(), layout, config["task"], labelling, columns)


def card_of(model: Finetuned, start: str, measured: Iterable[tuple[str, Estimate]], settings: dict[str, Any]) -> str:
    """The page of a fine-tuned model."""
    weights = sum(weight.numel() for weight in model.labeller.parameters())
    rows = [
        f"| {name} | {found.value:.5g} | [{found.low:.5g}, {found.high:.5g}] ({found.level:.0%}) | {found.method} |"
        for name, found in measured
    ]
    table = "\n".join(["| what | value | interval | method |", "| --- | --- | --- | --- |", *rows])
    return "\n".join(
        [
            f"---\nlibrary_name: esscher\ntags:\n- {KIND}\n---\n",
            f"# A model that learnt to {model.task}\n",
            f"Fine-tuned from `{start}`; {weights:,} parameters, rows of at most {model.layout.longest} tokens.\n",
            f"## Measured on the test data\n\n{table}\n",
            "## Use\n\n```\nesscher predict path/of/this/folder --data new.jsonl\n```\n",
            f"## Training\n\n```yaml\n{yaml.safe_dump(settings, sort_keys=False)}```\n",
        ]
    )
