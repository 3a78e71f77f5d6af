"""Width of the interval of log Z at equal tokens: draws of a student, weighted towards the tilted model, against the base's.

Binary strings: an LSTM is trained on strings of which 5 %, 1 % or about half have a motif, and tilted so that 99 % have it.
`hash` is the rule of the quick start, four zero bits of a hash, which no next-token model learns and the student neither. Two
seeds of all. The student is distilled in three stages (`cyclical`) until it is near; `stopped early` is one after a single
epoch at a low learning rate, a poor proposal. Every proposal estimates log Z from the same number of tokens that pass through
a network: a draw of the base costs its tokens once, a draw of the student twice (the base scores it), one of their mixture
three times. The tokens that the student learnt from are not counted. `width` is the mean width of the 95 % interval over
repeats and seeds; `of the base's` its ratio to that of the base, below 1 a gain, with its range over the seeds; `covered` is
how often the interval holds log Z by 65,536 draws of the student; `good` is how often the verdict is.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import esscher
from benchmarks._timing import Row, Table
from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.core.target import Base, Tilted
from esscher.data.config import DataConfig
from esscher.estimators.log_z import log_z, weight_bounds
from esscher.estimators.reliability import reliability
from esscher.networks.recurrent_config import LstmConfig
from esscher.samplers.importance import Importance
from esscher.samplers.proposals import defensive
from esscher.training.config import DistilConfig, TrainingConfig
from esscher.workflow.config.distil import DistilTraining
from esscher.workflow.config.tilt import FitConfig

REPEATS = 20
SEEDS, TOKENS_AS_DRAWS, TRUTH, BASE_SHARE = 2, 4000, 2**16, 0.1
LEARN = DistilConfig("cyclical", draws=10_000, candidates=20_000, stages=3, evaluation_draws=2000)
WELL = DistilTraining(epochs=6, learning_rate=1e-2)
SHORT = DistilTraining(epochs=1, learning_rate=1e-3)


@dataclass(frozen=True)
class Strings:
    """Strings that a base is trained on, and the feature that 99 % of the tilted model's have."""

    source: str
    feature: str
    length: int
    mixture: float = 0.01  # of strings that obey; the others are even


CASES = {
    "5 %": Strings("motif:10001011", "contains:10001011", 20), "1 %": Strings("motif:1000101110", "contains:1000101110", 20),
    "half": Strings("motif:1011", "contains:1011", 12), "hash": Strings("hash:4", "hash:4", 20, mixture=1.0),
}  # fmt: skip


def tilted_strings(case: Strings, seed: int, folder: Path) -> Any:
    data = DataConfig(case.source, length=case.length, mixture=case.mixture, size=2000)
    training = TrainingConfig(steps=400, batch_size=64, learning_rate=5e-3, seed=seed)
    base = esscher.train(out=str(folder / "base"), data=data, base=LstmConfig(width=48, layers=1), training=training)
    return base.tilt(want={case.feature: 0.99}, out=str(folder / "energy"), fit=FitConfig(draws=8000))


def intervals(
    target: Tilted, proposal: Base | None, draws: int, repeats: int, truth: float | None, rng: SeededRng
) -> dict[str, float]:
    """The mean width of the interval, how often it holds the truth, and how often the verdict is good."""
    width = held = good = 0.0
    for number in range(repeats):
        drawn = Importance(proposal)(target, empty_prompts(1), draws, rng=rng.stream(number))
        estimate = log_z(drawn, bounds=weight_bounds(drawn, target.energy))
        width, held = width + estimate.high - estimate.low, held + (truth is not None and estimate.covers(truth))
        good += reliability(drawn, energy=target.energy)[0].verdict == "good"
    covered = {} if truth is None else {"covered": held / repeats}
    return {"width": width / repeats, **covered, "good": good / repeats}


def widths(
    target: Tilted, students: Mapping[str, Base], tokens: int, repeats: int, truth: float | None, rng: SeededRng
) -> dict[str, dict[str, float]]:
    """The row of each proposal: the base, the students, and each student's mixture with the base."""
    proposals: dict[str, tuple[Base | None, int]] = {"base": (None, 1)}
    for name, one in students.items():
        proposals[name] = one, 2
        proposals[f"{name}, {BASE_SHARE:.0%} of the base"] = defensive(target.base, one, base_share=BASE_SHARE), 3
    run = partial(intervals, target, repeats=repeats, truth=truth)
    found = {name: run(proposal, tokens // cost, rng=rng.stream(name)) for name, (proposal, cost) in proposals.items()}
    result = {name: row | {"ratio": row["width"] / found["base"]["width"]} for name, row in found.items()}
    print(result, flush=True)
    return result


def widths_of_seed(case: Strings, seed: int, repeats: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = tilted_strings(case, seed, folder)
        student = model.distil(out=str(folder / "student"), distil=LEARN, training=WELL).base
        bad = model.distil(out=str(folder / "short"), distil=replace(LEARN, method="importance"), training=SHORT).base
    rng = SeededRng(seed, "proposals")
    truth = float(Importance(student)(model.target, empty_prompts(1), TRUTH, rng=rng.stream("truth")).log_z())
    return widths(model.target, {"student": student, "stopped early": bad}, TOKENS_AS_DRAWS, repeats, truth, rng)


def rows_of(case: str, by_seed: list[dict[str, dict[str, float]]]) -> list[Row]:
    rows: list[Row] = []
    for name in by_seed[0]:
        column = {key: torch.tensor([found[name][key] for found in by_seed]) for key in by_seed[0][name]}
        ratio = column.pop("ratio")
        row: Row = {"strings": case, "proposal": name, "width": float(column.pop("width").mean())}
        row |= {"of the base's": {"median": float(ratio.quantile(0.5)), "low": float(ratio.min()), "high": float(ratio.max())}}
        rows.append(row | {key: float(values.mean()) for key, values in column.items()})
    return rows


def tables(repeats: int) -> list[Table]:
    rows: list[Row] = []
    for name, case in CASES.items():
        rows += rows_of(name, [widths_of_seed(case, seed, repeats) for seed in range(SEEDS)])
    return [Table("width of the interval of log Z at equal tokens", rows)]
