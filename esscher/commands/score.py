"""esscher score: how good a translation is, by several metrics, by length, and beside another."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.flags import Json, Level, Seed
from esscher.commands.output import Answer, show

if TYPE_CHECKING:
    from esscher.metrics.comparison import Verdict

app = App(
    name="score",
    help_epilogue="Example: esscher score translated.txt references.txt --metrics bleu chrf rougeL --against baseline.txt "
    "--sources sources.txt",
)


@app.default
def score(
    hypotheses: Annotated[Path, Parameter(help="File with a translation a line; lines may be empty.")],
    references: Annotated[
        list[Path], Parameter(negative="", help="File with the right text of each line; several files, several references.")
    ],
    *,
    metrics: Annotated[
        tuple[str, ...],
        Parameter(consume_multiple=True, negative="", help="bleu, chrf, chrf++, ter, wer, rouge1, rouge2, rougeL, meteor."),
    ] = ("bleu", "chrf"),
    against: Annotated[Path | None, Parameter(help="Another translation of the same lines, to compare with.")] = None,
    sources: Annotated[Path | None, Parameter(help="What was translated, for values by its length.")] = None,
    bounds: Annotated[
        tuple[int, ...], Parameter(consume_multiple=True, negative="", help="Words of a source at which lengths are parted.")
    ] = (25, 50),
    level: Level = 0.95,
    resamples: Annotated[
        int, Parameter(help="Of the lines, for the intervals of BLEU, chrF, TER and word error rate.")
    ] = 1_000,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Values of a translation over all lines, with intervals; differences with a p-value."""
    from esscher.metrics.comparison import judge
    from esscher.randomness import Seeded

    lines = _lines(hypotheses)
    verdicts = judge(
        metrics,
        lines,
        list(zip(*(_lines(file, like=(hypotheses, len(lines))) for file in references), strict=True)),
        against=None if against is None else _lines(against, like=(hypotheses, len(lines))),
        sources=None if sources is None else _lines(sources, like=(hypotheses, len(lines))),
        bounds=bounds,
        level=level,
        resamples=resamples,
        rng=Seeded(seed).stream("score"),
    )
    facts = {
        "hypotheses": hypotheses,
        "references": ", ".join(str(one) for one in references),
        "lines": len(lines),
        "against": against,
        "seed": seed,
    }
    show(_answer(verdicts, facts), as_json=json)


def _lines(file: Path, like: tuple[Path, int] | None = None) -> list[str]:
    """The lines of a file, empty ones too, which must be as many as those of another."""
    from esscher.data.sources import read_lines

    lines = read_lines(file)
    if like is not None and len(lines) != like[1]:
        raise ValueError(
            f"{file} has {len(lines):,} lines and {like[0]} has {like[1]:,}. Nothing was computed; line k of both must belong "
            f"together, empty lines too."
        )
    return lines


def _answer(verdicts: "tuple[Verdict, ...]", facts: dict[str, object]) -> Answer:
    scores = [
        {"metric": one.metric.name, "value": one.value, "better": "higher" if one.metric.measure.sign > 0 else "lower"}
        for one in verdicts
    ]
    lengths = [
        {"metric": one.metric.name, "words_of_source": group.name, "lines": group.lines, "value": group.value}
        for one in verdicts
        for group in one.groups
    ]
    pairs = [
        {"metric": two.metric, "against": two.second, "difference": two.difference, "p_value": two.p_value}
        for two in (one.against for one in verdicts)
        if two is not None
    ]
    tables: dict[str, Sequence[Mapping[str, Any]]] = {"scores": scores, "by_length": lengths, "comparison": pairs}
    notes = [f"{one.metric.name}: {one.value.method}" for one in verdicts]
    if pairs:
        notes.append(
            "The difference is this translation less the other; its p-value is two-sided, by approximate randomisation."
        )
    return Answer("esscher score", facts, {name: rows for name, rows in tables.items() if rows}, notes)
