"""Residual energy-based models (Deng, Bakhtin, Ott, Szlam, Ranzato, 2020; Bakhtin et al., 2021) on text.

For each study a frozen base, and rows that try to do better on the same held-out continuations: RALM and BALM, plain language
models of equal capacity, and energies: UniT reads from left to right, BiT in both directions, BiT* is a pretrained encoder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from esscher.bases.causal_lm import CausalLM
from esscher.bases.logits import LogitBase
from esscher.bases.network import build_base
from esscher.bases.scaling import causal_lm_with_extra_layers, with_extra_layers
from esscher.bases.wrappers import ProductOfExperts
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences
from esscher.core.target import Base, Tilted
from esscher.estimators.intervals import interval, ratio
from esscher.estimators.measure import measure_with_draws
from esscher.estimators.perplexity import as_perplexity, cross_entropy
from esscher.objectives.likelihood import Likelihood
from esscher.papers.residual.studies import STUDIES, ResidualStudy
from esscher.papers.study import Row, StudyContext, count_parameters, select
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import intervals
from esscher.samplers.scoring import log_prob
from esscher.training.evaluation import HeldOut
from esscher.training.trainer import Trainer
from esscher.workflow.config.tilt import TiltRun
from esscher.workflow.config.train import TrainRun
from esscher.workflow.model import Model, load
from esscher.workflow.processors import DataSplits
from esscher.workflow.tilt import ContrastResult, evaluation_subset, tilt_model
from esscher.workflow.train import train_base

PAPER = [
    dict(zip(("model", "CC-News ppl", "Toronto Books ppl"), row, strict=True))
    for row in (
        ("base LM 203M", "14.89", "18.14"),
        ("RALM, LM + 203M", "14.89", "18.17"),
        ("BALM 408M", "13.92", "18.24"),
        ("joint UniT, LM + 203M", "13.81-13.82", "17.46-17.48"),
        ("joint BiT-Base, LM + 125M", "13.01-13.03", "-"),
        ("joint BiT-Med, LM + 203M", "12.38-12.42", "-"),
        ("joint BiT-Base*, LM + 125M", "12.93-12.95", "16.17-16.18"),
        ("joint BiT-Large*, LM + 355M", "12.10-12.16", "15.17-15.22"),
    )
]
"""Table 1 of the paper: perplexity per token, 160 tokens of which 120 are given."""

COLUMNS = ("text", "model", "seed", "per token, this test set", "per word", "gain", "log Z")  # the report has all columns
MEANING = (
    "Perplexities with 95 % intervals for text like the test set; `saved` and `gain` are paired with the base on the same "
    "continuations, so their intervals are far narrower than those of the perplexities."
)


def run(context: StudyContext) -> dict[str, Any]:
    """All rows of the studies of the scale; `context.data` is a text file for the scales `pretrained` and `paper`."""
    studies, missing = STUDIES[context.scale](context.out, context.data)
    sections, rows = [], []
    for study in studies:
        data = prepare_residual(study)
        of_study = [make_row(context, study, data, name, seed) for name, seed in row_names(study, context.seeds)]
        gains = {f"{row['model']}, seed {row['seed']}": row["gain"] for row in of_study if "gain" in row}
        label = "gain per word, share of the base's perplexity"
        pictures = [Picture(intervals(gains, label=label, truth=0.0, truth_label="base"), "")] if gains else []
        sections.append(Section(study.name, MEANING, [Table("Rows", of_study), *pictures]))
        rows += of_study
    about = (
        "A frozen language model, and rows that try to do better on the same held-out continuations: plain models of equal "
        "size (RALM, BALM), and energies over whole continuations (UniT, BiT, and BiT*, a pretrained encoder)."
    )
    tables = {"rows": select(rows, COLUMNS), "paper": PAPER}
    return context.publish("Residual energy-based models", about, sections, tables, missing)


@dataclass(frozen=True)
class ResidualData:
    """The base of a study, and its text, of which the test split is the continuations to measure on."""

    model: Model
    splits: DataSplits


def row_names(study: ResidualStudy, seeds: int) -> list[tuple[str, int]]:
    """The rows of a study: its base, then every other row with every seed."""
    others = [*study.controls, *study.energies]
    return [("base", 0), *((name, seed) for name in others for seed in range(seeds))]


def prepare_residual(study: ResidualStudy) -> ResidualData:
    """Train the base, unless it is a folder already, and read the text."""
    if isinstance(study.base, TrainRun):
        train_base(replace(study.base, resume=True))
    model = load(study.base if isinstance(study.base, str) else study.base.out, chunking=study.chunking)
    splits = model.training_splits(study.data)
    test, units = evaluation_subset(splits, study.contrast.draws)
    return ResidualData(model, replace(splits, test=test, units=units))


def make_row(context: StudyContext, study: ResidualStudy, data: ResidualData, name: str, seed: int) -> Row:
    """One row of the table, made unless its file exists."""

    def make(run_dir: Path) -> Row:
        if name == "base":
            columns = _normalised_columns(data, data.model.base, count_parameters(data.model.base))
        else:
            train = _train_control if name in study.controls else _train_energy
            columns = train(study, data, name, seed, run_dir)
        return {"text": study.name, "model": name, "seed": seed, **columns}

    return context.row(study.name, name.replace("*", "-pretrained"), seed, make)


def _train_energy(study: ResidualStudy, data: ResidualData, name: str, seed: int, run_dir: Path) -> Row:
    """Train an energy by noise contrast; its folder is one that the command line reads."""
    energy, training = study.energies[name]
    settings = TiltRun(
        energy, out=str(run_dir), data=study.data, contrast=study.contrast, training=replace(training, seed=seed), resume=True
    )
    result = tilt_model(data.model, settings).details
    assert isinstance(result, ContrastResult)
    measured, splits = result.measured, data.splits
    assert measured.draws is not None and measured.tilted is not None and measured.reduction is not None
    fixed = measure_with_draws(measured.draws, result.target, splits.test, units=splits.units, test="fixed")
    assert fixed.tilted is not None
    return {
        "parameters": count_parameters(data.model.base) + count_parameters(cast(nn.Module, result.target.energy)),
        **_perplexities(measured.tilted, fixed.tilted),
        **_gains(measured.reduction),
        "log Z": measured.log_z,
        "reliable prompts": sum(prompt.verdict == "good" for prompt in measured.reliability) / len(measured.reliability),
        "steps": result.record.best_step,
    }


def _train_control(study: ResidualStudy, data: ResidualData, name: str, seed: int, run_dir: Path) -> Row:
    """Train a plain language model of the size of base and energy together by the likelihood of whole chunks."""
    base, rng = data.model.base, SeededRng(seed).stream("control", name)
    if name == "RALM":
        learner: nn.Module = build_base(study.ralm_network, base.space, rng=rng)
        control: nn.Module = ProductOfExperts(cast(LogitBase, base), cast(LogitBase, learner))
        size = count_parameters(base) + count_parameters(learner)
    else:
        if isinstance(base, CausalLM):
            learner = causal_lm_with_extra_layers(base, study.balm_extra_layers)
        else:
            learner = with_extra_layers(base, study.balm_extra_layers, rng=rng)  # type: ignore[arg-type]
        control, size = learner, count_parameters(learner)
    train = data.splits.train
    whole = Sequences(train.tokens, torch.zeros_like(train.start), train.stop)
    record = Trainer(replace(study.controls[name], seed=seed))(
        Likelihood(), Tilted(cast(Base, control)), whole, modules=learner,
        validation=HeldOut(Likelihood(), data.splits.validation), folder=run_dir, resume=True,
    )  # fmt: skip
    return {**_normalised_columns(data, cast(Base, control), size), "steps": record.best_step}


def _normalised_columns(data: ResidualData, model: Base, parameters: int) -> Row:
    """A normalised model on the test data, compared with the base unless it is the base."""
    test, units = data.splits.test, data.splits.units
    nats, fixed = (cross_entropy(Tilted(model), test, units=units, test=mode) for mode in ("sample", "fixed"))
    columns = {"parameters": parameters, **_perplexities(nats, fixed)}
    if model is data.model.base:
        return columns
    difference, n = log_prob(model, test) - log_prob(data.model.base, test), len(test)
    method = f"{n} test sequences as a sample, paired with the base"
    saved = {
        unit: interval(
            ratio(difference, units[unit].double()), [(1, n)], confidence=0.95, n=n, method=method, unit=f"nats per {unit}"
        )
        for unit in ("token", "word")
    }
    return {**columns, **_gains(saved)}


def _perplexities(nats: Mapping[str, Estimate], fixed: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Perplexities with intervals for text like the test set, and, from `fixed`, for just this test set."""
    columns = {f"per {unit}": value for unit, value in as_perplexity(nats).items()}
    return {**columns, "per token, this test set": as_perplexity(fixed)["token"]}


def _gains(saved: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Nats saved per token, and the relative reduction of the perplexity per word."""
    word = saved["word"].map(lambda nats: float(-torch.expm1(torch.tensor(-nats, dtype=torch.float64))), unit="per word")
    return {"saved": saved["token"], "gain": word}
