"""How good a translation is: several metrics, by length of the source, and beside another translation."""

from pathlib import Path
from typing import Any

from esscher.core.randomness import SeededRng
from esscher.data.sources import read_lines
from esscher.metrics.metric import score_translation
from esscher.reports.report import Report
from esscher.workflow.config.translate import EvaluateConfig


def evaluate(settings: EvaluateConfig) -> Report:
    """Evaluate a translation by every metric and length of source, and compare it with another translation."""
    hypotheses = read_lines(Path(settings.hypotheses))

    def parallel(file: str) -> list[str]:
        lines = read_lines(Path(file))
        if len(lines) != len(hypotheses):
            raise ValueError(
                f"{file} has {len(lines):,} lines and {settings.hypotheses} has {len(hypotheses):,}. Nothing was computed; "
                f"line k of both must belong together, empty lines too."
            )
        return lines

    metrics = score_translation(
        settings.metrics,
        hypotheses,
        list(zip(*(parallel(file) for file in settings.references), strict=True)),
        against=None if settings.against is None else parallel(settings.against),
        sources=None if settings.sources is None else parallel(settings.sources),
        bounds=settings.bounds,
        confidence=settings.confidence,
        resamples=settings.resamples,
        rng=SeededRng(settings.seed).stream("score"),
    )
    facts = {
        "hypotheses": settings.hypotheses, "references": ", ".join(settings.references), "lines": len(hypotheses),
        "against": settings.against, "seed": settings.seed,
    }  # fmt: skip
    tables: dict[str, list[dict[str, Any]]] = {"scores": [], "by_length": [], "comparison": []}
    notes: list[str] = []
    for each in metrics:
        name, better = each.metric.name, "higher" if each.metric.measure.sign > 0 else "lower"
        tables["scores"].append({"metric": name, "value": each.value, "better": better})
        tables["by_length"] += [
            {"metric": name, "words_of_source": group.name, "lines": group.lines, "value": group.value} for group in each.groups
        ]
        if (pair := each.against) is not None:
            row = {"metric": name, "against": pair.second, "difference": pair.difference, "p_value": pair.p_value}
            tables["comparison"].append(row)
    if tables["comparison"]:
        notes.append(
            "The difference is this translation minus the other; its p-value is two-sided, by approximate randomisation."
        )
    return Report("esscher evaluate", facts, {name: rows for name, rows in tables.items() if rows}, notes)
