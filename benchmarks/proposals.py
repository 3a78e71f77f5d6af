"""Width of the interval of log Z at equal tokens: draws of a student, weighted towards the tilted model, against the base's.

Binary strings: an LSTM is trained on strings of which 5 %, 1 % or about half have a motif, and tilted so that 99 % have it. The
student is distilled in three stages (`cyclical`, 20,000 candidates) until it is near; `stopped early` is one after a single
epoch at a low learning rate, a poor proposal. Three seeds of all. Every proposal estimates log Z from the same number of tokens
that pass through a network: a draw of the base costs its tokens once, a draw of the student twice (the base scores it), one of
their mixture three times. The tokens that the student learnt from are not counted. `width` is the mean width of the 95 %
interval over repeats and seeds; `of the base's` its ratio to that of the base, below 1 a gain, with its range over the seeds;
`covered` is how often the interval holds log Z by 65,536 draws of the student; `good` how often the verdict is.
"""

import tempfile
from dataclasses import replace
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
CASES = {"5 %": ("10001011", 20), "1 %": ("1000101110", 20), "half": ("1011", 12)}  # of the strings have the motif
SEEDS, TOKENS_AS_DRAWS, TRUTH, BASE_SHARE = 3, 4000, 2**16, 0.1
LEARN = DistilConfig("cyclical", draws=10_000, candidates=20_000, stages=3, evaluation_draws=2000)
WELL = DistilTraining(epochs=6, learning_rate=1e-2)
SHORT = DistilTraining(epochs=1, learning_rate=1e-3)


def tilted(motif: str, length: int, seed: int, folder: Path) -> Any:
    data = DataConfig(f"motif:{motif}", length=length, mixture=0.01, size=2000)  # beside these, even strings
    training = TrainingConfig(steps=400, batch_size=64, learning_rate=5e-3, seed=seed)
    base = esscher.train(out=str(folder / "base"), data=data, base=LstmConfig(width=48, layers=1), training=training)
    return base.tilt(want={f"contains:{motif}": 0.99}, out=str(folder / "energy"), fit=FitConfig(draws=8000))


def intervals(
    target: Tilted, proposal: Base | None, draws: int, repeats: int, truth: float, rng: SeededRng
) -> dict[str, float]:
    """The mean width of the interval, how often it holds the truth, and how often the verdict is good."""
    width = held = good = 0.0
    for number in range(repeats):
        drawn = Importance(proposal)(target, empty_prompts(1), draws, rng=rng.stream(number))
        estimate = log_z(drawn, bounds=weight_bounds(drawn, target.energy))
        width, held = width + estimate.high - estimate.low, held + estimate.covers(truth)
        good += reliability(drawn, energy=target.energy)[0].verdict == "good"
    return {"width": width / repeats, "covered": held / repeats, "good": good / repeats}


def seed_rows(motif: str, length: int, seed: int, repeats: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = tilted(motif, length, seed, folder)
        student = model.distil(out=str(folder / "student"), distil=LEARN, training=WELL).base
        bad = model.distil(out=str(folder / "short"), distil=replace(LEARN, method="importance"), training=SHORT).base
    target, base = model.target, model.target.base
    rng = SeededRng(seed, "proposals")
    truth = float(Importance(student)(target, empty_prompts(1), TRUTH, rng=rng.stream("truth")).log_z())
    run = partial(intervals, target, repeats=repeats, truth=truth)
    proposals: dict[str, tuple[Base | None, int]] = {"base": (None, 1), "student": (student, 2), "stopped early": (bad, 2)}
    for name, one in (("student", student), ("stopped early", bad)):
        proposals[f"{name}, {BASE_SHARE:.0%} of the base"] = defensive(base, one, base_share=BASE_SHARE), 3
    found = {name: run(proposal, TOKENS_AS_DRAWS // cost, rng=rng.stream(name)) for name, (proposal, cost) in proposals.items()}
    return {name: row | {"ratio": row["width"] / found["base"]["width"]} for name, row in found.items()}


def rows_of(case: str, repeats: int) -> list[Row]:
    motif, length = CASES[case]
    by_seed = [seed_rows(motif, length, seed, repeats) for seed in range(SEEDS)]
    rows: list[Row] = []
    for name in by_seed[0]:
        column = {key: torch.tensor([found[name][key] for found in by_seed]) for key in by_seed[0][name]}
        ratio = column["ratio"]
        row: Row = {"strings": case, "proposal": name, "width": float(column["width"].mean())}
        row |= {
            "of the base's": {"median": float(ratio.median()), "low": float(ratio.min()), "high": float(ratio.max())},
            "covered": float(column["covered"].mean()), "good": float(column["good"].mean()),
        }  # fmt: skip
        rows.append(row)
    return rows


def tables(repeats: int) -> list[Table]:
    return [Table("width of the interval of log Z at equal tokens", [row for case in CASES for row in rows_of(case, repeats)])]
