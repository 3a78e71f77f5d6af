"""XLNet (Yang et al., 2019) and Local-XLNet (thesis of Dai, 2020): what pretraining in random orders is worth for tasks, beside
other objectives on the same text with as many updates, and for a residual energy."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.data.tokenizers import load_tokenizer
from esscher.hub import save_base
from esscher.hub.folder import CONFIG
from esscher.papers.study import Row, StudyContext, means_over_seeds, run_with_seed, table_rows
from esscher.papers.xlnet.studies import ENERGY_STARTS, NO_PRETRAINING, XLNetStudy, local_studies, xlnet_studies
from esscher.reports.document import Section, Table
from esscher.training.collectives import exists_on_main_process
from esscher.workflow.finetune import finetune
from esscher.workflow.model import load
from esscher.workflow.run_folder import RESULTS
from esscher.workflow.tilt import ContrastResult, tilt_model
from esscher.workflow.train import train_base

PAPER = table_rows(
    ("model", "RACE", "SQuAD 2.0 F1", "MNLI", "SST-2"),
    ("BERT", "64.3", "76.3", "84.3", "92.8"),
    ("denoising, Transformer-XL", "65.0", "79.6", "84.9", "92.6"),
    ("XLNet, K = 6", "66.7", "81.0", "85.6", "93.4"),
    ("without memory", "65.6", "80.2", "-", "-"),
    ("without spans", "66.0", "80.6", "-", "-"),
    ("without bidirectional data", "66.3", "80.7", "-", "-"),
)
LOCAL_XLNET_PAPER = [
    {"task": "SQuAD 2.0, F1", "full attention": "87.8", "local attention": "86.9"},
    {"task": "SST-2", "full attention": "94.9", "local attention": "94.8"},
]
MEANING = (
    "Measured on test data that were used neither for pretraining nor for fine-tuning, with 95 % intervals for data like them: "
    "neighbouring passages, or questions on one passage, are one replicate."
)
ENERGIES = "Nats per token of the base and of the tilted model, and what the energy saves, on the same continuations."


def run_xlnet(context: StudyContext) -> dict[str, Any]:
    """All pretraining objectives of the scale, with every seed, and the energies."""
    studies, missing = xlnet_studies(context.scale, context.out)
    rows, over, tasks = _task_rows(context, studies)
    energies = [
        make_energy_row(context, study, start, seed)
        for study in studies
        if study.tilt is not None
        for seed in range(context.seeds)
        for start in ENERGY_STARTS
    ]
    energies_over = means_over_seeds(energies, ["energy starts from"])
    energy_tables = [Table("Energies", energies, ENERGIES), Table("Energies, over seeds", energies_over)]
    about = "One network, pretrained on one text in several ways, then fine-tuned alike."
    tables = {"rows": rows, "over seeds": over, "energies": energies, "energies over seeds": energies_over, "paper": PAPER}
    return context.publish("XLNet: any order", about, [tasks, Section("As an energy", "", energy_tables)], tables, missing)


def run_local_xlnet(context: StudyContext) -> dict[str, Any]:
    """Full and local attention, with every seed."""
    studies, missing = local_studies(context.scale, context.out)
    rows, over, tasks = _task_rows(context, studies)
    about = "One size, one text, one objective; a position attends to everything, or to its chunk and both neighbours."
    tables = {"rows": rows, "over seeds": over, "paper": LOCAL_XLNET_PAPER}
    return context.publish("Local-XLNet", about, [tasks], tables, missing)


def _task_rows(context: StudyContext, studies: Sequence[XLNetStudy]) -> tuple[list[Row], list[Row], Section]:
    """The rows of all tasks, their means over seeds, and both as a section."""
    rows = [row for study in studies for row in context.rows(study, partial(pretrain_and_finetune, context, study))]
    over = means_over_seeds(rows, ["pretrained"])
    return rows, over, Section("Tasks", MEANING, [Table("Tasks", rows), Table("Tasks, over seeds", over)])


def pretrain_and_finetune(context: StudyContext, study: XLNetStudy, name: str, seed: int, run_dir: Path) -> Row:
    """The row of one pretraining objective: the metrics of every task on its test data."""
    start = pretrain(context, study, name, seed)
    row: Row = {"text": study.name, "pretrained": name, "seed": seed}
    for task, run in study.tasks.items():
        training = replace(run.training, seed=seed)
        result = finetune(replace(run, model=str(start), out=str(run_dir / task), training=training, resume=True))
        row |= {f"{task}, {metric}": value for metric, value in result.measured.items()}
    return row


def pretrain(context: StudyContext, study: XLNetStudy, name: str, seed: int) -> Path:
    """The folder of the pretrained network; without pretraining, that of its initial weights."""
    run_dir = context.run_dir(study.name, name, seed) / "pretrained"
    run = run_with_seed(study.models[name], run_dir, seed)
    if name != NO_PRETRAINING:
        if not exists_on_main_process(run_dir / RESULTS):
            train_base(run)
    elif not exists_on_main_process(run_dir / CONFIG):
        tokenizer = load_tokenizer(run.tokenizer.kind)
        space = Space(tokenizer.vocab_size, run.length.tokens)
        save_base(run_dir, build_base(run.base, space, rng=SeededRng(seed).stream("base")), tokenizer)
    return run_dir


def make_energy_row(context: StudyContext, study: XLNetStudy, start: str, seed: int) -> Row:
    """The row of an energy that starts from a pretrained network, on the one base of the study."""
    energy_base, tilt, base = study.energy_base, study.tilt, context.out / study.name / "base"
    if tilt is None or energy_base is None:
        raise ValueError(f"The study {study.name!r} has no energies. Nothing was made.")

    def make(run_dir: Path) -> Row:
        if not exists_on_main_process(base / RESULTS):
            train_base(replace(energy_base, out=str(base), resume=True))
        pretrained, training = pretrain(context, study, start, seed), replace(tilt.training, seed=seed)
        run = replace(tilt, out=str(run_dir), start=str(pretrained), training=training, resume=True)
        result = tilt_model(load(base), run).details
        assert isinstance(result, ContrastResult)
        measured = result.measured
        assert measured.tilted is not None and measured.reduction is not None
        columns = {"base": measured.base, "tilted": measured.tilted, "saved": measured.reduction}
        row = {"text": study.name, "energy starts from": start, "seed": seed, "best step": result.record.best_step}
        row |= {name: value["token"] for name, value in columns.items()}
        return row if measured.log_z is None else {**row, "log Z": measured.log_z}

    return context.row(study.name, f"energy from {start}", seed, make)
