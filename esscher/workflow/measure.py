"""Measuring a model on data: cross-entropies of the base and of the tilted model by every method, log Z, and its reliability.

    model.measure("test.txt").report

Where all test sequences have one prompt, log Z needs many draws once. Where each has its own prompt, some draws are needed
after each of them, so the test set is thinned to `MAX_SEQUENCES`, evenly spaced. With `out` the draws are kept, and an
interrupted measurement goes on. Streams are in `measure_stream`, models that learn from the text in `dynamic_evaluation`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from esscher.core.config import refuse_change, to_dict
from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, unique_prompts
from esscher.core.storage import digest, module_tensors, write_json
from esscher.energies.serialization import SavedNetworkEnergy, base_digest
from esscher.estimators.measure import Measurement, measure
from esscher.estimators.per_position import PositionEstimates, per_position
from esscher.estimators.perplexity import as_perplexity
from esscher.reports.plots import BASE, TILTED, interval_bands, save_figure
from esscher.reports.report import Report
from esscher.samplers.importance import Importance
from esscher.training.resumable import ResumableByPrompts
from esscher.workflow.config.measure import MeasureConfig
from esscher.workflow.dynamic_evaluation import DynamicMeasurement, measure_dynamic
from esscher.workflow.measure_stream import StreamMeasurement, measure_model_stream, reads_stream
from esscher.workflow.model import Model
from esscher.workflow.processors import EncodedSet
from esscher.workflow.subsets import evenly_spaced

DRAWS_ONE_PROMPT, DRAWS_EACH_PROMPT = 4000, 64
MAX_SEQUENCES = 500  # test sequences with prompts of their own
WORST_PROMPTS = 8
MEASURED = "measured"  # folder of the report, in that of the energy or the base, where `out` is None
DRAWS_CLAIM = "measuring.json"  # what the draws in a folder belong to


@dataclass(frozen=True)
class SequenceMeasurement:
    """Estimates on some of the `available` test sequences, and the prompts whose weights are least reliable."""

    sequences: EncodedSet
    available: int
    draws: int  # after each prompt
    estimates: Measurement
    positions: tuple[PositionEstimates, ...]
    worst_prompts: tuple[dict[str, Any], ...]

    @property
    def nats_by_model(self) -> dict[str, Mapping[str, Estimate]]:
        models = {"base": self.estimates.base, "tilted": self.estimates.tilted}
        return {name: nats for name, nats in models.items() if nats is not None}

    def report(self, model: Model, settings: MeasureConfig) -> Report:
        """Facts on the tilt, and tables by model and method, of the worst prompts, and by position."""
        estimates, thinned = self.estimates, len(self.sequences) < self.available
        facts: dict[str, Any] = {
            "model": model.name, "energy": model.energy_name, "data": self.sequences.description,
            "measured_on": f"{self.sequences}, evenly spaced among {self.available:,}" if thinned else str(self.sequences),
            "seed": settings.seed, **tilt_facts(estimates),
        }  # fmt: skip
        name, rows = model.data.measurement_rows(estimates)
        tables: dict[str, Any] = {name: rows}
        tables |= {"worst_prompts": self.worst_prompts} if len(estimates.reliability) > 1 and self.worst_prompts else {}
        tables |= {"positions": position_rows(self.positions)} if self.positions else {}
        methods = {
            "base": estimates.base, "tilted": estimates.tilted, "bounds of the paper": estimates.bounds,
            "guarantee": estimates.guaranteed,
        }  # fmt: skip
        notes = [f"{name}: {next(iter(nats.values())).method}" for name, nats in methods.items() if nats is not None]
        if settings.plot is not None:
            facts["plot"] = _plot_positions(tables["positions"], Path(settings.plot))
        return Report("esscher measure", facts, tables, [*notes, *estimates.warnings])


@dataclass(frozen=True)
class MeasureResult:
    """What was estimated, and its report."""

    measurement: SequenceMeasurement | StreamMeasurement | DynamicMeasurement
    report: Report

    @property
    def nats(self) -> dict[str, Mapping[str, Estimate]]:
        """Cross-entropies in nats by model (base, tilted, dynamic) and unit."""
        return self.measurement.nats_by_model


def measure_model(model: Model, settings: MeasureConfig) -> MeasureResult:
    """Measure a model on data: as sequences, as one stream, or learning from it.

    Args:
        model: The model, tilted or not.
        settings: The data, and what to measure.

    Returns:
        The estimates, and the report, which is saved in `settings.out`, by default in the folder `measured` in that of the
        model.
    """
    measurement: SequenceMeasurement | StreamMeasurement | DynamicMeasurement
    if settings.dynamic:
        measurement = measure_dynamic(model, settings)
    elif reads_stream(model, settings):
        measurement = measure_model_stream(model, settings)
    else:
        _check_positions(model, settings)
        measurement = measure_sequences(model, model.data.read(settings.source, model.trained), settings)
    report, home = measurement.report(model, settings), model.energy_folder or model.folder
    folder = Path(settings.out) if settings.out is not None else None if home is None else home / MEASURED
    if folder is not None:
        report = report.save(folder, {"model": model.name, "energy": model.energy_name, **to_dict(settings)})
    return MeasureResult(measurement, report)


def measure_sequences(model: Model, available: EncodedSet, settings: MeasureConfig) -> SequenceMeasurement:
    """Estimates on test sequences by every method, log Z, and its reliability.

    Args:
        model: The model, tilted or not.
        available: Test sequences, of which at most `settings.sequences` are taken, evenly spaced.
        settings: What to measure; `settings.out` keeps the draws.

    Returns:
        The estimates, and those by position if `settings.positions` asks for them.
    """
    count, draws = sample_sizes(model, available.x, settings)
    sequences = available.rows(evenly_spaced(len(available), count))
    folder = None if settings.out is None else Path(settings.out)
    if folder is not None and model.is_tilted:
        claim_draws_folder(folder, model, settings, draws)
    say = current_progress().say
    estimates = measure(
        model.target, sequences.x, ResumableByPrompts(Importance(), folder, say=say), draws, units=sequences.units,
        bounds=energy_bounds(model), test=settings.test, confidence=settings.confidence, rng=SeededRng(settings.seed),
    )  # fmt: skip
    positions: list[PositionEstimates] = []
    if settings.positions and model.is_tilted:
        positions = per_position(
            model.target, sequences.rows(evenly_spaced(len(sequences), settings.positions)).x,
            ResumableByPrompts(Importance(), None if folder is None else folder / "positions"), settings.position_draws,
            enumerate_last=not settings.sample_last, test=settings.test, confidence=settings.confidence,
            rng=SeededRng(settings.seed, "steps"), say=say,
        )  # fmt: skip
    worst = tuple(_worst_prompts(model, estimates))
    return SequenceMeasurement(sequences, len(available), draws, estimates, tuple(positions), worst)


def sample_sizes(model: Model, x: Sequences, settings: MeasureConfig) -> tuple[int, int]:
    """How many of these sequences are measured, and by how many draws after each prompt."""
    one_prompt = len(unique_prompts(x)[0]) == 1
    sequences = settings.sequences or (len(x) if one_prompt or not model.is_tilted else MAX_SEQUENCES)
    return sequences, settings.draws or (DRAWS_ONE_PROMPT if one_prompt else DRAWS_EACH_PROMPT)


def tilt_facts(estimates: Measurement) -> dict[str, Any]:
    """What tilting saves, log Z, and how many prompts are reliable; nothing for a base."""
    if estimates.log_z is None:
        return {}
    verdicts = [entry.verdict for entry in estimates.reliability]
    counts = {word: verdicts.count(word) for word in ("good", "doubtful", "unreliable") if word in verdicts}
    facts: dict[str, Any] = {"saved_by_tilting": next(iter((estimates.reduction or {}).values())), "log_z": estimates.log_z}
    facts |= {} if estimates.log_z_std is None else {"log_z_std": estimates.log_z_std}
    facts["reliability"] = verdicts[0] if len(verdicts) == 1 else ", ".join(f"{n} {word}" for word, n in counts.items())
    return facts


def position_rows(positions: tuple[PositionEstimates, ...]) -> list[dict[str, Any]]:
    """The perplexity at each position as a table."""
    return [
        {
            "position": estimate.position,
            "sequences": estimate.sequences,
            **{
                name: replace(value, unit="")
                for name, value in as_perplexity({"base": estimate.base, "tilted": estimate.tilted}).items()
            },
            "nats_saved": replace(estimate.reduction, unit=""),
            "tilted_at_least": as_perplexity({"": estimate.bounds.lower})[""].value,
            "tilted_at_most": as_perplexity({"": estimate.bounds.upper})[""].value,
        }
        for estimate in positions
    ]


def energy_bounds(model: Model) -> tuple[float, float] | None:
    """Where every -E(x) lies, if the energy's settings say."""
    if not isinstance(model.energy, SavedNetworkEnergy) or model.energy.config.bound is None:
        return None
    return -model.energy.config.bound, model.energy.config.bound


