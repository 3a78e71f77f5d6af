"""Exposure bias of a model, alone or beside a baseline.

A model of texts or of chunks continues the prompts of the data. A model that was trained on a stream continues places within
one long text, with the memory of what it read before each of them; each place is then a replicate.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.bases.logits import log_probs_and_logsumexp
from esscher.bases.network import NetworkBase
from esscher.bases.wrappers import WithMemory
from esscher.core.chunking import Chunking
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, empty_prompts, point_values, unique_prompts
from esscher.core.target import Tilted
from esscher.estimators.exposure_bias import (
    Exposure,
    ExposureRatio,
    LogSumExps,
    SelfConditionedScores,
    exposure,
    exposure_of,
    exposure_ratio,
    ratio_of,
    self_conditioned_scores,
)
from esscher.estimators.long_context import spread_places
from esscher.reports.plots import BASE, TILTED, interval_bands, save_figure
from esscher.reports.report import Report
from esscher.samplers.ancestral import Ancestral, draw, rows_at_once
from esscher.training.resumable import collect_draws
from esscher.workflow.analyses import check_same_tokens, comparison_data
from esscher.workflow.config.analyse import ExposureConfig
from esscher.workflow.config.train import TrainRun
from esscher.workflow.measure_stream import read_model_stream
from esscher.workflow.model import Model, load
from esscher.workflow.processors import prepare_stream_data
from esscher.workflow.subsets import random_rows

MAX_ROWS = 12  # positions in the table for people


@dataclass(frozen=True)
class ExposureResult:
    """The bound of the model; those of the baseline and their ratio, if there is one; what was measured on; and the report."""

    model: Exposure
    baseline: Exposure | None
    ratio: ExposureRatio | None
    measured_on: str
    report: Report = field(default_factory=lambda: Report("esscher analyse exposure", {}, {}))


def analyse_exposure(model: Model, settings: ExposureConfig) -> ExposureResult:
    """Measure the exposure bias of a base, on text that it was not trained on.

    Args:
        model: The model; its energy does not count.
        settings: The data, how much is compared, and the baseline.

    Returns:
        Bounds by position, their ratio to those of the baseline, and the report.
    """
    run = model.trained if model.chunking == Chunking() else None
    if run is not None and run.length.stream:
        result = _exposure_of_stream(model, run, settings)
    else:
        result = _exposure_of_sequences(model, settings)
    facts: dict[str, Any] = {
        "model": model.name, "measured_on": result.measured_on, "bound": result.model.mean, "seed": settings.seed
    }  # fmt: skip
    if result.baseline is not None and result.ratio is not None:
        facts |= {"against": settings.against, "bound_of_baseline": result.baseline.mean, "decode": settings.decode}
        facts["ratio"] = result.ratio.ratio
    if settings.plot is not None:
        facts["plot"] = _plot(result, Path(settings.plot))
    rows = _rows(result)
    shown = [rows[place] for place in _spaced_rows(len(rows))]
    notes = _notes(result)
    if len(shown) < len(rows):
        notes.append(f"{len(shown)} of {len(rows)} positions are shown; --json has all.")
    tables, json_tables = {"by_position": shown}, {"by_position": rows}
    return replace(result, report=Report("esscher analyse exposure", facts, tables, notes, json_tables=json_tables))


def _exposure_of_sequences(model: Model, settings: ExposureConfig) -> ExposureResult:
    rng, confidence = SeededRng(settings.seed), settings.confidence
    data, description = comparison_data(model.untilted(), settings.source)
    x = random_rows(data, settings.sequences, rng=rng.stream("sequences"))
    x = Sequences(x.tokens, x.start, torch.minimum(x.stop, x.start + settings.longest))
    bound = _sequence_bound(model, x, settings, rng.stream("model"))
    measured_on = f"{description}: {len(x):,} sequences, up to {settings.longest} tokens of each"
    if settings.against is None:
        return ExposureResult(bound, None, None, measured_on)
    chunking = replace(model.chunking, max_length=model.base.space.max_length)
    other = _load_baseline(model, settings.against, chunking)
    baseline = _sequence_bound(other, x, settings, rng.stream("baseline"))
    greedy = settings.decode == "greedy"
    ratio = exposure_ratio(model.base, other.base, x, greedy=greedy, confidence=confidence, rng=rng.stream("outputs"))
    return ExposureResult(bound, baseline, ratio, measured_on)


def _sequence_bound(model: Model, x: Sequences, settings: ExposureConfig, rng: Rng) -> Exposure:
    prompts, _ = unique_prompts(x)
    count = settings.draws * len(x) if len(prompts) == 1 else settings.draws
    sampler = Ancestral(max_new_tokens=settings.longest)
    draws = collect_draws(sampler, Tilted(model.base), prompts, count, rng=rng, say=current_progress().say)
    return exposure(model.base, x, draws, confidence=settings.confidence)


def _load_baseline(model: Model, folder: str, chunking: Chunking) -> Model:
    """The baseline, whose sequences must be those of the model."""
    other = load(folder, chunking=chunking)
    check_same_tokens(model, other)
    if model.base.space != other.base.space:
        raise ValueError(
            f"{model.name} has sequences of {model.base.space}, {other.name} of {other.base.space}. Nothing was measured; "
            f"compare models of the same sequences."
        )
    return other


def _exposure_of_stream(model: Model, run: TrainRun, settings: ExposureConfig) -> ExposureResult:
    rng, say = SeededRng(settings.seed), current_progress().say
    if settings.source is None:
        tokens, description = prepare_stream_data(run).test.tokens, "held out of the training data of the model"
    else:
        tokens, description = read_model_stream(model, settings.source).tokens, settings.source.source
    length = min(settings.longest, model.base.space.max_length)
    windows, warmup = stream_windows(tokens, length, settings)
    chunking = Chunking(max_length=model.base.space.max_length)
    other = None if settings.against is None else _load_baseline(model, settings.against, chunking)
    sides = [
        score_stream_positions(side.streaming_base, windows, warmup, settings, rng=rng.stream(name), say=say)
        for name, side in (("model", model), ("baseline", other))
        if side is not None
    ]
    sources, confidence = ((1, len(windows)),), settings.confidence
    bounds = [exposure_of(side.data, side.drawn, sources=sources, confidence=confidence) for side in sides]
    measured_on = f"{description}: {len(windows):,} places of {length} tokens, each after {warmup:,} that the memory read"
    if other is None:
        return ExposureResult(bounds[0], None, None, measured_on)
    greedy = settings.decode == "greedy"
    ratio = ratio_of(sides[0].own, sides[1].own, torch.arange(len(windows)), greedy=greedy, confidence=confidence)
    return ExposureResult(bounds[0], bounds[1], ratio, measured_on)


def _rows(result: ExposureResult) -> list[dict[str, Any]]:
    """A row for each position that has an estimate."""
    bounds = {at.position: at for at in result.model.at}
    others = {at.position: at.bound for at in (() if result.baseline is None else result.baseline.at)}
    ratios = {at.position: at.ratio for at in (() if result.ratio is None else result.ratio.at)}
    rows = []
    for position in sorted({*bounds, *others, *ratios}):
        at = bounds.get(position)
        row = {"position": position, **{name: getattr(at, name, None) for name in ("sequences", "draws", "bound")}}
        baseline = {"of baseline": others.get(position), "ratio": ratios.get(position)}
        rows.append(row if result.ratio is None else {**row, **baseline})
    return rows


def _spaced_rows(count: int) -> list[int]:
    """At most `MAX_ROWS` rows, evenly spaced, the first and the last among them."""
    if count <= MAX_ROWS:
        return list(range(count))
    return [place * (count - 1) // (MAX_ROWS - 1) for place in range(MAX_ROWS)]


def _notes(result: ExposureResult) -> list[str]:
    notes = [
        "bound: the mean over data of the logsumexp of the logits, minus the log of the mean of its exponential over the "
        "model's draws; it is at most KL(data prefixes || model prefixes). 0 or less says nothing, as for logits whose "
        "logsumexp was never trained (E-Forcing trains it)."
    ]
    if result.ratio is not None:
        notes.append(
            "ratio: share of positions where the true token is more probable after the model's own outputs; 0.5 is no better."
        )
    return notes


def _plot(result: ExposureResult, file: Path) -> Path:
    sides = {"model": (TILTED, result.model)} | ({} if result.baseline is None else {"baseline": (BASE, result.baseline)})
    lines = {
        name: (colour, [at.position for at in side.at], [at.bound for at in side.at]) for name, (colour, side) in sides.items()
    }
    return save_figure(interval_bands(lines, x="position", y="bound on exposure bias (nats)"), file)


def stream_windows(tokens: Int[Tensor, "N"], length: int, settings: ExposureConfig) -> tuple[Int[Tensor, "R W"], int]:
    """Segments of so many tokens, evenly spaced and disjoint, each after the tokens before it; and the number of these."""
    warmup = min(settings.warmup, (len(tokens) - length) // 2)
    count = min(settings.sequences, max(0, len(tokens) - warmup) // length)
    if count < 2:
        raise ValueError(
            f"A text of {len(tokens):,} tokens has fewer than two places of {length}. Nothing was measured; give more text."
        )
    places = spread_places(count, len(tokens) - length + 1, warmup)
    return tokens[places[:, None] + torch.arange(-warmup, length)], warmup


@dataclass(frozen=True)
class StreamScores:
    """Scores of a base with a memory at the places of a stream: of the data, of its draws, and after its own outputs."""

    data: LogSumExps
    drawn: LogSumExps
    own: SelfConditionedScores


@torch.no_grad()
def score_stream_positions(
    base: NetworkBase,
    windows: Int[Tensor, "R W"],
    warmup: int,
    settings: ExposureConfig,
    *,
    rng: Rng,
    say: Callable[[str], None] = lambda text: None,
) -> StreamScores:
    """Score all places, some at a time: the memory of the text before, the segment, and draws in place of it."""
    length, draws, greedy = windows.shape[1] - warmup, settings.draws, settings.decode == "greedy"
    data, drawn, own = [], [], []
    for number, (with_memory, segment) in enumerate(
        _read_context(base, windows, warmup, max(1, rows_at_once(base.space) // draws))
    ):
        segment_rng = rng.stream(number)
        y, _ = draw(
            with_memory, empty_prompts(len(segment)).to(segment.tokens.device), draws, rng=segment_rng, max_new_tokens=length
        )
        data.append(point_values(segment, log_probs_and_logsumexp(with_memory, segment)[1].double(), length).cpu())
        drawn.append(point_values(y, log_probs_and_logsumexp(with_memory, y)[1].double(), length).cpu())
        own.append(self_conditioned_scores(with_memory, segment, greedy=greedy, rng=segment_rng.stream("outputs")))
        say(f"{sum(map(len, data)):,} of {len(windows):,} places")
    rows = torch.arange(len(windows))
    scores = SelfConditionedScores(torch.cat([part.log_prob for part in own]), torch.cat([part.valid for part in own]))
    return StreamScores(
        _logsumexps(torch.cat(data), rows), _logsumexps(torch.cat(drawn), rows.repeat_interleave(draws)), scores
    )


def _logsumexps(logsumexp: Tensor, replicate: Int[Tensor, "M"]) -> LogSumExps:
    """Rows that all have one length and count alike: nothing ends in a stream."""
    return LogSumExps(logsumexp, torch.ones_like(logsumexp, dtype=torch.bool), torch.ones(len(logsumexp)).double(), replicate)


def _read_context(
    base: NetworkBase, windows: Int[Tensor, "R W"], warmup: int, together: int
) -> Iterator[tuple[WithMemory, Sequences]]:
    """The base after the first `warmup` tokens of some windows, and the rest of these as points."""
    device = next(base.parameters()).device
    for some in torch.split(windows.to(device), together):
        memory = base.init_memory(len(some))
        for first in range(0, warmup, base.space.max_length):
            _, memory = base.read(memory, some[:, first : min(first + base.space.max_length, warmup)])
        rest = some[:, warmup:]
        stop = torch.full((len(some),), rest.shape[1], device=device)
        yield WithMemory(base, memory), Sequences(rest, torch.zeros_like(stop), stop)
