"""Residual energy-based models (Deng, Bakhtin, Ott, Szlam, Ranzato, 2020; Bakhtin et al., 2021) on text.

Rows are RALM and BALM, plain language models of equal capacity, and energies: UniT reads from left to right, BiT in both
directions, BiT* is a pretrained encoder. Pretrained models come as packages of PyPI (`esscher.hub.packaged_models`).
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn

from esscher.bases.causal_lm import CausalLM
from esscher.bases.logits import LogitBase
from esscher.bases.network import build_base
from esscher.bases.scaling import causal_lm_with_extra_layers, with_extra_layers
from esscher.bases.wrappers import ProductOfExperts
from esscher.core.chunking import Chunking
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences
from esscher.core.target import Base, Tilted
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.energies.config import EnergyConfig
from esscher.estimators.intervals import interval, ratio
from esscher.estimators.perplexity import as_perplexity, cross_entropy, measure_with_draws
from esscher.hub import ModelCard, SavedBase, save_base
from esscher.hub.folder import CONFIG
from esscher.hub.packaged_models import PACKAGED_MODELS, is_available, packaged_model_folder
from esscher.networks.transformer_config import TransformerConfig
from esscher.objectives.likelihood import Likelihood
from esscher.papers.sources import CC_NEWS, DATA, TORONTO_BOOKS, missing_message
from esscher.papers.study import Row, StudyContext, count_parameters, select, table_rows, validation_history
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import BASE, INK, TILTED, TRUTH, blank_figure, interval_panels, intervals
from esscher.samplers.scoring import log_prob
from esscher.training.collectives import exists_on_main_process
from esscher.training.config import TrainingConfig
from esscher.training.evaluation import HeldOut
from esscher.training.trainer import Trainer, TrainingRecord
from esscher.workflow.config.tilt import ContrastConfig, ContrastTraining, TiltRun
from esscher.workflow.config.train import TrainRun
from esscher.workflow.model import Model, load
from esscher.workflow.processors import DataSplits
from esscher.workflow.tilt import ContrastResult, evaluation_subset, tilt_model
from esscher.workflow.train import train_base

PAPER = table_rows(
    ("model", "CC-News ppl", "Toronto Books ppl"),
    ("base LM 203M", "14.89", "18.14"),
    ("RALM, LM + 203M", "14.89", "18.17"),
    ("BALM 408M", "13.92", "18.24"),
    ("joint UniT, LM + 203M", "13.81-13.82", "17.46-17.48"),
    ("joint BiT-Base, LM + 125M", "13.01-13.03", "-"),
    ("joint BiT-Med, LM + 203M", "12.38-12.42", "-"),
    ("joint BiT-Base*, LM + 125M", "12.93-12.95", "16.17-16.18"),
    ("joint BiT-Large*, LM + 355M", "12.10-12.16", "15.17-15.22"),
)
"""Table 1 of the paper: perplexity per token, 160 tokens of which 120 are given."""

COLUMNS = (
    "text",
    "model",
    "seed",
    "per token, this test set",
    "per word",
    "gain per token",
    "gain",
    "log Z",
)  # the report has all columns
MEANING = (
    "Perplexities with 95 % intervals for text like the test set; `saved` and `gain` are paired with the base on the same "
    "continuations, so their intervals are far narrower than those of the perplexities."
)


LOSSES = "Loss of telling text from draws of the base, on held-out text; log 4 at the start. Seed 0."


@dataclass(frozen=True, kw_only=True)
class ResidualStudy:
    """A text, the base on it (its folder, or the run that trains it), and how the rows are trained."""

    name: str
    base: str | TrainRun
    data: DataConfig
    chunking: Chunking
    energies: Mapping[str, tuple[EnergyConfig, ContrastTraining]]
    contrast: ContrastConfig
    controls: Mapping[str, TrainingConfig] = field(default_factory=dict)
    ralm_network: TransformerConfig = field(default_factory=TransformerConfig)
    balm_extra_layers: int = 0
    energies_first: bool = False  # in the order in which rows are made
    continued: TrainingConfig | None = None  # how a base in a folder is trained on before any row is made


def run(context: StudyContext) -> dict[str, Any]:
    """All rows of the studies of the scale; `context.data` is a text file for the scales `pretrained` and `paper`."""
    studies, missing = STUDIES[context.scale](context.out, context.data)
    sections, rows, losses = [], [], []
    for study in studies:
        if isinstance(study.base, TrainRun):
            train_base(replace(study.base, resume=True))
        base = study.base.out if isinstance(study.base, TrainRun) else study.base
        if study.continued is not None:
            base = str(_continued_base(context, study, study.continued))
        model = load(base, **vars(study.chunking))
        splits = model.training_splits(study.data)
        test, units = evaluation_subset(splits, study.contrast.draws)  # the continuations that all rows are measured on
        splits = replace(splits, test=test, units=units)
        of_study = [make_row(context, study, model, splits, *name) for name in row_names(study, context.seeds)]
        gains = {f"{row['model']}, seed {row['seed']}": row["gain"] for row in of_study if "gain" in row}
        label = "gain per word, share of the base's perplexity"
        pictures = [Picture(intervals(gains, label=label, truth=0.0, truth_label="base"), "")] if gains else []
        pictures += context.learning_curves(study.name, map(_folder, study.energies), "validation loss", LOSSES)
        sections.append(Section(study.name, MEANING, [Table("Rows", of_study), *pictures]))
        rows += of_study
        losses += _losses(context, study)
    about = (
        "A frozen language model, and rows that try to do better on the same held-out continuations: plain models of equal "
        "size (RALM, BALM), and energies over whole continuations (UniT, BiT, and BiT*, a pretrained encoder)."
    )
    tables = {"rows": select(rows, COLUMNS), "losses": losses, "paper": PAPER}
    gains_figure(rows).savefig(context.out / "residual.png", dpi=160)
    losses_figure(losses).savefig(context.out / "residual_losses.png", dpi=160)
    return context.publish("Residual energy-based models", about, sections, tables, missing)


def _continued_base(context: StudyContext, study: ResidualStudy, training: TrainingConfig) -> Path:
    """The folder of the study's base after it was trained on by the likelihood of the study's text, so that no row gains what
    the base had not learnt of it."""
    folder = context.out / study.name / "base"
    if not exists_on_main_process(folder / CONFIG):
        model = load(cast(str, study.base), **vars(study.chunking))
        learner = deepcopy(cast(nn.Module, model.base))
        _learn_chunks(learner, learner, model.training_splits(study.data), training, folder.with_name("base-training"))
        save_base(folder, cast(SavedBase, learner), model.tokenizer, ModelCard(f"{study.base}, trained on"))
    return folder


def _learn_chunks(
    learner: nn.Module, model: nn.Module, splits: DataSplits, training: TrainingConfig, folder: Path
) -> TrainingRecord:
    """Train `learner` by the likelihood of whole chunks under `model`, of which it is a part or the whole."""
    whole = Sequences(splits.train.tokens, torch.zeros_like(splits.train.start), splits.train.stop)
    return Trainer(training)(
        Likelihood(), Tilted(cast(Base, model)), whole, modules=learner,
        validation=HeldOut(Likelihood(), splits.validation), folder=folder, resume=True,
    )  # fmt: skip


def _losses(context: StudyContext, study: ResidualStudy) -> list[Row]:
    """The loss of every energy on held-out text, at each evaluation while it learnt."""
    return [
        {"text": study.name, "model": name, "seed": seed, "step": step, "loss": loss}
        for name, seed in row_names(study, context.seeds) if name in study.energies
        for step, loss in validation_history(context.run_dir(study.name, _folder(name), seed))
    ]  # fmt: skip


def losses_figure(losses: Sequence[Row]) -> Any:
    """The losses of energies by updates: a colour for each energy, a line for each seed."""
    figure = blank_figure(6.4, 3.2)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    for (name, seed), colour in _colours(losses).items():
        line = [(row["step"], row["loss"]) for row in losses if (row["model"], row["seed"]) == (name, seed)]
        axes.plot(
            *zip(*line, strict=True), color=colour, linewidth=1.2, marker="o", markersize=2, label=name if seed == 0 else None
        )
    axes.axhline(math.log(4), color=BASE, linestyle="--", linewidth=1, label="log 4: nothing is told apart")
    axes.set_xlabel("updates")
    axes.set_ylabel("loss on held-out text")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _colours(losses: Sequence[Row]) -> dict[tuple[str, int], str]:
    """The colour of each energy and seed."""
    names = list(dict.fromkeys(row["model"] for row in losses))
    lines = dict.fromkeys((row["model"], row["seed"]) for row in losses)
    return {(name, seed): (TILTED, TRUTH, INK, BASE)[names.index(name) % 4] for name, seed in lines}


def gains_figure(rows: Sequence[Row]) -> Any:
    """The gain per word of every row, a panel for each text."""
    label, panels = "gain per word, share of the base's perplexity", {}
    for text in dict.fromkeys(row["text"] for row in rows):
        gains = {f"{row['model']}, seed {row['seed']}": row["gain"] for row in rows if row["text"] == text and "gain" in row}
        panels[text] = gains, label, 0.0, "base"
    return interval_panels(panels)


def row_names(study: ResidualStudy, seeds: int) -> list[tuple[str, int]]:
    """The rows of a study: its base, then every other row with every seed."""
    others = [*study.energies, *study.controls] if study.energies_first else [*study.controls, *study.energies]
    return [("base", 0), *((name, seed) for name in others for seed in range(seeds))]


def make_row(context: StudyContext, study: ResidualStudy, model: Model, splits: DataSplits, name: str, seed: int) -> Row:
    """One row of the table, made unless its file exists."""

    def make(run_dir: Path) -> Row:
        if name == "base":
            columns = _normalised_columns(model.base, model.base, splits, count_parameters(model.base))
        else:
            train = _train_control if name in study.controls else _train_energy
            columns = train(study, model, splits, name, seed, run_dir)
        return {"text": study.name, "model": name, "seed": seed, **columns}

    return context.row(study.name, _folder(name), seed, make)


def _folder(name: str) -> str:
    """The name of a model in that of its folder."""
    return name.replace("*", "-pretrained")


def _train_energy(study: ResidualStudy, model: Model, splits: DataSplits, name: str, seed: int, run_dir: Path) -> Row:
    """Train an energy by noise contrast; its folder is one that the command line reads."""
    energy, training = study.energies[name]
    settings = TiltRun(
        energy, out=str(run_dir), data=study.data, contrast=study.contrast, training=replace(training, seed=seed), resume=True
    )
    result = tilt_model(model, settings).details
    assert isinstance(result, ContrastResult)
    measured = result.measured
    assert measured.draws is not None and measured.tilted is not None and measured.reduction is not None
    fixed = measure_with_draws(measured.draws, result.target, splits.test, units=splits.units, test="fixed")
    assert fixed.tilted is not None
    return {
        "parameters": count_parameters(model.base) + count_parameters(cast(nn.Module, result.target.energy)),
        **_perplexities(measured.tilted, fixed.tilted),
        **_gains(measured.reduction),
        "log Z": measured.log_z,
        "reliable prompts": sum(prompt.verdict == "good" for prompt in measured.reliability) / len(measured.reliability),
        "steps": result.record.best_step,
    }


def _train_control(study: ResidualStudy, model: Model, splits: DataSplits, name: str, seed: int, run_dir: Path) -> Row:
    """Train a plain language model of the size of base and energy together, or the base itself, by the likelihood of whole
    chunks."""
    base, rng = model.base, SeededRng(seed).stream("control", name)
    if name == "RALM":
        learner: nn.Module = build_base(study.ralm_network, base.space, rng=rng)
        control: nn.Module = ProductOfExperts(cast(LogitBase, base), cast(LogitBase, learner))
        size = count_parameters(base) + count_parameters(learner)
    else:
        if name == TRAINED_ON:
            learner = deepcopy(cast(nn.Module, base))
        elif isinstance(base, CausalLM):
            learner = causal_lm_with_extra_layers(base, study.balm_extra_layers)
        else:
            learner = with_extra_layers(base, study.balm_extra_layers, rng=rng)  # type: ignore[arg-type]
        control, size = learner, count_parameters(learner)
    record = _learn_chunks(learner, control, splits, replace(study.controls[name], seed=seed), run_dir)
    return {**_normalised_columns(cast(Base, control), base, splits, size), "steps": record.best_step}


def _normalised_columns(model: Base, base: Base, splits: DataSplits, parameters: int) -> Row:
    """A normalised model on the test data, compared with the base unless it is the base."""
    test, units = splits.test, splits.units
    nats, fixed = (cross_entropy(Tilted(model), test, units=units, test=mode) for mode in ("sample", "fixed"))
    columns = {"parameters": parameters, **_perplexities(nats, fixed)}
    if model is base:
        return columns
    difference, n, counted = log_prob(model, test) - log_prob(base, test), len(test), "test sequences"
    method, saved = f"{n} test sequences as a sample, paired with the base", {}
    for unit in ("token", "word"):
        mean, per = ratio(difference, units[unit].double()), f"nats per {unit}"
        saved[unit] = interval(mean, [(1, n)], confidence=0.95, n=n, method=method, unit=per, counted=counted)
    return {**columns, **_gains(saved)}


def _perplexities(nats: Mapping[str, Estimate], fixed: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Perplexities with intervals for text like the test set, and, from `fixed`, for just this test set."""
    columns = {f"per {unit}": value for unit, value in as_perplexity(nats).items()}
    return {**columns, "per token, this test set": as_perplexity(fixed)["token"]}


