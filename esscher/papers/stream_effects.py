"""Effects of recipes on long texts: what one row of a seed has over another, and trends over a setting, as means over seeds
with verdicts; and the level of every row. What is made so far is kept as one JSON file."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from esscher.core.estimate import Estimate
from esscher.core.storage import write_file
from esscher.papers.streams import EvaluationMode
from esscher.papers.study import OPEN, Row, Rows, means_over_seeds, verdict_of

AS_IN_TRAINING = EvaluationMode().name
BITS = "bits"  # the one column of which less is better


@dataclass(frozen=True)
class Side:
    """One row of every seed: a model of a study, in a mode of evaluation."""

    study: str
    model: str
    evaluated: str = AS_IN_TRAINING

    def by_seed(self, rows: Rows, column: str) -> dict[int, float]:
        """What a column has by seed, in the rows that have it; bits with the opposite sign, so that more is better."""
        name, sign = (self.study, self.model, self.evaluated), -1.0 if column == BITS else 1.0
        return {
            row["seed"]: sign * _number(row[column])
            for row in rows
            if (row["text"], row["model"], row.get("evaluated", AS_IN_TRAINING)) == name and column in row
        }


@dataclass(frozen=True)
class Claim:
    """A claim in words, on a column of the rows; `thesis` is what the thesis has for it."""

    claim: str
    thesis: str = field(default="-", kw_only=True)
    column: str = field(default=BITS, kw_only=True)


@dataclass(frozen=True)
class Comparison(Claim):
    """The claim that one side is better than another."""

    side: Side
    against: Side

    def by_seed(self, rows: Rows) -> dict[int, float]:
        """How much better the side is, in each seed that has both."""
        ours, theirs = self.side.by_seed(rows, self.column), self.against.by_seed(rows, self.column)
        return {seed: value - theirs[seed] for seed, value in ours.items() if seed in theirs}


@dataclass(frozen=True)
class Trend(Claim):
    """The claim that a column gets better with a setting: the slope over its logarithm to base 2, so the gain of each doubling;
    `sides` are by the value of the setting."""

    sides: Mapping[int, Side]

    def by_seed(self, rows: Rows) -> dict[int, float]:
        """The slope of least squares in each seed that has all sides."""
        values = [side.by_seed(rows, self.column) for side in self.sides.values()]
        places = [math.log2(setting) for setting in self.sides]
        seeds = [seed for seed in values[0] if all(seed in of_side for of_side in values)]
        return {seed: statistics.linear_regression(places, [of_side[seed] for of_side in values]).slope for seed in seeds}


def effects(claims: Sequence[Comparison | Trend], rows: Rows) -> list[Row]:
    """For every claim that a seed has rows for: the mean effect over seeds and the verdict; of one seed the effect has no
    interval and its verdict is open."""
    table = []
    for claim in claims:
        about = {"claim": claim.claim, "column": claim.column, "thesis": claim.thesis}
        of_seeds = [{**about, "effect": Estimate.exact(value, method="one seed")} for value in claim.by_seed(rows).values()]
        for means in means_over_seeds(of_seeds, tuple(about)):
            table.append({**means, "verdict": verdict_of(means["effect"])})
        if len(of_seeds) == 1:
            table.append({**of_seeds[0], "seeds": 1, "verdict": OPEN})
    return table


def levels(rows: Rows, columns: Sequence[str]) -> list[Row]:
    """The columns of every model and mode of evaluation: means over seeds, or of one seed with the interval for other text."""
    by = ("text", "model", "evaluated")
    rows = [{"evaluated": AS_IN_TRAINING, **row, **{name: _estimate(row[name]) for name in columns}} for row in rows]
    means = {tuple(row[name] for name in by): row for row in means_over_seeds(rows, by, columns)}
    table = {}
    for row in rows:
        name = tuple(row[key] for key in by)
        single = {**dict(zip(by, name, strict=True)), "seeds": 1, **{column: row[column] for column in columns}}
        table[name] = means.get(name, single)
    return list(table.values())


def keep(file: Path, missing: int, tables: Mapping[str, Rows]) -> None:
    """Write what there is so far, and how many models are not trained yet."""
    content = {"missing": missing, **tables}
    write_file(file, (json.dumps(content, indent=1, ensure_ascii=False, default=Estimate.to_dict) + "\n").encode())


def _number(value: Estimate | float) -> float:
    return value.value if isinstance(value, Estimate) else float(value)


def _estimate(value: Estimate | float) -> Estimate:
    return value if isinstance(value, Estimate) else Estimate.exact(float(value))
