"""`distil`: a plain model that approximates a tilted one, saved as a model folder like any other."""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from esscher.bases.network import NetworkBase, build_base
from esscher.core.folder_lock import locked_folder
from esscher.core.manifest import check_manifest
from esscher.core.randomness import SeededRng
from esscher.core.reading import read_text
from esscher.core.space import Sequences, empty_prompts, unique_prompts
from esscher.core.target import Base, Tilted
from esscher.data.splits import evenly_spaced_rows
from esscher.energies.features import LogLinear, feature_values
from esscher.energies.self_energy import SELF
from esscher.estimators.expectations import moments
from esscher.hub import ModelCard, save_base
from esscher.hub.folder import CARD
from esscher.reports.report import Report, to_json
from esscher.samplers.ancestral import Ancestral
from esscher.training.collectives import barrier
from esscher.training.distillation import DistillationResult, distil
from esscher.training.resumable import ResumableByDraws
from esscher.workflow.config.distil import DistilRun
from esscher.workflow.model import Model, load
from esscher.workflow.processors import ImageProcessor
from esscher.workflow.run_folder import (
    DISTIL_SETTINGS,
    changed_settings,
    refuse_other_settings,
    run_settings,
    save_settings,
    write_results,
)
from esscher.workflow.tilt import energy_data
from esscher.workflow.train import text_sampler


@dataclass(frozen=True)
class DistilResult:
    """The student's folder, how near it came, how often its own draws show each feature, and the report."""

    folder: Path
    device: torch.device
    distilled: DistillationResult
    rows: list[dict[str, Any]]
    report: Report

    @property
    def model(self) -> Model:
        """The student, loaded from its folder."""
        return load(self.folder, device=str(self.device))


def distil_model(model: Model, run: DistilRun) -> DistilResult:
    """Distil a tilted model as the settings say, and save the student in `run.out`."""
    folder = Path(run.out)
    if not model.is_tilted:
        raise ValueError(f"{model.name} is not tilted, so it is a plain model already. Nothing was drawn; name an energy.")
    with locked_folder(folder):
        return _distil(model, run, folder)


def _distil(model: Model, run: DistilRun, folder: Path) -> DistilResult:
    if run.resume:
        refuse_other_settings(folder / DISTIL_SETTINGS, run)
    elif (folder / DISTIL_SETTINGS).is_file():
        raise FileExistsError(
            f"{folder} already holds a distillation. Nothing was changed; go on with --resume, or choose another --out."
        )
    base, energy, training = model.base, model.target.energy, run.training
    if not run.fresh:
        student = deepcopy(base).float()  # what learns is float32
    elif isinstance(base, NetworkBase):
        student = build_base(base.config, base.space, rng=SeededRng(training.seed).stream("base")).to(model.device)
    else:
        raise ValueError(
            f"A {type(base).__name__} is not built anew here. Nothing was drawn; leave --fresh out, so that the student starts "
            f"from the base's weights."
        )
    barrier()  # nobody writes before all have looked
    save_settings(folder / DISTIL_SETTINGS, run)
    prompts = _prompts(model, run)
    decode = model.decode()
    result = distil(
        model.target,
        student,
        prompts,
        run.distil,
        training,
        folder=folder / "checkpoints",
        resume=run.resume,
        sample=None if decode is None else text_sampler(student, prompts, decode),
    )
    rows = _feature_rows(base, student, energy, result, run) if isinstance(energy, LogLinear) else []
    save_base(folder, student, model.data.artifact, _card(model, run, result))
    results = {"drawn": result.cost, "divergences": result.divergences, "log_z": result.log_z, "features": rows}
    write_results(folder, to_json({"folder": folder, **results}))
    facts = {
        **model.facts, "student": run.out, "method": run.distil.method, "drawn": result.cost,
        "ess": [round(stage.ess) for stage in result.stages], "log_z": result.log_z, "reliability": result.reliability.verdict,
        "seed": training.seed,
    }  # fmt: skip
    distance = [{"from the tilted model to the student": name, "value": value} for name, value in result.divergences.items()]
    notes = [] if result.reliability.verdict == "good" else [result.reliability.advice]
    report = Report("esscher distil", facts, {"features": rows, "distance": distance}, notes)
    return DistilResult(
        folder,
        model.device,
        result,
        rows,
        report.save(folder, {"model": model.name, **run_settings(run)}, changed=changed_settings(run)),
    )


def _card(model: Model, run: DistilRun, result: DistillationResult) -> ModelCard:
    folder, notes = model.energy_folder, ""
    if folder is not None:
        check_manifest(folder, [CARD])
        notes = read_text(folder / CARD).partition("# ")[2]
    energy = "its own logsumexp" if model.energy_name == SELF else "an energy" if folder is None else folder.name
    return ModelCard(
        title=f"{Path(model.name).name}, tilted by {energy}, distilled",
        data=f"{result.cost:,} sequences drawn by the method `{run.distil.method}`.",
        training={"model": model.name, "energy": None if folder is None else str(folder), **run_settings(run)},
        results=[(f"{name}, tilted model to student", value) for name, value in result.divergences.items()],
        notes=notes,
    )


def _prompts(model: Model, run: DistilRun) -> Sequences:
    """The empty prompt; the classes of images; or prompts of the data that the energy was trained on."""
    if isinstance(model.processor, ImageProcessor):
        return model.processor.class_prompts().x
    if not model.prompt_tokens:
        return empty_prompts(1)
    train = model.training_splits(energy_data(model)).train
    return unique_prompts(evenly_spaced_rows(train, run.distil.prompts))[0]


def _feature_rows(
    base: Base, student: Base, energy: LogLinear, result: DistillationResult, run: DistilRun
) -> list[dict[str, Any]]:
    """Each feature's mean in draws of the base and of the student, and under the teacher."""
    rng, count = SeededRng(run.training.seed).stream("features"), run.distil.evaluation_draws
    plain = ResumableByDraws(Ancestral())(Tilted(base), empty_prompts(1), count, rng=rng)
    teacher, drawn = result.draws, Ancestral()(Tilted(student), empty_prompts(1), count, rng=rng.stream("student"))
    columns = [
        moments(draws, feature_values(energy.features, draws.x).view(1, -1, len(energy.features)))
        for draws in (plain, teacher, drawn)
    ]
    titles = ("base", "tilted", "student")
    return [
        {"feature": feature.name, **{title: column[number] for title, column in zip(titles, columns, strict=True)}}
        for number, feature in enumerate(energy.features)
    ]
