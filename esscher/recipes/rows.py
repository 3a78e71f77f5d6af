"""What all recipes do with the rows of their tables: where each stands, made once and kept, and means over data and seeds."""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from esscher.estimate import Estimate
from esscher.estimators.intervals import interval
from esscher.settings.train import TrainRun
from esscher.storage import write_file
from esscher.training.processes import is_made

ROW = "row.json"
ESTIMATE = {field.name for field in fields(Estimate)}


def place_of(folder: Path, model: str, seed: int) -> Path:
    """The folder of a trained model."""
    return folder / f"{model.lower().replace(' ', '-').replace(',', '')}-seed{seed}"


def run_at(run: TrainRun, place: Path, seed: int) -> TrainRun:
    """The run with a folder and a seed."""
    return replace(run, out=str(place), training=replace(run.training, seed=seed))


def size_of(model: nn.Module) -> int:
    """The parameters of a model."""
    return sum(weight.numel() for weight in model.parameters())


def kept(file: Path, make: Callable[[], Any]) -> Any:
    """What a file says, which is made if it is not there: what JSON has, and estimates."""
    if not is_made(file):
        write_file(file, (json.dumps(make(), indent=2, ensure_ascii=False, default=Estimate.to_dict) + "\n").encode())
    return json.loads(file.read_text(encoding="utf8"), object_hook=lambda one: Estimate(**one) if set(one) == ESTIMATE else one)


def mean_of(values: Tensor, *, method: str, unit: str = "") -> Estimate:
    """The mean of numbers that are drawn alike, with an interval for others like them."""
    values = values.double()

    def mean(times: Tensor) -> Tensor:
        return (times[0] * values).sum() / times[0].sum()

    return interval(mean, [(1, len(values))], level=0.95, draws=len(values), method=method, unit=unit)


def means_over_seeds(
    rows: Sequence[Mapping[str, Any]], by: Sequence[str], numbers: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The means of these numbers, or of all, over rows that are alike in the columns `by`; nothing of a row that is alone."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    found = []
    for key, group in groups.items():
        names = numbers or [name for name, value in group[0].items() if isinstance(value, Estimate)]
        if len(group) > 1:
            means = {name: _mean(group, name) for name in names}
            found.append({**dict(zip(by, key, strict=True)), "seeds": len(group), **means})
    return found


def _mean(group: Sequence[Mapping[str, Any]], name: str) -> Estimate | None:
    """The mean of a number of several seeds, if they have it."""
    from scipy.special import stdtrit

    first = group[0][name]
    if first is None:
        return None
    values = [row[name].value for row in group]
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, 0.975)) * error
    return Estimate(mean, mean - half, mean + half, 0.95, len(values), f"Student's t over {len(values)} seeds", first.unit)
