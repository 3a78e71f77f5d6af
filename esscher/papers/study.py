"""Make, cache and tabulate the rows of recipes. Each model and seed of a study has a run folder `out/study/model-seedN`, where
its row, a dictionary of JSON values and `Estimate`s, is kept as `row.json`, so that a finished row is not made again."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from esscher.core.estimate import Estimate
from esscher.core.reading import describing, read_json, read_json_lines
from esscher.core.storage import write_file
from esscher.estimators.intervals import interval, ratio
from esscher.reports.document import Picture, Section, Table, write_report
from esscher.reports.plots import curves
from esscher.reports.report import PAGE
from esscher.training.collectives import exists_on_main_process
from esscher.workflow.config.train import TrainRun

Row = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
ROW_FILE = "row.json"
ESTIMATE_FIELDS = {field.name for field in fields(Estimate)}
REPRODUCED, REFUTED, OPEN = "reproduced", "refuted under these conditions", "open"
M = TypeVar("M")


@dataclass(frozen=True, kw_only=True)
class Study(Generic[M]):
    """A data set, and the settings of the models that are trained on it; seeds after the first may leave some models out."""

    name: str
    models: Mapping[str, M]
    repeated_over_seeds: tuple[str, ...] | None = None  # None is all models

    def names_for_seed(self, seed: int) -> tuple[str, ...]:
        """The models that are trained with a seed."""
        repeated = self.repeated_over_seeds
        return tuple(name for name in self.models if seed == 0 or repeated is None or name in repeated)


@dataclass(frozen=True, kw_only=True)
class StudyContext:
    """One run of a recipe: its scale, output folder and number of seeds; `data` is a text file of the user."""

    scale: str
    out: Path
    seeds: int = 1
    data: str | None = None

    def run_dir(self, study: str, model: str, seed: int = 0) -> Path:
        """The folder of a model that is trained with a seed."""
        return self.out / study / f"{model.lower().replace(' ', '-').replace(',', '')}-seed{seed}"

    def row(self, study: str, model: str, seed: int, make: Callable[[Path], Any]) -> Any:
        """`make(run_dir)`, or what it returned in an earlier run."""
        run_dir = self.run_dir(study, model, seed)
        return cached_json(run_dir / ROW_FILE, lambda: make(run_dir))

    def names(self, study: Study[Any]) -> list[tuple[str, int]]:
        """The models and seeds of a study: each seed in turn, and for each seed every model."""
        return [(model, seed) for seed in range(self.seeds) for model in study.names_for_seed(seed)]

    def rows(self, study: Study[Any], make: Callable[[str, int, Path], Any]) -> list[Any]:
        """`make(model, seed, run_dir)` for all models and seeds of a study, or what it returned in an earlier run."""
        return [self.row(study.name, *name, partial(make, *name)) for name in self.names(study)]

    def publish(
        self, title: str, about: str, sections: Sequence[Section], tables: Mapping[str, Rows], missing: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Write `report.html`, which ends with the published results (the table "paper") and leaves out tables without rows,
        and return all tables; `missing` says which data were not found."""
        published = Section("Published", "Results at the published sizes.", [Table("Results", tables["paper"])])
        shown = [
            replace(section, parts=[part for part in section.parts if not isinstance(part, Table) or part.rows])
            for section in (*sections, published)
        ]
        write_report(self.out / PAGE, title, about, [section for section in shown if section.parts])
        return {**tables, "left out": [{"left out": message} for message in missing]}

    def learning_curves(self, study: str, models: Iterable[str], y: str, meaning: str = "Seed 0.") -> list[Picture]:
        """A picture of validation losses while learning, with the first seed; none if no model was evaluated."""
        histories = {model: validation_history(self.run_dir(study, model)) for model in models}
        lines = {model: tuple(map(list, zip(*history, strict=True))) for model, history in histories.items() if history}
        return [Picture(curves(lines, x="step", y=y), meaning)] if lines else []  # type: ignore[arg-type]


def cached_json(file: Path, make: Callable[[], Any]) -> Any:
    """The content of a JSON file, which `make` returns if there is no file yet; estimates are restored."""
    if not exists_on_main_process(file):
        write_file(file, (json.dumps(make(), indent=2, ensure_ascii=False, default=Estimate.to_dict) + "\n").encode())
    with describing(file, "results"):
        return read_json(file, hook=lambda item: Estimate(**item) if set(item) == ESTIMATE_FIELDS else item)


def run_with_seed(run: TrainRun, run_dir: Path, seed: int) -> TrainRun:
    """The training run in a folder, with a seed; it resumes what the folder has."""
    return replace(run, out=str(run_dir), training=replace(run.training, seed=seed), resume=True)


def count_parameters(model: nn.Module) -> int:
    """How many parameters a model has."""
    return sum(weight.numel() for weight in model.parameters())


def mean_estimate(values: Tensor, *, method: str, unit: str = "") -> Estimate:
    """The mean of independent values, with a 95 % interval for the mean of their distribution."""
    n = len(values)
    return interval(ratio(values.double()), [(1, n)], confidence=0.95, n=n, method=method, unit=unit, counted="values")


def means_over_seeds(rows: Rows, by: Sequence[str], columns: Sequence[str] | None = None) -> list[Row]:
    """Group rows by the columns `by` and average `columns`, or all estimates, over seeds; groups of one row are left out."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    means = []
    for key, group in groups.items():
        names = columns or [name for name, value in group[0].items() if isinstance(value, Estimate)]
        if len(group) > 1:
            averages = {name: _mean_over_seeds([row[name] for row in group]) for name in names}
            means.append({**dict(zip(by, key, strict=True)), "seeds": len(group), **averages})
    return means


def _mean_over_seeds(estimates: Sequence[Estimate | None]) -> Estimate | None:
    """The mean with Student's interval; None if the rows have no such number."""
    from scipy.special import stdtrit

    if estimates[0] is None:
        return None
    values = [estimate.value for estimate in estimates if estimate is not None]
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, 0.975)) * error
    method = f"Student's t over {len(values)} seeds"
    return Estimate(mean, mean - half, mean + half, 0.95, len(values), method, estimates[0].unit, "seeds")


def verdict_of(effect: Estimate, none: float = 0.0) -> str:
    """What an effect says of the claim that it lies above `none`: its interval lies above it, below it, or holds it."""
    return REPRODUCED if effect.low > none else REFUTED if effect.high < none else OPEN


def table_rows(columns: Sequence[str], *rows: Sequence[Any]) -> list[Row]:
    """Rows with these columns, such as those of a published table."""
    return [dict(zip(columns, row, strict=True)) for row in rows]


def select(rows: Rows, columns: Sequence[str]) -> list[Row]:
    """These columns of every row, as far as it has them."""
    return [{name: row[name] for name in columns if name in row} for row in rows]


def validation_history(run_dir: Path) -> list[tuple[int, float]]:
    """The step and the loss of every evaluation of a run, in order; none if only its row was kept."""
    file = run_dir / "history.jsonl"
    entries = read_json_lines(file) if file.exists() else []
    return [(entry["step"], entry["validation"]) for entry in entries if "validation" in entry]
