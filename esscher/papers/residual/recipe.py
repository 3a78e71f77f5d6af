"""Residual energy-based models (Deng, Bakhtin, Ott, Szlam, Ranzato, 2020; Bakhtin et al., 2021) on text.

For each study a frozen base, and rows that try to do better on the same held-out continuations: RALM and BALM, plain language
models of equal capacity, and energies: UniT reads from left to right, BiT in both directions, BiT* is a pretrained encoder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.bases.causal_lm import CausalLM
from esscher.bases.logits import LogitBase
from esscher.bases.network import build_base
from esscher.bases.scaling import causal_lm_with_extra_layers, with_extra_layers
from esscher.bases.wrappers import ProductOfExperts
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences
from esscher.core.target import Base, Tilted
from esscher.estimators.intervals import interval
from esscher.estimators.measure import measure_with_draws
from esscher.estimators.perplexity import as_perplexity, cross_entropy
from esscher.objectives.likelihood import Likelihood
from esscher.papers.residual.studies import STUDIES, ResidualStudy
from esscher.papers.study import ROW_FILE, Row, Rows, StudyContext, cached_json, count_parameters, select
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
        prepared = prepare_residual(study)
        of_study = [make_row(context, prepared, name, seed) for name, seed in row_names(study, context.seeds)]
        sections.append(_section(study.name, of_study))
        rows += of_study
    about = (
        "A frozen language model, and rows that try to do better on the same held-out continuations: plain models of equal "
        "size (RALM, BALM), and energies over whole continuations (UniT, BiT, and BiT*, a pretrained encoder)."
    )
    tables = {"rows": select(rows, COLUMNS), "paper": PAPER}
    return context.publish("Residual energy-based models", about, sections, tables, missing)


def _section(text: str, rows: Rows) -> Section:
    gains = {f"{row['model']}, seed {row['seed']}": row["gain"] for row in rows if "gain" in row}
    parts: list[Table | Picture] = [Table("Rows", rows)]
    if gains:
        label = "gain per word, share of the base's perplexity"
        parts.append(Picture(intervals(gains, label=label, truth=0.0, truth_label="base"), ""))
    return Section(text, MEANING, parts)


@dataclass(frozen=True)
class ResidualContext:
    """What all rows of a study share: the base, and its text, of which the test split is the continuations to measure on."""

    study: ResidualStudy
    model: Model
    splits: DataSplits


def row_names(study: ResidualStudy, seeds: int) -> list[tuple[str, int]]:
    """The rows of a study: its base, then every other row with every seed."""
    others = [*study.controls, *study.energies]
    return [("base", 0), *((name, seed) for name in others for seed in range(seeds))]


def prepare_residual(study: ResidualStudy) -> ResidualContext:
    """Train the base, unless it is a folder already, and read the text."""
    if isinstance(study.base, TrainRun):
        train_base(replace(study.base, resume=True))
    model = load(study.base if isinstance(study.base, str) else study.base.out, chunking=study.chunking)
    splits = model.training_splits(study.data)
    test, units = evaluation_subset(splits, study.contrast.draws)
    return ResidualContext(study, model, replace(splits, test=test, units=units))


def make_row(context: StudyContext, prepared: ResidualContext, name: str, seed: int) -> Row:
    """One row of the table, made unless its file exists."""
    study, base = prepared.study, prepared.model.base
    folder = context.run_dir(study.name, name.replace("*", "-pretrained"), seed)

    def make() -> Row:
        if name == "base":
            columns = _normalised_columns(prepared, base, count_parameters(base))
        elif name in study.controls:
            columns = _train_control(prepared, name, seed, folder)
        else:
            columns = _train_energy(prepared, name, seed, folder)
        return {"text": study.name, "model": name, "seed": seed, **columns}

    return cached_json(folder / ROW_FILE, make)


def _train_energy(prepared: ResidualContext, name: str, seed: int, folder: Path) -> Row:
    """Train an energy by noise contrast; its folder is one that the command line reads."""
    study = prepared.study
    energy, training = study.energies[name]
    settings = TiltRun(
        energy, out=str(folder), data=study.data, contrast=study.contrast, training=replace(training, seed=seed), resume=True
    )
    result = tilt_model(prepared.model, settings).details
    assert isinstance(result, ContrastResult) and result.measured.draws is not None
    measured = result.measured
    fixed = measure_with_draws(
        result.measured.draws, result.target, prepared.splits.test, units=prepared.splits.units, test="fixed"
    )
    assert measured.tilted is not None and measured.reduction is not None and fixed.tilted is not None
    reliable = sum(one.verdict == "good" for one in measured.reliability) / len(measured.reliability)
    return {
        "parameters": count_parameters(prepared.model.base) + count_parameters(cast(nn.Module, result.target.energy)),
        **_perplexities(measured.tilted, fixed.tilted),
        **_gains(measured.reduction),
        "log Z": measured.log_z,
        "reliable prompts": reliable,
        "steps": result.record.best_step,
    }


def _train_control(prepared: ResidualContext, name: str, seed: int, folder: Path) -> Row:
    """Train a plain language model of the size of base and energy together by the likelihood of whole chunks."""
    base, study = prepared.model.base, prepared.study
    rng = SeededRng(seed).stream("control", name)
    if name == "RALM":
        correction = build_base(study.ralm_network, base.space, rng=rng)
        learner: nn.Module = correction
        control: nn.Module = ProductOfExperts(cast(LogitBase, base), cast(LogitBase, correction))
    elif isinstance(base, CausalLM):
        control = learner = causal_lm_with_extra_layers(base, study.balm_extra_layers)
    else:
        control = learner = with_extra_layers(base, study.balm_extra_layers, rng=rng)  # type: ignore[arg-type]
    train = prepared.splits.train
    whole = Sequences(train.tokens, torch.zeros_like(train.start), train.stop)
    record = Trainer(replace(study.controls[name], seed=seed))(
        Likelihood(), Tilted(cast(Base, control)), whole, modules=learner,
        validation=HeldOut(Likelihood(), prepared.splits.validation), folder=folder, resume=True,
    )  # fmt: skip
    size = count_parameters(base) + count_parameters(learner) if name == "RALM" else count_parameters(learner)
    return {**_normalised_columns(prepared, cast(Base, control), size), "steps": record.best_step}


def _normalised_columns(prepared: ResidualContext, model: Base, parameters: int) -> Row:
    """A normalised model on the test data, compared with the base unless it is the base."""
    nats = cross_entropy(Tilted(model), prepared.splits.test, units=prepared.splits.units)
    fixed = cross_entropy(Tilted(model), prepared.splits.test, units=prepared.splits.units, test="fixed")
    columns = {"parameters": parameters, **_perplexities(nats, fixed)}
    if model is prepared.model.base:
        return columns
    difference = log_prob(model, prepared.splits.test) - log_prob(prepared.model.base, prepared.splits.test)
    saved = {unit: _ratio(difference, prepared.splits.units[unit].double(), unit) for unit in ("token", "word")}
    return {**columns, **_gains(saved)}


def _ratio(difference: Float[Tensor, "B"], size: Float[Tensor, "B"], unit: str) -> Estimate:
    """Nats per unit that a model saves against the base, with test sequences as replicates."""

    def statistic(count: Tensor) -> Tensor:
        return (count[0] * difference).sum() / (count[0] * size).sum()

    method = f"{len(size)} test sequences as a sample, paired with the base"
    return interval(statistic, [(1, len(size))], confidence=0.95, n=len(size), method=method, unit=f"nats per {unit}")


def _perplexities(nats: Mapping[str, Estimate], fixed: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Perplexities with intervals for text like the test set, and, from `fixed`, for just this test set."""
    columns = {f"per {unit}": value for unit, value in as_perplexity(nats).items()}
    return {**columns, "per token, this test set": as_perplexity(fixed)["token"]}


def _gains(saved: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Nats saved per token, and the relative reduction of the perplexity per word."""
    word = saved["word"].map(lambda nats: float(-torch.expm1(torch.tensor(-nats, dtype=torch.float64))), unit="per word")
    return {"saved": saved["token"], "gain": word}