def _gains(saved: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Nats saved per token, and the relative reductions of the perplexity per token and per word."""
    token, word = (saved[unit].map(lambda nats: -math.expm1(-nats), unit=f"per {unit}") for unit in ("token", "word"))
    return {"saved": saved["token"], "gain per token": token, "gain": word}


CHUNK = Chunking(max_length=40, prompt_tokens=120)
Studies = tuple[list[ResidualStudy], list[str]]  # and a message for each study or row that is left out
WINDOW = 40


def _energies(steps: int) -> dict[str, tuple[EnergyConfig, ContrastTraining]]:
    """UniT and BiT from the weights of the base, and BiT*, with two thirds of the steps, if MiniLM is installed."""
    training = ContrastTraining(steps=steps, learning_rate=1e-3, warmup_steps=30, patience=None)
    energies = {
        "UniT": (EnergyConfig("unidirectional", window=WINDOW), training),
        "BiT": (EnergyConfig("bidirectional", window=WINDOW), training),
    }
    return {**energies, "BiT*": _encoder_energy(2 * steps // 3)} if is_available("minilm") else energies


def _encoder_energy(steps: int) -> tuple[EnergyConfig, ContrastTraining]:
    training = ContrastTraining(steps=steps, learning_rate=1e-4, warmup_steps=20, evaluate_every=50, patience=None)
    return EnergyConfig(encoder="minilm", window=WINDOW, dropout=0.0), training


def _controls(steps: int) -> dict[str, TrainingConfig]:
    """RALM and BALM, which starts from the weights of the base."""
    training = TrainingConfig(steps=steps, learning_rate=1e-3, schedule="linear", warmup_steps=30, evaluate_every=100)
    return {"RALM": training, "BALM": replace(training, learning_rate=3e-4)}


def _small(out: Path, data: str | None) -> Studies:
    """TinyStories with a pretrained base; books and docstrings with bases that are trained first."""
    studies, missing = [_docstrings(out, steps=1_000, width=128)], []
    for folder, make in (("gutenberg", _gutenberg), ("stories260K", _tinystories)):
        if (DATA / folder).is_dir():
            studies.insert(0, make(out))
        else:
            missing.append(missing_message(DATA / folder))
    if not is_available("minilm"):
        missing.append(f"MiniLM is not installed, so there is no pretrained energy: {PACKAGED_MODELS['minilm'].install}")
    return studies, missing


def _tinystories(out: Path) -> ResidualStudy:
    return ResidualStudy(
        name="tinystories", base=str(DATA / "stories260K"),
        data=DataConfig(str(DATA / "tinystories"), separator="<|endoftext|>"), chunking=replace(CHUNK, eos="<s>"),
        energies=_energies(300), contrast=ContrastConfig(draws=12_800), controls=_controls(300),
        ralm_network=TransformerConfig(width=64, layers=5, heads=8, feedforward=172), balm_extra_layers=5,
    )  # fmt: skip


def _trained_base_study(
    run: TrainRun, chunking: Chunking, *, steps: int, width: int, tilt_steps: int, draws: int = 12_800
) -> ResidualStudy:
    """A study whose base is a Transformer that is trained first; its name is that of the folder above the base's."""
    network = TransformerConfig(width=width, layers=3, heads=4, feedforward=3 * width)
    training = TrainingConfig(steps=steps, schedule="cosine", warmup_steps=steps // 20, evaluate_every=100)
    return ResidualStudy(
        name=Path(run.out).parent.name, base=replace(run, base=network, training=training), data=run.data, chunking=chunking,
        energies=_energies(tilt_steps), contrast=ContrastConfig(draws=draws), controls=_controls(tilt_steps),
        ralm_network=network, balm_extra_layers=3,
    )  # fmt: skip


def _gutenberg(out: Path) -> ResidualStudy:
    """Books, with half the steps and draws of the other studies: three seeds take an hour and a half as it is."""
    data = DataConfig(str(DATA / "gutenberg"), unit="document", split="position")
    run = TrainRun(str(out / "gutenberg" / "base"), data=data, length=LengthConfig(tokens=160, chunks=True))
    return _trained_base_study(run, CHUNK, steps=500, width=128, tilt_steps=150, draws=6_400)


def _docstrings(out: Path, *, steps: int, width: int) -> ResidualStudy:
    run = TrainRun(str(out / "docstrings" / "base"), length=LengthConfig(tokens=64))
    study = _trained_base_study(run, Chunking(), steps=steps, width=width, tilt_steps=min(300, steps))
    return replace(study, energies={name: energy for name, energy in study.energies.items() if name != "BiT*"})


def _smoke(out: Path, data: str | None) -> Studies:
    return [replace(_docstrings(out, steps=40, width=32), contrast=ContrastConfig(held_out=64, draws=200))], []


TRAINED_ON = "base, trained on"  # tells what is the text's and not the size's in what controls gain
PATIENCE = 4  # evaluations without a new best, after which a row of the scale `plateau` has ended
SHORT = Chunking(max_length=20, prompt_tokens=60)
BOOKS = (
    "Books are left out: our base of them had not converged, and to train one until its validation loss no longer falls takes "
    "longer than the study."
)


def _plateau(out: Path, data: str | None) -> Studies:
    """Tiny stories with its pretrained base as it comes, and short continuations, so that energies of the base's size
    see up to ten times the pairs, and end when `PATIENCE` evaluations bring nothing. BiT* learns from few pairs."""
    if not (DATA / "stories260K").is_dir():
        return [], [missing_message(DATA / "stories260K")]
    long, window = _tinystories(out), SHORT.max_length
    energies = {
        name: (replace(energy, window=window), _patient(replace(training, batch_size=64), 1_500))
        for name, (energy, training) in long.energies.items() if name != "BiT*"
    }  # fmt: skip
    missing = [BOOKS]
    if is_available("minilm"):
        pretrained, training = _encoder_energy(100)
        energies["BiT*"] = replace(pretrained, window=window), training
    else:
        missing.append(f"MiniLM is not installed, so there is no pretrained energy: {PACKAGED_MODELS['minilm'].install}")
    study = replace(
        long, name="tinystories, to the plateau", chunking=replace(SHORT, eos="<s>"), energies=energies,
        controls={
            **{name: _patient(each, 500) for name, each in long.controls.items()},
            TRAINED_ON: _patient(long.controls["BALM"], 500),
        },
        contrast=ContrastConfig(held_out=512, draws=9_600), energies_first=True,
    )  # fmt: skip
    return [study], missing


def _converged(out: Path, data: str | None) -> Studies:
    """The study `plateau` on a base that was trained on first, until its validation loss fell no more: as it comes it gains as
    much by more of this text as a larger base does."""
    studies, missing = _plateau(out, data)
    continued = [
        replace(
            study, name="tinystories, base trained on", continued=_patient(study.controls["BALM"], 4_000),
            controls={name: each for name, each in study.controls.items() if name != TRAINED_ON},
        )
        for study in studies
    ]  # fmt: skip
    return continued, missing


T = TypeVar("T", bound=TrainingConfig)


def _patient(training: T, steps: int) -> T:
    return replace(training, steps=steps, schedule="constant", evaluate_every=100, patience=PATIENCE)


def _pretrained(out: Path, data: str | None) -> Studies:
    """SmolLM2 and MiniLM on one book, or on the text of the user."""
    book = str(DATA / "gutenberg" / "melville-moby_dick.txt") if data is None else data
    if not Path(book).is_file():
        raise FileNotFoundError(f"There is no text {book}. Nothing was done; name a text file with --data.")
    for name in ("smollm2", "minilm"):
        packaged_model_folder(name)  # refuses before anything is trained
    study = ResidualStudy(
        name="pretrained", base="smollm2", data=DataConfig(book, unit="document", split="position"), chunking=CHUNK,
        energies={"BiT*": _encoder_energy(120)},
        contrast=ContrastConfig(stored=2, sequences=800, held_out=64, draws=60 * 64),
    )  # fmt: skip
    return [study], []


def _paper(out: Path, data: str | None) -> Studies:
    """The published sizes, on any text of the user: a base of 203M parameters, energies of as many, for GPUs."""
    training = TrainingConfig(
        steps=180_000, batch_size=512, gradient_accumulation_steps=8, learning_rate=3e-4, schedule="inverse-sqrt",
        warmup_steps=4_000,
    )  # fmt: skip
    run = TrainRun(
        str(out / "paper" / "base"), data=DataConfig(CC_NEWS if data is None else data),
        tokenizer=TokenizerConfig("bpe", 50_000), length=LengthConfig(tokens=160, chunks=True),
        base=TransformerConfig(width=1024, layers=12, heads=16, feedforward=4096), training=training,
    )  # fmt: skip
    noise = ContrastTraining(steps=180_000, batch_size=64, learning_rate=1e-4, warmup_steps=10_000, evaluate_every=2_000)
    small = TransformerConfig(width=768, layers=12, heads=12, feedforward=3072)  # BERT-Base, 125M with embeddings
    energies = {
        "UniT": EnergyConfig("unidirectional"), "BiT-Base": EnergyConfig("bidirectional", network=small),
        "BiT-Med": EnergyConfig("bidirectional"), "BiT-Base*": EnergyConfig(encoder="FacebookAI/roberta-base"),
        "BiT-Large*": EnergyConfig(encoder="FacebookAI/roberta-large"),
    }  # fmt: skip
    study = ResidualStudy(
        name="paper", base=run, data=run.data, chunking=CHUNK,
        energies={name: (each, noise) for name, each in energies.items()},
        contrast=ContrastConfig(held_out=2_048, draws=64 * 10_000), controls={"RALM": training, "BALM": training},
        ralm_network=run.base, balm_extra_layers=16,
    )  # fmt: skip
    return [study], [] if data is not None else [TORONTO_BOOKS]


STUDIES = {
    "smoke": _smoke,
    "small": _small,
    "plateau": _plateau,
    "converged": _converged,
    "pretrained": _pretrained,
    "paper": _paper,
}
