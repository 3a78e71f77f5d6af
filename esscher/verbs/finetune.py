"""The whole of `esscher finetune`, in one call: a pretrained model, labelled texts, a head, training, measurement, a folder.

    finetune("runs/xlnet", FinetuneRun("runs/authors", LabelledDataConfig("authors.csv")))

An XLNet reads by its content stream, from both sides, A SEP B SEP CLS; its query stream is not used. Other networks, and models
of Hugging Face, read with the symbols they have: the end symbol parts the texts. The folder then also holds `finetune.yaml`,
`history.jsonl`, `results.json` and the checkpoints that `resume=True` goes on from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from esscher.data.examples import Example, examples_of, read_rows, split_examples
from esscher.data.layout import Layout
from esscher.data.tokenizers import load_tokenizer
from esscher.energies.building import reader_from, reads_both_sides
from esscher.energies.config import EnergyConfig
from esscher.energies.encoder import encoder_of_tokens, load_encoder
from esscher.energies.labeller import Labeller, layer_shares
from esscher.energies.labeller_config import LabellerConfig, Summary
from esscher.energies.pretrained import read_tokenizer
from esscher.energies.readers import NetworkReader, PretrainedReader
from esscher.estimate import Estimate
from esscher.hub import load_base
from esscher.launch import first_process
from esscher.networks.xlnet import XLNetNetwork
from esscher.randomness import Seeded
from esscher.settings.finetune import FinetuneRun
from esscher.settings.training import Pace
from esscher.storage import write_json
from esscher.training.evaluation import HeldOut
from esscher.training.loop import TrainingRecord
from esscher.training.processes import all_here
from esscher.training.progress import choose_progress
from esscher.training.trainer import Trainer
from esscher.verbs.finetuned import Finetuned, card_of, save_finetuned
from esscher.verbs.labelling import LABELLINGS, Labelling
from esscher.verbs.run_folder import FINETUNE_SETTINGS, RESULTS, keep_settings, refuse_other_settings

PLAIN = EnergyConfig("unidirectional")  # of which the dropout and adapters count: none


@dataclass(frozen=True)
class FinetuneResult:
    """The fine-tuned model, how training went, and what test data say of it; `answers` are its own to those."""

    folder: Path
    model: Finetuned
    record: TrainingRecord
    measured: Mapping[str, Estimate]
    test: Sequence[Example]
    answers: Sequence[Mapping[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """For results.json."""
        best = None if self.record.best is None else self.record.best.to_dict()
        return {
            "folder": str(self.folder),
            "task": self.model.task,
            "steps": self.record.steps,
            "stopped": self.record.stopped,
            "best_step": self.record.best_step,
            "best_loss": best,
            "measured": {name: found.to_dict() for name, found in self.measured.items()},
        }


def finetune(start: str, run: FinetuneRun, *, resume: bool = False, quiet: bool = False) -> FinetuneResult:
    """Teach the model in the folder `start` a task, and save what came of it in `run.out`."""
    folder, settings = Path(run.out), {"start": start, **asdict(run)}
    if resume:
        refuse_other_settings(folder / FINETUNE_SETTINGS, settings)
    parts = read_examples(run)
    model = build(start, run, parts[0])
    train, validation = (model.labelling.labelled(part, model.layout) for part in parts[:2])
    sizes = ", ".join(
        f"{len(part):,} to {use}" for part, use in zip(parts, ("learn from", "choose by", "judge by"), strict=True)
    )
    choose_progress(quiet).say(f"Examples: {sizes}.")
    keep_settings(folder / FINETUNE_SETTINGS, settings)
    objective = model.labelling.objective
    paces = {} if run.layer_rate == 1 else {"model": Pace(shares=layer_shares(model.labeller, run.layer_rate))}
    record = Trainer(run.training, quiet)(
        objective, model.labeller, train, modules=model.labeller, paces=paces, validation=HeldOut(objective, validation),
        folder=folder, resume=resume,
    )  # fmt: skip
    answers = model.predict(parts[2])
    measured = model.labelling.measured(answers, parts[2])
    result = FinetuneResult(folder, model, record, measured, parts[2], answers)
    if first_process():
        save_finetuned(folder, model, card_of(model, start, measured.items(), settings))
        write_json(folder / RESULTS, result.to_dict())
    all_here()  # what the first wrote is there for all
    return result


def read_examples(run: FinetuneRun) -> tuple[list[Example], ...]:
    """The labelled examples of a run in three parts."""
    data = run.data
    sources = [data.source, *(one for one in (data.validation, data.test) if one is not None)]
    parts = [examples_of(run.task, read_rows(one), data.columns(run.task), one) for one in sources]
    for name, part in zip(sources, parts, strict=True):
        unknown = sum(one.right is None for one in part)
        if unknown:
            raise ValueError(
                f"{name} has no {data.columns(run.task).label!r} in {unknown:,} of {len(part):,} examples, so there is nothing "
                f"to learn or to judge by. Nothing was learnt; name the column of the labels."
            )
    return tuple(parts) if len(parts) == 3 else split_examples(parts[0], data.held_out, data.source)


def build(start: str, run: FinetuneRun, examples: Sequence[Example]) -> Finetuned:
    """The model before it learns: the weights of `start` with a new head, for the task as these examples have it."""
    reader, layout, pooling = _encoder(start, run) if run.encoder else _base(start, run)
    labelling: Labelling = LABELLINGS[run.task].learn(examples, run, layout)
    frozen = run.task == "rank" if run.head.frozen is None else run.head.frozen
    config = LabellerConfig(labelling.kind, labelling.outputs, run.head.pooling or pooling, run.head.dropout, frozen)
    with Seeded(run.training.seed).stream("head").governs_torch():
        return Finetuned(Labeller(reader, config), layout, run.task, labelling, run.data.columns(run.task))


def _base(start: str, run: FinetuneRun) -> tuple[NetworkReader | PretrainedReader, Layout, Summary]:
    """The reader of a base, ours or of Hugging Face."""
    base, tokenizer = load_base(start)
    if tokenizer is None:
        raise ValueError(f"{start} holds no tokenizer, so it reads no text. Nothing was learnt; use another model.")
    both_sides = reads_both_sides(base) if run.both_sides is None else run.both_sides
    reader = reader_from(base, PLAIN, both_sides=both_sides)
    network = getattr(reader, "network", None)
    separator, summary = (network.separator, network.summary) if isinstance(network, XLNetNetwork) else (tokenizer.eos, None)
    symbols = (None, None) if run.task == "rank" else (separator, summary)  # texts that are read apart have none
    return reader, Layout(tokenizer, run.longest, *symbols), "last"


def _encoder(start: str, run: FinetuneRun) -> tuple[PretrainedReader, Layout, Summary]:
    """The reader of an encoder of Hugging Face, whose first symbol stands for the text."""
    model: Any = load_encoder(start)
    reader = encoder_of_tokens(model, start, model.config.vocab_size)
    symbols = read_tokenizer(Path(start), "encoder")
    parts = symbols.sep_token or symbols.eos_token
    if parts is None:
        raise ValueError(f"The tokenizer in {start} has no symbol that parts texts (sep or eos). Nothing was learnt.")
    tokenizer = load_tokenizer(start, eos=parts, size=model.config.vocab_size)
    separator = None if run.task == "rank" else tokenizer.eos
    return reader, Layout(tokenizer, run.longest - 1, separator, None), "first"
