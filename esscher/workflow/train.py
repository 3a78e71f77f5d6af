"""Training a base: data, tokenizer, network, training, measurement, and a model folder (`esscher.hub`) with settings
(`run.yaml`), history, results, report, and the checkpoints that `resume=True` continues from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from esscher.bases.network import NetworkBase, build_base, with_unrolled_layers
from esscher.core.config import takes_settings
from esscher.core.device import resolve_device
from esscher.core.distributed import is_main_process
from esscher.core.estimate import Estimate
from esscher.core.folder_lock import locked_folder
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, empty_prompts
from esscher.core.target import Base, Tilted
from esscher.data.images import ImageCodec
from esscher.estimators.perplexity import cross_entropy
from esscher.hub import ModelCard, load_base, save_base
from esscher.networks.network import DataDependentInit
from esscher.networks.transformer_config import DeqConfig, TransformerConfig
from esscher.objectives.config import RunContext
from esscher.reports.report import Report, to_json
from esscher.samplers.ancestral import draw
from esscher.training.batches import batch_order
from esscher.training.collectives import barrier, init_process_group
from esscher.training.evaluation import HeldOut
from esscher.training.stream_batches import SegmentSchedule, TokenStream, segmented_length
from esscher.training.trainer import Trainer, TrainingRecord
from esscher.workflow.calibration import training_cost
from esscher.workflow.config.measure import StreamConfig
from esscher.workflow.config.train import DataRun, TrainRun
from esscher.workflow.cost import Cost, before_start, written
from esscher.workflow.measure import measure_stream
from esscher.workflow.model import Model, load
from esscher.workflow.processors import DataSplits, StreamSplits, prepare_data, prepare_stream_data, with_image_shape
from esscher.workflow.run_folder import (
    TRAIN_SETTINGS,
    changed_settings,
    refuse_other_settings,
    run_settings,
    save_settings,
    write_results,
)

SAMPLES, SAMPLE_TOKENS = 4, 64  # texts after each evaluation, and how long they may be
INIT_SEQUENCES = 128  # training sequences for networks whose initial scales depend on data


@dataclass(frozen=True)
class TrainResult:
    """Where the model is, what it was trained on, how training went, and what was measured on the test data."""

    run: TrainRun
    base: NetworkBase
    data: DataSplits | StreamSplits
    record: TrainingRecord
    measured: Mapping[str, Estimate]
    report: Report

    @property
    def folder(self) -> Path:
        return Path(self.run.out)

    @property
    def splits(self) -> DataSplits:
        """The sequences, where the run was not on a stream."""
        if not isinstance(self.data, DataSplits):
            raise ValueError("The run was on a stream, which has no sequences. Its tokens are in `data`.")
        return self.data

    @property
    def model(self) -> Model:
        """The model, loaded from its folder."""
        return load(self.folder, device=self.run.device)


def train_base(run: TrainRun) -> TrainResult:
    """Train a base as the settings say, and save it in `run.out`."""
    folder, device = Path(run.out), resolve_device(run.device)
    init_process_group(device)
    with locked_folder(written(folder)):
        return _train_base(run, folder, device)


def _train_base(run: TrainRun, folder: Path, device: torch.device) -> TrainResult:
    say = current_progress().say
    if run.resume:
        refuse_other_settings(folder / TRAIN_SETTINGS, run)
    splits = prepare_stream_data(run) if run.length.stream else prepare_data(run)
    say(splits.description)
    base = _initial_base(run, splits).to(device)
    say(f"Training on {device}.")
    data: Sequences | TokenStream
    validation, training = run.objective.validation_objective(), run.training
    if isinstance(splits, StreamSplits):
        data = splits.training_stream(run.length)
        held_out = HeldOut(validation, TokenStream(splits.validation.tokens, run.length.tokens))
    else:
        data, held_out = splits.train, HeldOut(validation, splits.validation)

    def steps(epochs: int) -> int:
        if isinstance(data, TokenStream):
            return SegmentSchedule(data, segmented_length(data, training.batch_size), training.seed).steps(epochs)
        return batch_order(data, training).steps(epochs)

    context = RunContext(
        steps,
        training.label_smoothing,
        None if run.reads_images else splits.tokenizer,
        None if run.length.window is None else run.length.tokens,
        run.length.bidirectional,
    )
    work: dict[str, Any] = {"modules": base, "validation": held_out, "folder": folder, "resume": run.resume}
    objective = run.objective.prepare(context)

    def cost() -> Cost:
        estimate = training_cost(training, objective, Tilted(base), data, **work)
        test = splits.test if isinstance(splits, DataSplits) else TokenStream(splits.test.tokens, run.length.tokens)
        phases = (*estimate.phases, estimate.scoring("measurement", test))
        notes = ("Training may end sooner: patience is set.",) if training.patience is not None else ()
        disk = estimate.weights + estimate.checkpoints
        return Cost("esscher train", phases, run.out, disk, estimate.memory, notes, {"device": str(device)})

    before_start(cost)
    save_settings(folder / TRAIN_SETTINGS, run)
    prompts = splits.validation.prompts() if isinstance(splits, DataSplits) else empty_prompts(1)
    sample = None if run.reads_images else text_sampler(base, prompts, splits.tokenizer.decode)
    record = Trainer(training)(objective, Tilted(base), data, **work, sample=sample)
    if isinstance(splits, DataSplits):
        nats = cross_entropy(Tilted(base), splits.test, units=splits.units)
    else:
        nats = dict(measure_stream(base, splits.test, StreamConfig(segment=base.space.max_length)).nats)
    measured = splits.measured(nats)
    facts = {
        "validation": record.best, "stopped": record.stopped, "folder": run.out, "device": str(device), "steps": record.steps,
        "best_step": record.best_step,
    }  # fmt: skip
    if is_main_process() or training.fsdp:  # sharded weights are gathered by all processes
        card = ModelCard(
            title=f"{type(base.config).__name__.removesuffix('Config')} trained on {run.data.source}",
            data=splits.description,
            training=run_settings(run),
            results=list(measured.items()),
        )
        save_base(folder, base, splits.processor.artifact, card)
        write_results(folder, to_json({**facts, "measured": measured}))
    barrier()  # what the main process wrote is there for all
    rows = [{"on the test data": name, "value": estimate} for name, estimate in measured.items()]
    facts["seed"] = training.seed
    details = ("steps", "best_step", *(["stopped"] if record.stopped == "finished" else []))
    report = Report(
        "esscher train", facts, {"measured": rows}, json_tables={"measured": measured}, details=details, tables_first=True
    )
    return TrainResult(
        run, base, splits, record, measured, report.save(folder, run_settings(run), changed=changed_settings(run))
    )


def text_sampler(base: Base, prompts: Sequences, decode: Callable[[list[list[int]]], list[str]]) -> Callable[[Rng], list[str]]:
    """Draws texts for the history of a run: a continuation of each of the first prompts, which may all be empty."""
    first = prompts.rows(slice(0, SAMPLES)).prompts()
    draws = max(1, SAMPLES // len(first))

    def sample(rng: Rng) -> list[str]:
        return decode(draw(base, first, draws, rng=rng, max_new_tokens=SAMPLE_TOKENS)[0].points())

    return sample


@takes_settings(TrainRun)
def train(run: TrainRun) -> Model:
    """Train a base and return it as a model.

    Args:
        run: The fields of `TrainRun`: first `out`, the folder of the model; then `data`, `tokenizer`, `length`, `base`,
            `training`, `objective`, ...

    Returns:
        The model, as `esscher.load(out)` gives it.

    Example:
        >>> model = esscher.train("runs/first", data=DataConfig("my.txt"), base=LstmConfig(width=64))
    """
    return train_base(run).model


def describe_data(settings: DataRun) -> Report:
    """What training would see of a source: sizes of the splits, some examples."""
    run = settings.as_train_run()
    splits = prepare_data(run)
    rows = [
        {
            "set": name,
            "sequences": len(x),
            "tokens": int(x.lengths.sum()),
            "mean length": float(x.lengths.double().mean()),
            "longest": int(x.lengths.max()),
        }
        for name, x in (("train", splits.train), ("validation", splits.validation), ("test", splits.test))
    ]
    facts: dict[str, Any] = {"source": settings.data.source}
    texts: list[str] = []
    if not run.reads_images:
        facts["tokenizer"] = splits.tokenizer.name
        texts = splits.tokenizer.decode(splits.train.rows(slice(0, settings.examples)).points())
    facts |= {"vocab_size": splits.space.vocab_size, "max_length": splits.space.max_length, "seed": settings.seed}
    tables: dict[str, Any] = {"sets": rows, "examples": [{"example": text} for text in texts]}
    return Report("esscher data", {**facts, **dict(splits.truth)}, tables, splits.description.split("\n"))


def _initial_base(run: TrainRun, splits: DataSplits | StreamSplits) -> NetworkBase:
    """The base before training, new or from a folder; one with too few positions is refused before anything is trained."""
    if run.start is None:
        codec = splits.processor.artifact
        config = with_image_shape(run.base, codec) if isinstance(codec, ImageCodec) else run.base
        base = build_base(config, splits.space, rng=SeededRng(run.training.seed).stream("base"))
        if isinstance(base.network, DataDependentInit) and isinstance(splits, DataSplits):
            base.network.data_dependent_init(splits.train.rows(slice(0, INIT_SEQUENCES)))
    else:
        loaded, _ = load_base(run.start)
        if not isinstance(loaded, NetworkBase):
            raise ValueError(
                f"{run.start} holds a Hugging Face model, which is not trained further here. Nothing was trained; use its own "
                f"library, and bring the result as a base."
            )
        base = with_unrolled_layers(loaded, run.base.unrolled) if isinstance(run.base, DeqConfig) else loaded
    base.space = splits.space
    if isinstance(splits, StreamSplits):
        base.init_memory(0)  # refuses a network without a memory
        return base
    longest = max(int(split.stop.max()) for split in (splits.train, splits.validation, splits.test))
    if isinstance(base.config, TransformerConfig) and longest > base.config.max_positions:
        raise ValueError(
            f"Sequences of {longest:,} tokens are longer than the base allows: it has max_positions = "
            f"{base.config.max_positions}. Nothing was trained; raise base.max_positions, or lower length.tokens."
        )
    return base
