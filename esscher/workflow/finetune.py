"""Fine-tuning of a pretrained model on labelled texts, and predictions of the result.

    finetune(FinetuneRun("runs/xlnet", out="runs/authors", data=LabelledDataConfig("authors.csv")))

An XLNet reads A SEP B SEP CLS by its content stream, in both directions. Other networks, and models of Hugging Face, use the
end symbol as separator. The folder holds config.json (task, head, encoder, longest row), weights, tokenizer and card, in
`reader/` the config of a pretrained encoder, and the settings, history, results, report and checkpoints of the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from esscher.core.config import from_dict
from esscher.core.device import device_of, resolve_device
from esscher.core.distributed import is_main_process
from esscher.core.estimate import Estimate
from esscher.core.folder_lock import locked_folder
from esscher.core.manifest import check_manifest, write_manifest
from esscher.core.progress import current_progress
from esscher.core.randomness import SeededRng
from esscher.core.reading import describing
from esscher.core.storage import load_module_tensors, read_tensors, write_file, write_json, write_tensors
from esscher.data.examples import ColumnNames, Example, Row, TaskKind, make_examples, read_rows, split_examples
from esscher.data.pair_encoding import PairEncoder
from esscher.data.sources import SPLIT_NAMES, read_lines
from esscher.data.tokenizers import load_tokenizer
from esscher.energies.config import EnergyConfig, TaskHeadConfig, TaskPooling
from esscher.energies.encoders import NetworkEncoder, PretrainedEncoder, load_encoder, token_encoder
from esscher.energies.network import encoder_from, is_bidirectional
from esscher.energies.pretrained import read_tokenizer
from esscher.energies.serialization import empty_encoder, save_encoder
from esscher.energies.task_heads import TaskModel, layerwise_lr_decay
from esscher.hub import load_base
from esscher.hub.folder import CARD, CONFIG, WEIGHTS, read_config, write_tokenizer
from esscher.networks.registry import NETWORKS
from esscher.networks.xlnet import XLNetNetwork
from esscher.reports.report import Report, write_lines
from esscher.training.collectives import barrier, init_process_group
from esscher.training.config import OptimizerConfig
from esscher.training.evaluation import HeldOut
from esscher.training.finetune_tasks import FINETUNE_TASKS, FinetuneTask, Prediction
from esscher.training.trainer import Trainer, TrainingRecord
from esscher.workflow.config.finetune import FinetuneRun, PredictConfig
from esscher.workflow.run_folder import FINETUNE_SETTINGS, refuse_other_settings, run_settings, save_settings, write_results

KIND = "esscher-finetuned"
EXAMPLES_PER_BATCH = 32  # examples of one forward pass


@dataclass(frozen=True)
class FinetunedModel:
    """A network with a head, how texts are laid out for it, its task, and the columns of its examples."""

    task_model: TaskModel
    layout: PairEncoder
    task: TaskKind
    labelling: FinetuneTask
    columns: ColumnNames

    @torch.no_grad()
    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """The prediction for each example."""
        self.task_model.eval()
        device, predictions = next(self.task_model.parameters()).device, []
        for first in range(0, len(examples), EXAMPLES_PER_BATCH):
            some = examples[first : first + EXAMPLES_PER_BATCH]
            scores = self.task_model(self.labelling.labelled(some, self.layout).x.to(device)).cpu().double()
            predictions += self.labelling.predictions(scores, some, self.layout)
        return predictions


def save_finetuned(folder: Path, model: FinetunedModel, card: str) -> None:
    """Write the folder, config.json and the manifest last, so that a folder with them is complete."""
    encoder, layout = model.task_model.encoder, model.layout
    write_tensors(folder / WEIGHTS, save_encoder(folder, model.task_model))
    write_tokenizer(folder, layout.tokenizer)
    write_file(folder / CARD, card.encode())
    network = NETWORKS.to_dict(encoder.network.config) if isinstance(encoder, NetworkEncoder) else None
    settings: dict[str, Any] = {
        "model_type": KIND, "task": model.task, "labelling": asdict(model.labelling), "head": asdict(model.task_model.config),
        "encoder": {
            "network": network, "vocab_size": encoder.vocab_size, "bos": getattr(encoder, "bos", None),
            "bidirectional": encoder.bidirectional,
        },
        "columns": asdict(model.columns),
        "layout": {"longest": layout.longest, "separator": layout.separator, "summary": layout.summary},
        "eos": layout.tokenizer.backend.id_to_token(layout.tokenizer.eos),
    }  # fmt: skip
    write_json(folder / CONFIG, settings)
    write_manifest(folder)


def load_finetuned(folder: str | Path, device: str = "auto") -> FinetunedModel:
    """The model of a folder on a device, ready to predict."""
    folder = Path(folder)
    check_manifest(folder)
    config = read_config(folder)
    if config.get("model_type") != KIND:
        raise ValueError(
            f"{folder} holds a model of type {config.get('model_type')!r}, which was not trained for a task. Nothing was "
            f"loaded; fine-tune it first: esscher finetune {folder} --out ... --data ..."
        )
    with describing(folder / CONFIG, "a fine-tuned model"):
        return _read_finetuned(folder, config, device)


def _read_finetuned(folder: Path, config: dict[str, Any], device: str) -> FinetunedModel:
    saved = config["encoder"]
    network = None if saved["network"] is None else NETWORKS.from_dict(saved["network"])
    with SeededRng(0).fork_torch_rng():
        encoder = empty_encoder(folder, network, saved["vocab_size"], saved["bos"], bidirectional=saved["bidirectional"])
        assert encoder is not None
        task_model = TaskModel(encoder, from_dict(TaskHeadConfig, config["head"]))
    load_module_tensors(task_model, read_tensors(folder / WEIGHTS), folder / WEIGHTS)
    tokenizer = load_tokenizer(folder, eos=config["eos"])
    labelling = from_dict(FINETUNE_TASKS[config["task"]], config["labelling"])
    layout, columns = PairEncoder(tokenizer, **config["layout"]), from_dict(ColumnNames, config["columns"])
    return FinetunedModel(task_model.to(resolve_device(device)).eval(), layout, config["task"], labelling, columns)


def model_card(model: FinetunedModel, run: FinetuneRun, measured: Mapping[str, Estimate]) -> str:
    """The page of a fine-tuned model."""
    weights = sum(weight.numel() for weight in model.task_model.parameters())
    rows = [
        f"| {name} | {estimate.value:.5g} | [{estimate.low:.5g}, {estimate.high:.5g}] ({estimate.confidence:.0%}) | "
        f"{estimate.method} |"
        for name, estimate in measured.items()
    ]
    return "\n".join(
        [
            f"---\nlibrary_name: esscher\ntags:\n- {KIND}\n---\n",
            f"# A model that was trained to {model.task}\n",
            f"Fine-tuned from `{run.model}`; {weights:,} parameters, rows of at most {model.layout.longest} tokens.\n",
            "## Measured on the test data\n\n| what | value | interval | method |\n| --- | --- | --- | --- |",
            *rows,
            "\n## Use\n\n```\nesscher predict path/of/this/folder --data new.jsonl\n```\n",
            f"## Training\n\n```yaml\n{yaml.safe_dump(run_settings(run), sort_keys=False)}```\n",
        ]
    )


@dataclass(frozen=True)
class FinetuneResult:
    """The fine-tuned model, how training went, the test examples with their predictions, how good these are, and the report."""

    model: FinetunedModel
    record: TrainingRecord
    test: Sequence[Example]
    predictions: Sequence[Prediction]
    measured: Mapping[str, Estimate]
    report: Report


def finetune(run: FinetuneRun) -> FinetuneResult:
    """Train the model in the folder `run.model` for a task, and save it in `run.out`."""
    folder, device = Path(run.out), resolve_device(run.device)
    init_process_group(device)
    with locked_folder(folder):
        return _finetune(run, folder, device)


def _finetune(run: FinetuneRun, folder: Path, device: torch.device) -> FinetuneResult:
    if run.resume:
        refuse_other_settings(folder / FINETUNE_SETTINGS, run)
    parts = read_examples(run)
    model = build(run, parts[0])
    model.task_model.to(device)
    train, validation = (model.labelling.labelled(part, model.layout) for part in parts[:2])
    sizes = ", ".join(f"{len(part):,} for {use}" for part, use in zip(parts, SPLIT_NAMES, strict=True))
    current_progress().say(f"Examples: {sizes}.")
    save_settings(folder / FINETUNE_SETTINGS, run)
    objective, optimizers = model.labelling.objective, {}
    if run.layer_rate != 1:
        optimizers["model"] = OptimizerConfig(lr_scale_by_prefix=layerwise_lr_decay(model.task_model, run.layer_rate))
    record = Trainer(run.training)(
        objective, model.task_model, train, modules=model.task_model, optimizer_configs=optimizers,
        validation=HeldOut(objective, validation), folder=folder, resume=run.resume,
    )  # fmt: skip
    predictions = model.predict(parts[2])
    measured = model.labelling.measured(predictions, parts[2])
    facts = {
        "model": run.model, "folder": run.out, "device": str(device), "task": run.task, "steps": record.steps,
        "stopped": record.stopped,
        "best_step": record.best_step,
    }  # fmt: skip
    if is_main_process():
        save_finetuned(folder, model, model_card(model, run, measured))
        best = None if record.best is None else record.best.to_dict()
        numbers = {name: estimate.to_dict() for name, estimate in measured.items()}
        write_results(folder, {**facts, "best_loss": best, "measured": numbers})
    barrier()  # what the main process wrote is there for all
    rows = [{"measured on the test data": name, "value": estimate} for name, estimate in measured.items()]
    facts["seed"] = run.training.seed
    report = Report("esscher finetune", facts, {"measured": rows}, json_tables={"measured": dict(measured)})
    return FinetuneResult(model, record, parts[2], predictions, measured, report.save(folder, run_settings(run)))


def predict(settings: PredictConfig) -> Report:
    """The predictions of a fine-tuned model for texts, or for the rows of a file."""
    model = load_finetuned(settings.model, settings.device)
    examples = make_examples(model.task, _rows(model, settings), model.columns, settings.data or "the texts")
    predictions = model.predict(examples)
    if settings.out is not None:
        write_lines(Path(settings.out), predictions)
    tables: dict[str, Any] = {"predictions": predictions}
    if all(example.label is not None for example in examples):
        measured = model.labelling.measured(predictions, examples)
        tables["measured"] = [{"measured": name, "value": estimate} for name, estimate in measured.items()]
    shown = {name: rows for name, rows in tables.items() if settings.out is None or name == "measured"}
    facts = {"model": settings.model, "device": str(device_of(model.task_model)), "task": model.task, "examples": len(examples)}
    return Report("esscher predict", facts, shown, json_tables=tables)


def _rows(model: FinetunedModel, settings: PredictConfig) -> list[Row]:
    if settings.data is not None and not settings.data.endswith(".txt"):
        return read_rows(settings.data)
    columns = model.columns
    if columns.second is not None or model.task == "choose":
        raise ValueError(
            f"The model was trained to {model.task} from rows of more than one text. Nothing was predicted; name data with the "
            f"columns {columns.text} and {columns.second or columns.options}."
        )
    lines = settings.texts if settings.data is None else [line for line in read_lines(Path(settings.data)) if line.strip()]
    return [{columns.text: line} for line in lines]


def read_examples(run: FinetuneRun) -> tuple[list[Example], ...]:
    """The labelled examples of a run in three splits."""
    data = run.data
    sources = [source for source in (data.source, data.validation, data.test) if source is not None]
    parts = [make_examples(run.task, read_rows(source), data.columns(run.task), source) for source in sources]
    for name, part in zip(sources, parts, strict=True):
        unknown = sum(example.label is None for example in part)
        if unknown:
            raise ValueError(
                f"{name} has no {data.columns(run.task).label!r} in {unknown:,} of {len(part):,} examples, so there is nothing "
                f"to train on or to measure by. Nothing was trained; name the column of the labels."
            )
    return tuple(parts) if len(parts) == 3 else split_examples(parts[0], data.held_out, data.source)


def build(run: FinetuneRun, examples: Sequence[Example]) -> FinetunedModel:
    """The model before training: the weights of `run.model` with a new head, for the task as these examples have it."""
    encoder, layout, pooling = _encoder(run) if run.encoder else _base(run)
    labelling = FINETUNE_TASKS[run.task].from_examples(examples, layout, run.head.answer)
    frozen = run.task == "rank" if run.head.frozen is None else run.head.frozen
    config = TaskHeadConfig(labelling.kind, labelling.outputs, run.head.pooling or pooling, run.head.dropout, frozen)
    with SeededRng(run.training.seed).stream("head").fork_torch_rng():
        return FinetunedModel(TaskModel(encoder, config), layout, run.task, labelling, run.data.columns(run.task))


def _base(run: FinetuneRun) -> tuple[NetworkEncoder | PretrainedEncoder, PairEncoder, TaskPooling]:
    """The encoder of a base, ours or of Hugging Face."""
    base, tokenizer = load_base(run.model)
    if tokenizer is None:
        raise ValueError(f"{run.model} holds no tokenizer, so it reads no text. Nothing was trained; use another model.")
    bidirectional = is_bidirectional(base) if run.bidirectional is None else run.bidirectional
    encoder = encoder_from(base, EnergyConfig("unidirectional"), bidirectional=bidirectional)  # no dropout, no adapters
    network = getattr(encoder, "network", None)
    separator, summary = (network.separator, network.summary) if isinstance(network, XLNetNetwork) else (tokenizer.eos, None)
    symbols = (None, None) if run.task == "rank" else (separator, summary)  # texts that are read separately have none
    return encoder, PairEncoder(tokenizer, run.longest, *symbols), "last"


def _encoder(run: FinetuneRun) -> tuple[PretrainedEncoder, PairEncoder, TaskPooling]:
    """An encoder of Hugging Face, whose first symbol stands for the text."""
    folder = resolve_model_folder(run.model)
    model: Any = load_encoder(folder)
    encoder = token_encoder(model, folder, model.config.vocab_size)
    symbols = read_tokenizer(folder, "encoder")
    separating = symbols.sep_token or symbols.eos_token
    if separating is None:
        raise ValueError(f"The tokenizer in {run.model} has no symbol that separates texts (sep or eos). Nothing was trained.")
    tokenizer = load_tokenizer(folder, eos=separating, size=model.config.vocab_size)
    separator = None if run.task == "rank" else tokenizer.eos
    return encoder, PairEncoder(tokenizer, run.longest - 1, separator, None), "first"
