"""How good a translation is: several metrics, by length of the source, and beside another translation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esscher.core.randomness import SeededRng
from esscher.data.sources import read_lines
from esscher.metrics.comparison import MetricReport, score_translation
from esscher.reports.report import Report
from esscher.workflow.config.translate import EvaluateConfig


@dataclass(frozen=True)
class EvaluateResult:
    """For each metric its value, its values by length, and the difference to another translation; and the report."""

    metrics: tuple[MetricReport, ...]
    report: Report


def evaluate(settings: EvaluateConfig) -> EvaluateResult:
    """Evaluate a translation.

    Args:
        settings: Files of the translation and its references, and the metrics.

    Returns:
        What each metric says, and the report.
    """
    lines = read_lines(Path(settings.hypotheses))

    def parallel(file: str) -> list[str]:
        return _parallel_lines(file, settings.hypotheses, len(lines))

    metrics = score_translation(
        settings.metrics,
        lines,
        list(zip(*(parallel(file) for file in settings.references), strict=True)),
        against=None if settings.against is None else parallel(settings.against),
        sources=None if settings.sources is None else parallel(settings.sources),
        bounds=settings.bounds,
        confidence=settings.confidence,
        resamples=settings.resamples,
        rng=SeededRng(settings.seed).stream("score"),
    )
    facts = {
        "hypotheses": settings.hypotheses, "references": ", ".join(settings.references), "lines": len(lines),
        "against": settings.against, "seed": settings.seed,
    }  # fmt: skip
    return EvaluateResult(metrics, _report(metrics, facts))


def _parallel_lines(file: str, other: str, count: int) -> list[str]:
    """The lines of a file, empty ones too, which must be as many as those of another."""
    lines = read_lines(Path(file))
    if len(lines) != count:
        raise ValueError(
            f"{file} has {len(lines):,} lines and {other} has {count:,}. Nothing was computed; line k of both must belong "
            f"together, empty lines too."
        )
    return lines


def _report(metrics: Sequence[MetricReport], facts: Mapping[str, Any]) -> Report:
    scores = [
        {"metric": each.metric.name, "value": each.value, "better": "higher" if each.metric.measure.sign > 0 else "lower"}
        for each in metrics
    ]
    lengths = [
        {"metric": each.metric.name, "words_of_source": group.name, "lines": group.lines, "value": group.value}
        for each in metrics
        for group in each.groups
    ]
    pairs = [
        {"metric": pair.metric, "against": pair.second, "difference": pair.difference, "p_value": pair.p_value}
        for pair in (each.against for each in metrics)
        if pair is not None
    ]
    tables: dict[str, Sequence[Mapping[str, Any]]] = {"scores": scores, "by_length": lengths, "comparison": pairs}
    notes = [f"{each.metric.name}: {each.value.method}" for each in metrics]
    if pairs:
        notes.append(
            "The difference is this translation minus the other; its p-value is two-sided, by approximate randomisation."
        )
    return Report("esscher evaluate", facts, {name: rows for name, rows in tables.items() if rows}, notes)