def claim_draws_folder(folder: Path, model: Model, settings: MeasureConfig, draws: int) -> None:
    """Let a folder of draws belong to this model, seed and number of draws; refuse one that belongs to others."""
    energy = model.target.energy
    claim = {
        "base": base_digest(model.base),
        "energy": digest(module_tensors(energy)) if isinstance(energy, nn.Module) else repr(model.energy),
        "draws": draws,
        "position_draws": settings.position_draws,
        "seed": settings.seed,
    }
    file = folder / DRAWS_CLAIM
    if file.is_file():
        refuse_change(f"The measurement in {folder}", json.loads(file.read_text()), claim)
    else:
        write_json(file, claim)


def _check_positions(model: Model, settings: MeasureConfig) -> None:
    if settings.positions and not model.is_tilted:
        raise ValueError(
            f"positions compares base and tilted model position by position, and {model.name} was loaded without an energy. "
            f"Nothing was measured; name an energy, or leave positions out."
        )


def _worst_prompts(model: Model, estimates: Measurement) -> list[dict[str, Any]]:
    """The least reliable prompts."""
    if estimates.draws is None:
        return []
    prompts, rows = estimates.draws.prompts(), []
    for row in estimates.worst(WORST_PROMPTS):
        entry, start = estimates.reliability[row], int(prompts.start[row])
        rows.append(
            {
                "prompt_ends_with": model.data.prompt_label(prompts.tokens[row, :start].tolist()),
                "ess": entry.ess,
                "max_share": entry.max_share,
                "pareto_k": entry.pareto_k,
                "verdict": entry.verdict,
            }
        )
    return rows


def _plot_positions(rows: list[dict[str, Any]], file: Path) -> Path:
    positions = [row["position"] for row in rows]
    lines = {name: (colour, positions, [row[name] for row in rows]) for name, colour in (("base", BASE), ("tilted", TILTED))}
    return save_figure(interval_bands(lines, x="position", y="perplexity of the token there"), file)
