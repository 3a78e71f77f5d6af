"""Measuring a model on data: cross-entropies of the base and of the tilted model by every method, log Z, and its reliability.

If all test sequences have one prompt, log Z takes many draws once. If each has its own, log Z takes draws after every prompt,
and the test set is thinned to `MAX_SEQUENCES`, evenly spaced. With `out` the draws are kept, and a measurement resumes.

A base that was trained on a stream reads all data as one text, with its memory, in columns (`esscher.estimators.long_context`).
One column is exact; several are exact up to what the memory holds beyond the columns' warm-up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from esscher.bases.network import NetworkBase
from esscher.bases.truncated import Truncated
from esscher.core.config import to_dict
from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.randomness import SeededRng
from esscher.core.space import unique_prompts
from esscher.data.splits import evenly_spaced
from esscher.data.text import TextStream
from esscher.estimators.long_context import SEGMENT, WARM, stream_cross_entropy, stream_log_probs, stream_warnings
from esscher.estimators.per_position import PositionEstimates, per_position
from esscher.estimators.perplexity import Measurement, TestSetMode, as_bits, as_perplexity, measure
from esscher.reports.plots import BASE, TILTED, interval_bands, save_figure
from esscher.reports.report import Report
from esscher.samplers.importance import Importance
from esscher.samplers.ladder import Ladder
from esscher.samplers.registry import SAMPLERS
from esscher.training.made_with import energy_fingerprint
from esscher.training.resumable import ROWS_BY_PROMPTS, ResumableByPrompts
from esscher.workflow.calibration import drawing, draws_on_disk, peak_memory, reading, scoring
from esscher.workflow.config.measure import MeasureConfig, StreamConfig
from esscher.workflow.cost import Cost, Phase, before_start
from esscher.workflow.dynamic_evaluation import DynamicMeasurement, measure_dynamic
from esscher.workflow.model import Model
from esscher.workflow.processors import EncodedSet
from esscher.workflow.proposal import NamedProposal, named_proposal, with_proposal
from esscher.workflow.run_folder import changed_settings, stream_settings, trained_chunking

DRAWS_ONE_PROMPT, DRAWS_EACH_PROMPT, LADDER_RUNS = 4000, 64, 16
MAX_SEQUENCES = 500  # test sequences with prompts of their own
WORST_PROMPTS, RELIABILITY_COLUMNS = 8, ("ess", "max_share", "spread", "verdict")
MEASURED = "measured"  # folder of the report, in that of the energy or the base, where `out` is None
TOKENS_PER_COLUMN, MAX_COLUMNS = 20 * WARM, 16


@dataclass(frozen=True)
class SequenceMeasurement:
    """Estimates on some of the `available` test sequences, and the prompts whose weights are least reliable."""

    sequences: EncodedSet
    available: int
    draws: int  # after each prompt
    estimates: Measurement
    positions: tuple[PositionEstimates, ...]
    worst_prompts: tuple[dict[str, Any], ...]
    drawn_from: NamedProposal | None = None  # the proposal of the draws for log Z; None is the base

    @property
    def nats_by_model(self) -> dict[str, Mapping[str, Estimate]]:
        models = {"base": self.estimates.base, "tilted": self.estimates.tilted}
        return {name: nats for name, nats in models.items() if nats is not None}

    def report(self, model: Model, settings: MeasureConfig) -> Report:
        """Facts on the tilt, and tables by model and method, of the worst prompts, and by position."""
        estimates, thinned = self.estimates, len(self.sequences) < self.available
        facts: dict[str, Any] = {
            **tilt_facts(estimates),
            "measured_on": f"{self.sequences}, evenly spaced among {self.available:,}" if thinned else str(self.sequences),
            "data": self.sequences.description, **model.facts, **({} if self.drawn_from is None else self.drawn_from.facts),
            "seed": settings.seed,
        }  # fmt: skip
        name, rows = model.data.measurement_rows(estimates)
        bounds = [row for row in rows if row.get("method") not in (None, "interval")]
        shown = [{key: row[key] for key in row if key != "method"} for row in rows if row not in bounds]
        tables: dict[str, Any] = {name: shown, "bounds": bounds}
        more: dict[str, Any] = {"worst_prompts": self.worst_prompts}
        more = more if len(estimates.reliability) > 1 and self.worst_prompts else {}
        more |= {"positions": position_rows(self.positions)} if self.positions else {}
        tables |= more
        if settings.plot is not None:
            rows, positions = tables["positions"], [row["position"] for row in tables["positions"]]
            colours = {"base": BASE, "tilted": TILTED}
            lines = {name: (colour, positions, [row[name] for row in rows]) for name, colour in colours.items()}
            figure = interval_bands(lines, x="position", y="perplexity of the token there")
            facts["plot"] = save_figure(figure, Path(settings.plot))
        details = ("bounds", "model", "energy", "data")
        return Report(
            "esscher measure", facts, {key: rows for key, rows in tables.items() if rows}, estimates.warnings,
            json_tables={name: model.data.measurement_rows(estimates)[1], **more}, details=details, tables_first=True,
        )  # fmt: skip


@dataclass(frozen=True)
class StreamMeasurement:
    """Nats by unit, and how the text was read."""

    nats: Mapping[str, Estimate]
    measured_on: str
    read_as: str
    warnings: list[str]

    @property
    def nats_by_model(self) -> dict[str, Mapping[str, Estimate]]:
        return {"base": self.nats}

    def report(self, model: Model, settings: MeasureConfig) -> Report:
        """A row for each unit."""
        perplexity, bits = as_perplexity(self.nats), as_bits(self.nats)
        rows = [{"per": unit, "perplexity": perplexity[unit], "bits": bits[unit]} for unit in self.nats]
        facts = {
            "measured_on": self.measured_on,
            "data": settings.source.source,
            "read_as": self.read_as,
            "model": model.name,
            "device": model.placement,
        }
        return Report("esscher measure", facts, {"perplexities": rows}, self.warnings, details=("read_as",), tables_first=True)


def stream_columns(tokens: int) -> int:
    """The number of columns in which a text of so many tokens is read by default."""
    return max(1, min(MAX_COLUMNS, tokens // TOKENS_PER_COLUMN))


def measure_stream(
    base: NetworkBase, text: TextStream, settings: StreamConfig, *, test: TestSetMode = "sample", confidence: float = 0.95
) -> StreamMeasurement:
    """Cross-entropy of a text under a base with a memory, per token, word, character and byte. `attention_span` and `clamp_len`
    are those of the base; `test` says whether the intervals are for all text like this one, or for exactly this one."""
    columns, segment, units = settings.columns or stream_columns(len(text)), settings.segment or SEGMENT, text.units()
    log_prob = stream_log_probs(base, text.tokens, streams=columns, segment=segment, warm=settings.warmup)
    nats = stream_cross_entropy(log_prob, units, test=test, confidence=confidence)
    warnings = stream_warnings(log_prob, units["token"]) if test == "sample" else []
    how = f"{columns} columns, each after {settings.warmup:,} tokens before it" if columns > 1 else "one column"
    return StreamMeasurement(nats, str(text), f"{how}, {segment:,} tokens at a time", warnings)


def reads_stream(model: Model, settings: MeasureConfig) -> bool:
    """Whether the data are read as one stream: if the model was trained so, or a setting of `stream` is given."""
    stream_set = settings.stream != StreamConfig()
    if model.is_tilted or settings.source.target is not None or model.chunking != trained_chunking(model.trained):
        if stream_set:
            raise ValueError(
                "The settings of stream are for one text that a base reads with its memory. Nothing was measured; leave "
                "energy, data.target, max_length, eos and prompt_tokens out."
            )
        return False
    return stream_set or (model.trained is not None and model.trained.length.stream)


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
    """Measure a model on data: as sequences, as one stream, or learning from it. The report is saved in `settings.out`, by
    default in the folder `measured` in that of the energy or the base."""
    measurement: SequenceMeasurement | StreamMeasurement | DynamicMeasurement
    proposal = named_proposal(model, settings)
    settings = settings if proposal is None else replace(settings, proposal=proposal.name)
    if proposal is not None and not model.is_tilted:
        raise ValueError(
            f"A proposal is for log Z of a tilted model, and {model.name} was loaded without an energy. Nothing was measured; "
            f"name an energy, or leave the proposal out."
        )
    if settings.dynamic:
        measurement = measure_dynamic(model, settings)
    elif reads_stream(model, settings):
        settings.refuse_sequence_settings("where a text is read as one stream")
        base = model.streaming_base(settings.stream.attention_span, settings.stream.clamp_len)
        stream = replace(settings.stream, segment=settings.stream.segment or stream_settings(model.trained)[1].tokens)
        text = model.read_stream(settings.source)
        before_start(partial(_stream_cost, model, base, text, stream, settings))
        measurement = measure_stream(base, text, stream, test=settings.test, confidence=settings.confidence)
    else:
        if settings.positions and not model.is_tilted:
            raise ValueError(
                f"positions compares base and tilted model position by position, and {model.name} was loaded without an energy."
                f" Nothing was measured; name an energy, or leave positions out."
            )
        if isinstance(model.target.base, Truncated) and model.target.base.drops_tokens:
            raise ValueError(
                "The base was truncated by top_k or top_p when it was tilted: a text with a token that was dropped has "
                "probability 0, and its perplexity is infinite. Nothing was measured; tilt without top_k and top_p."
            )
        measurement = measure_sequences(model, model.data.read(settings.source, model.trained), settings, proposal)
    report, home = measurement.report(model, settings), model.report_folder
    folder = Path(settings.out) if settings.out is not None else None if home is None else home / MEASURED
    if folder is not None:
        report = report.save(
            folder, {"model": model.name, "energy": model.energy_name, **to_dict(settings)}, changed=changed_settings(settings)
        )
    return MeasureResult(measurement, report)


def measure_sequences(
    model: Model, available: EncodedSet, settings: MeasureConfig, proposal: NamedProposal | None = None
) -> SequenceMeasurement:
    """Estimates on test sequences, of which at most `settings.sequences` are taken, evenly spaced; draws for log Z are those of
    the proposal."""
    prompts, _ = unique_prompts(available.x)
    one_prompt = len(prompts) == 1
    count = settings.sequences or (len(available) if one_prompt or not model.is_tilted else MAX_SEQUENCES)
    default = DRAWS_ONE_PROMPT if one_prompt else DRAWS_EACH_PROMPT
    draws = settings.draws or (LADDER_RUNS if isinstance(settings.sampler, Ladder) else default)
    sequences = available.rows(evenly_spaced(len(available), count))
    before_start(partial(_sequence_cost, model, sequences, draws, settings))
    folder = None if settings.out is None else Path(settings.out)
    made_with = {} if folder is None or not model.is_tilted else draws_record(model, settings, draws)
    propose = with_proposal(settings.sampler or Importance(), None if proposal is None else proposal.base_for(model.target))
    proposed_with = {**made_with, **({} if proposal is None or not made_with else proposal.made_with)}
    say, first_prompt = current_progress().say, prompts.tokens[0, : int(prompts.start[0])].tolist()
    stored = model.stored_estimates(first_prompt) if one_prompt else None
    sampler = ResumableByPrompts(propose, folder, say=say, made_with=proposed_with)
    estimates = measure(
        model.target, sequences.x, sampler, draws, units=sequences.units, stored=stored, test=settings.test,
        confidence=settings.confidence, rng=SeededRng(settings.seed),
    )  # fmt: skip
    positions: list[PositionEstimates] = []
    if settings.positions and model.is_tilted:
        positions = per_position(
            model.target, sequences.rows(evenly_spaced(len(sequences), settings.positions)).x,
            ResumableByPrompts(Importance(), None if folder is None else folder / "positions", made_with=made_with),
            settings.position_draws,
            enumerate_last=not settings.sample_last, test=settings.test, confidence=settings.confidence,
            rng=SeededRng(settings.seed, "steps"), say=say,
        )  # fmt: skip
    worst: list[dict[str, Any]] = []
    if estimates.draws is not None:
        prompts = estimates.draws.prompts()
        for row in estimates.worst(WORST_PROMPTS):
            label = model.data.prompt_label(prompts.tokens[row, : int(prompts.start[row])].tolist())
            reliability = {name: getattr(estimates.reliability[row], name) for name in RELIABILITY_COLUMNS}
            worst.append({"prompt_ends_with": label, **reliability})
    return SequenceMeasurement(sequences, len(available), draws, estimates, tuple(positions), tuple(worst), proposal)


def _sequence_cost(model: Model, sequences: EncodedSet, draws: int, settings: MeasureConfig) -> Cost:
    """The texts are scored; for a tilted model there are draws after each prompt, and after each prefix for `positions`."""
    phases: list[Phase] = [scoring("scoring", model.target, sequences.x)]
    if model.is_tilted:
        phases.append(drawing("log Z", model.target, unique_prompts(sequences.x)[0], draws, at_once=ROWS_BY_PROMPTS))
    if settings.positions and model.is_tilted:
        chosen = sequences.rows(evenly_spaced(len(sequences), settings.positions))
        rows = int(chosen.x.lengths.sum()) * settings.position_draws
        half = phases[-1].each.scaled(1 / 2)  # a continuation has half of the tokens, on average
        tokens = rows * model.base.space.max_length // 2
        phases.append(Phase("positions", rows, "draws", half, tokens=tokens))
    return _measure_cost(model, phases, settings)


def _stream_cost(model: Model, base: NetworkBase, text: TextStream, stream: StreamConfig, settings: MeasureConfig) -> Cost:
    columns, segment = stream.columns or stream_columns(len(text)), stream.segment or SEGMENT
    tokens = len(text) + (columns - 1) * stream.warmup
    return _measure_cost(model, [reading("reading", base, text.tokens, tokens, columns, segment)], settings)


def _measure_cost(model: Model, phases: Sequence[Phase], settings: MeasureConfig) -> Cost:
    disk = draws_on_disk(sum(phase.count for phase in phases[1:]), model.base.space.max_length) if settings.out else 10**5
    memory, facts = peak_memory(model.base), {"device": model.placement}
    return Cost("esscher measure", tuple(phases), settings.out or f"a folder {MEASURED}", disk, memory, facts=facts)


def tilt_facts(estimates: Measurement) -> dict[str, Any]:
    """What tilting saves, log Z, and how many prompts are reliable; nothing for a base."""
    if estimates.log_z is None:
        return {}
    verdicts = [entry.verdict for entry in estimates.reliability]
    counts = {word: verdicts.count(word) for word in ("good", "doubtful", "unreliable") if word in verdicts}
    words = ", ".join(f"{n} {word}" for word, n in counts.items())
    facts: dict[str, Any] = {
        "saved_by_tilting": next(iter((estimates.reduction or {}).values())),
        "reliability": verdicts[0] if len(verdicts) == 1 else f"{estimates.verdict[0]} ({words} by prompt)",
        "log_z": estimates.log_z,
    }
    return facts | ({} if estimates.log_z_std is None else {"log_z_std": estimates.log_z_std})


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


def draws_record(model: Model, settings: MeasureConfig, draws: int) -> dict[str, Any]:
    """What the draws in a folder belong to: model, seed, number of draws."""
    return {
        "base": model.base_digest,
        "energy": energy_fingerprint(model.target.energy),
        "draws": draws,
        **({} if settings.sampler is None else {"sampler": SAMPLERS.to_dict(settings.sampler)}),
        "position_draws": settings.position_draws,
        "seed": settings.seed,
    }
