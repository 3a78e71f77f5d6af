"""The whole of `esscher train`, in one call: data, tokenizer, base, training, measurement, model folder.

    train(TrainRun(out="runs/first"))

The folder then holds the model (see `esscher.hub`), `run.yaml` with every setting, `history.jsonl`,
`results.json`, and the checkpoints that `resume=True` goes on from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from esscher.bases.config import TransformerConfig
from esscher.bases.network import NetworkBase, build_base, with_unrolled
from esscher.data.images import load_codec
from esscher.estimate import Estimate
from esscher.estimators.perplexity import as_bits, as_perplexity, cross_entropy, perplexity
from esscher.hub import Card, load_base, save_base
from esscher.launch import first_process
from esscher.networks.network import Settled
from esscher.randomness import Seeded
from esscher.settings.changes import refuse_change
from esscher.settings.train import TrainRun, to_dict
from esscher.settings.training import TrainingConfig
from esscher.space import Sequences
from esscher.storage import write_json
from esscher.target import Tilted
from esscher.training.batches import order_of
from esscher.training.evaluation import HeldOut, HeldOutStream
from esscher.training.loop import TrainingRecord
from esscher.training.processes import all_here
from esscher.training.progress import choose_progress
from esscher.training.streams import Plan, Stream, planned_length
from esscher.training.trainer import Trainer
from esscher.verbs.measure_stream import StreamMeasuring, measure_stream
from esscher.verbs.objectives import build_objective, judging_objective
from esscher.verbs.run_folder import RESULTS, TRAIN_SETTINGS, keep_settings, settings_of
from esscher.verbs.training_data import Material, prepare
from esscher.verbs.training_images import fitted, in_bits, prepare_images
from esscher.verbs.training_streams import StreamMaterial, prepare_streams

SETTLED_BY = 128  # points that set the first scales of a network that wants it


@dataclass(frozen=True)
class TrainResult:
    """What came out: where the model is, what it learnt from, how training went, and what was measured on the test data."""

    folder: Path
    base: NetworkBase
    material: Material | StreamMaterial
    record: TrainingRecord
    measured: Mapping[str, Estimate]

    @property
    def points(self) -> Material:
        """What it learnt from, where that was points and not a stream."""
        if not isinstance(self.material, Material):
            raise ValueError("The run learnt from a stream, which has no points. Its tokens are in `material`.")
        return self.material

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        best = None if self.record.best is None else self.record.best.to_dict()
        return {
            "folder": str(self.folder),
            "steps": self.record.steps,
            "stopped": self.record.stopped,
            "best_step": self.record.best_step,
            "validation": best,
            "measured": {name: found.to_dict() for name, found in self.measured.items()},
        }


def train(run: TrainRun, *, resume: bool = False, quiet: bool = False) -> TrainResult:
    """Train a base as the settings say, and save it in `run.out`."""
    folder, seed = Path(run.out), Seeded(run.training.seed)
    speak = choose_progress(quiet).say
    started = settings_of(folder) if resume else None
    if started is not None:
        refuse_change(f"The run in {folder}", replace(started, out=run.out), run)
    material = _material(run, seed)
    speak(material.description)
    base = _base(run, material)
    target = Tilted(base)
    keep_settings(folder / TRAIN_SETTINGS, to_dict(run))
    data: Sequences | Stream
    held_out: HeldOut | HeldOutStream
    judge = judging_objective(run.objective)
    if isinstance(material, StreamMaterial):
        data, held_out = material.learnt(run.length), HeldOutStream(judge, material.chosen_by(run.length))
    else:
        data, held_out = material.train, HeldOut(judge, material.validation)
    record = Trainer(run.training, quiet)(
        build_objective(run, lambda epochs: steps_in(data, run.training, epochs), material.text),
        target,
        data,
        modules=base,
        validation=held_out,
        folder=folder,
        resume=resume,
    )
    result = TrainResult(folder, base, material, record, _measure(base, material))
    if first_process() or run.training.sharded:  # what is shared out all processes gather
        _save(run, result)
    all_here()  # what the first wrote is there for all
    for name, found in result.measured.items():
        speak(f"{name}: {found}")
    return result


def _material(run: TrainRun, seed: Seeded) -> Material | StreamMaterial:
    if run.length.stream:
        return prepare_streams(run)
    images = run.of_images or (run.start is not None and load_codec(run.start) is not None)
    return prepare_images(run) if images else prepare(run, rng=seed.stream("data"))


def steps_in(data: Sequences | Stream, training: TrainingConfig, epochs: int) -> int:
    """The updates of so many epochs."""
    if isinstance(data, Stream):
        return Plan(data, planned_length(data, training.batch_size), training.seed).steps(epochs)
    return order_of(data, training).steps(epochs)


def _base(run: TrainRun, material: Material | StreamMaterial) -> NetworkBase:
    """A base for the material, new or from a folder; one with too few positions is refused before anything is trained."""
    base = _begun(run, material)
    if isinstance(material, StreamMaterial):
        base.open(0)  # refuses one without a memory
        return base
    longest = max(int(part.stop.max()) for part in (material.train, material.validation, material.test))
    if isinstance(base.config, TransformerConfig) and longest > base.config.max_positions:
        raise ValueError(
            f"Sequences of {longest:,} tokens are longer than the base allows: it has max_positions = "
            f"{base.config.max_positions}. Nothing was trained; raise base.max_positions, or lower length.tokens."
        )
    return base


def _begun(run: TrainRun, material: Material | StreamMaterial) -> NetworkBase:
    """The base before training."""
    if run.start is None:
        choice = run.base if material.codec is None else fitted(run.base, material.codec)
        fresh = build_base(choice.resolve(), material.space, rng=Seeded(run.training.seed).stream("base"))
        if isinstance(fresh.network, Settled) and isinstance(material, Material):
            fresh.network.settle(material.train.rows(slice(0, SETTLED_BY)))
        return fresh
    base, _ = load_base(run.start)
    if not isinstance(base, NetworkBase):
        raise ValueError(
            f"{run.start} holds a model of Hugging Face, which is not trained further here. Nothing was trained; use its own "
            f"library, and bring the result as a base."
        )
    base.space = material.space
    return base if run.base.unrolled is None else with_unrolled(base, run.base.unrolled)


def _measure(base: NetworkBase, material: Material | StreamMaterial) -> dict[str, Estimate]:
    """Perplexity on the test data by unit, and what is known of the source; of a stream also bits."""
    if isinstance(material, StreamMaterial):
        nats = measure_stream(base, material.test, StreamMeasuring(segment=base.space.max_length)).nats
        bits = {f"bits per {unit}": found for unit, found in as_bits(nats).items() if unit in ("character", "byte")}
        return {**{f"perplexity per {unit}": found for unit, found in as_perplexity(nats).items()}, **bits}
    if material.codec is not None:
        return in_bits(cross_entropy(Tilted(base), material.test, units=material.units))
    found = perplexity(Tilted(base), material.test, units=material.units)
    return {**{f"perplexity per {unit}": estimate for unit, estimate in found.items()}, **dict(material.truth)}


def _save(run: TrainRun, result: TrainResult) -> None:
    material = result.material
    card = Card(
        title=f"{result.base.config.__class__.__name__.removesuffix('Config')} trained on {run.data.source}",
        data=material.description,
        training=to_dict(run),
        measured=list(result.measured.items()),
    )
    save_base(result.folder, result.base, material.codec or material.text, card)
    write_json(result.folder / RESULTS, result.to_dict())
