"""`distil`: a plain model that approximates a tilted one, saved as a model folder like any other."""

import shlex
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from esscher.bases.network import NetworkBase, build_base
from esscher.core.estimate import Estimate
from esscher.core.folder_lock import locked_folder
from esscher.core.manifest import check_manifest
from esscher.core.randomness import SeededRng
from esscher.core.reading import read_text
from esscher.core.space import Sequences, empty_prompts, unique_prompts
from esscher.core.target import Base, Tilted
from esscher.data.splits import evenly_spaced
from esscher.energies.features import LogLinear, feature_values
from esscher.energies.self_energy import SELF
from esscher.estimators.expectations import moments
from esscher.estimators.perplexity import perplexity
from esscher.hub import ModelCard, save_base
from esscher.hub.folder import CARD
from esscher.objectives.likelihood import Likelihood
from esscher.reports.report import Report, to_json
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Importance
from esscher.training.collectives import barrier
from esscher.training.distillation import HELD_OUT, DistillationResult, distil
from esscher.training.resumable import ROWS_BY_DRAWS, ResumableByDraws
from esscher.workflow.calibration import FORWARD_SHARE, drawing, draws_on_disk, training_cost
from esscher.workflow.config.distil import DistilRun
from esscher.workflow.cost import Cost, Phase, before_start, written
from esscher.workflow.model import Model, load
from esscher.workflow.processors import EncodedSet
from esscher.workflow.proposal import NamedProposal, named_proposal
from esscher.workflow.run_folder import (
    DISTIL_SETTINGS,
    changed_settings,
    refuse_other_settings,
    run_settings,
    save_settings,
    write_results,
)
from esscher.workflow.tilt import DRAWS_PER_PROMPT, energy_data
from esscher.workflow.train import text_sampler
from esscher.workflow.twist import prompts_to_learn_from

DISTANCES = {
    "kl": "KL(tilted || model), nats",
    "reverse_kl": "KL(model || tilted), nats",
    "tv": "total variation",
    "js": "Jensen-Shannon, nats",
}

EXAMPLES = 8  # draws that stand for those that a student learns from, where its cost is estimated


@dataclass(frozen=True)
class DistilResult:
    """The student's folder, how near it came, how often its own draws show each feature, how well it predicts held-out data,
    and the report."""

    folder: Path
    device: torch.device
    distilled: DistillationResult
    rows: list[dict[str, Any]]
    held_out: Mapping[str, Mapping[str, Estimate]]  # perplexities by model and unit; empty without such data
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
    proposal = named_proposal(model, run)
    run = run if proposal is None else replace(run, proposal=proposal.name)
    with locked_folder(written(folder)):
        return _distil(model, run, folder, proposal)


def _distil(model: Model, run: DistilRun, folder: Path, proposal: NamedProposal | None) -> DistilResult:
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
    held_out, missing = _held_out(model, run)  # before the work, so that data that cannot be read cost nothing
    prompts = prompts_to_learn_from(model, run.distil.prompts)
    before_start(partial(_cost, model, student, prompts, run))
    barrier()  # nobody writes before all have looked
    save_settings(folder / DISTIL_SETTINGS, run)
    decode, first_prompt = model.decode(), prompts.tokens[0, : int(prompts.start[0])].tolist()
    result = distil(
        model.target,
        student,
        prompts,
        run.distil,
        training,
        proposal=None if proposal is None else proposal.base_for(model.target),
        stored=model.stored_estimates(first_prompt) if len(prompts) == 1 else None,
        folder=folder / "checkpoints",
        resume=run.resume,
        sample=None if decode is None else text_sampler(student, prompts, decode),
    )
    one_prompt = prompts if len(prompts) == 1 else empty_prompts(1)
    rows = _feature_rows(model.target.base, student, energy, result, one_prompt, run) if isinstance(energy, LogLinear) else []
    perplexities = {} if held_out is None else _held_out_perplexities(model, student, held_out, result, run)
    distances = [
        {"distance": DISTANCES[name], "base": result.base_divergences[name], "student": value}
        for name, value in result.divergences.items()
    ]
    save_base(folder, student, model.data.artifact, _card(model, run, result))
    results = {"drawn": result.cost, "divergences": result.divergences, "log_z": result.log_z, "features": rows}
    base_results = {"base_divergences": result.base_divergences, "nearer": result.nearer, "held_out": perplexities}
    write_results(folder, to_json({"folder": folder, **results, **base_results}))
    held_out_rows = [
        {"per": unit, **{name: by_unit[unit] for name, by_unit in perplexities.items()}}
        for unit in next(iter(perplexities.values()), {})
    ]
    tables = {"distance_to_the_tilted_model": distances, "perplexity_on_held_out_data": held_out_rows, "features": rows}
    facts = {
        "nearer_than_the_base_by": result.nearer, "reliability": result.reliability.verdict, "student": run.out, **model.facts,
        **({} if proposal is None else proposal.facts), "method": result.method, "drawn": result.cost,
        "ess": sum(round(stage.ess) for stage in result.stages), "log_z": result.log_z, "seed": training.seed,
    }  # fmt: skip
    details = ("method", "drawn", "ess", "log_z")
    notes = [*result.warnings, *missing, *_proposal_offer(model, run, result)]
    report = Report("esscher distil", facts, tables, notes, details=details)
    return DistilResult(
        folder,
        model.device,
        result,
        rows,
        perplexities,
        report.save(folder, {"model": model.name, **run_settings(run)}, changed=changed_settings(run)),
    )


def _proposal_offer(model: Model, run: DistilRun, result: DistillationResult) -> list[str]:
    """The command that measures the tilted model with the student as its proposal, where that is nearer than the base."""
    if model.folder is None or model.energy_name is None or not result.nearer.low > 0:
        return []
    if model.energy_folder is None and model.energy_name != SELF:
        return []  # an energy of your own has no name to load it by
    source = "FILE" if run.source is None else str(run.source.source)
    command = ["esscher", "measure", model.name, "--energy", model.energy_name, "--proposal", run.out, "--data", source]
    return [f"The student is a proposal for the tilted model, for narrower intervals of log Z:\n{shlex.join(command)}"]


def _held_out(model: Model, run: DistilRun) -> tuple[EncodedSet | None, list[str]]:
    """Data to measure base, tilted model and student on: those of the settings, or what was held out of the training of the
    energy or the base; else None, with a note if they cannot be read."""
    if run.source is not None:
        available = model.data.read(run.source, model.trained)
    elif model.trained is None or model.stored_prompt is not None or model.target.base is not model.base:
        return None, []  # what follows one prompt, or is truncated, is no model of the whole data
    else:
        try:
            splits = model.training_splits(energy_data(model))
        except (OSError, ValueError) as error:
            reason = str(error).split(". ")[0]
            return None, [f"No perplexity on held-out data: {reason}. Name some with --data."]
        available = EncodedSet(splits.test, splits.units, "held out of the training data")
    one_prompt = len(unique_prompts(available.x)[0]) == 1
    most = run.distil.evaluation_draws if one_prompt else max(2, run.distil.evaluation_draws // DRAWS_PER_PROMPT)
    return available.rows(evenly_spaced(len(available), most)), []


def _held_out_perplexities(
    model: Model, student: Base, held_out: EncodedSet, result: DistillationResult, run: DistilRun
) -> dict[str, Mapping[str, Estimate]]:
    """Perplexities per unit of base, tilted model and student on held-out data. The student's draws, weighted, estimate log Z
    if they have the one prompt of the data."""
    x, prompts, draws = held_out.x, unique_prompts(held_out.x)[0], result.draws
    if len(prompts) > 1 or draws.prompts().prompt_keys()[:1] != prompts.prompt_keys() or len(draws.log_weight) > 1:
        rng = SeededRng(run.training.seed).stream("held-out")
        count = run.distil.evaluation_draws if len(prompts) == 1 else DRAWS_PER_PROMPT
        draws = Importance()(model.target, prompts, max(2, count), rng=rng)
    return {
        "base": perplexity(Tilted(model.base), x, units=held_out.units),
        "tilted": perplexity(model.target, x, draws=draws, units=held_out.units),
        "student": perplexity(Tilted(student), x, units=held_out.units),
    }


def _cost(model: Model, student: Any, prompts: Sequences, run: DistilRun) -> Cost:
    """Candidates, training of the student in each stage, and the draws that it is measured on. Draws of the base stand for
    those that the student learns from."""
    config, training, length = run.distil, run.training, model.base.space.max_length
    stages = config.stages if config.method == "cyclical" else 1
    candidates = drawing("candidates", model.target, prompts, -(-config.candidates // len(prompts)), at_once=ROWS_BY_DRAWS)
    reweighted = config.method in ("auto", "reweighted")  # learns from all candidates, beside the base's own distributions
    learnt = int((1 - HELD_OUT) * candidates.count) if reweighted else config.draws
    updates = training.steps or -(-(training.epochs or training.default_epochs) * learnt // training.batch_size)
    if config.method == "policy-gradient":
        updates = max(1, int((1 - HELD_OUT) * config.candidates) // config.draws_per_step)
    few = Ancestral()(Tilted(model.base), prompts.rows(slice(0, 1)), EXAMPLES, rng=SeededRng(0)).x
    example = few.rows(torch.arange(max(2, training.batch_size)) % EXAMPLES)
    estimate = training_cost(
        replace(training, steps=updates, epochs=None), Likelihood(training.label_smoothing), Tilted(student), example,
        modules=student, validation=None,
    )  # fmt: skip
    (one,) = estimate.phases
    rows = config.draws_per_step if config.method == "policy-gradient" else training.batch_size
    train = replace(
        one,
        count=stages * updates,
        each=estimate.row.scaled(rows * (1 + FORWARD_SHARE * reweighted)),
        size=f"{rows:,} draws",
        tokens=stages * one.tokens,
    )
    held_out, epoch = int(HELD_OUT * learnt), -(-learnt // training.batch_size)
    evaluations = -(-updates // (training.evaluate_every or epoch))
    evaluation = Phase(
        "evaluation", stages * evaluations, "evaluations", estimate.row.scaled(held_out * FORWARD_SHARE), f"{held_out:,} draws"
    )
    judged = replace(candidates, name="measurement", count=config.evaluation_draws, tokens=config.evaluation_draws * length)
    disk = estimate.weights + stages * estimate.checkpoints + draws_on_disk(candidates.count, length)
    notes = (f"plain draws until {config.draws:,} are accepted; how many that takes depends on the energy.",)
    return Cost(
        "esscher distil", (candidates, train, evaluation, judged), run.out, disk, estimate.memory,
        notes if config.method == "plain" else (), {"device": model.placement, "method": config.method},
    )  # fmt: skip


def _card(model: Model, run: DistilRun, result: DistillationResult) -> ModelCard:
    folder, notes = model.energy_folder, ""
    if folder is not None:
        check_manifest(folder, [CARD])
        notes = read_text(folder / CARD).partition("# ")[2]
    energy = "its own logsumexp" if model.energy_name == SELF else "an energy" if folder is None else folder.name
    return ModelCard(
        title=f"{Path(model.name).name}, tilted by {energy}, distilled",
        data=f"{result.cost:,} sequences drawn by the method `{result.method}`.",
        training={"model": model.name, "energy": None if folder is None else str(folder), **run_settings(run)},
        results=[
            *((f"{name}, tilted model to student", value) for name, value in result.divergences.items()),
            ("kl, tilted model to base", result.base_divergences["kl"]),
        ],
        notes=notes,
    )


def _feature_rows(
    base: Base, student: Base, energy: LogLinear, result: DistillationResult, prompt: Sequences, run: DistilRun
) -> list[dict[str, Any]]:
    """Each feature's mean in draws of the base and of the student, and under the teacher."""
    rng, count = SeededRng(run.training.seed).stream("features"), run.distil.evaluation_draws
    plain = ResumableByDraws(Ancestral())(Tilted(base), prompt, count, rng=rng)
    teacher, drawn = result.draws, Ancestral()(Tilted(student), prompt, count, rng=rng.stream("student"))
    columns = [
        moments(draws, feature_values(energy.features, draws.x).view(1, -1, len(energy.features)))
        for draws in (plain, teacher, drawn)
    ]
    titles = ("base", "tilted", "student")
    return [
        {"feature": feature.name, **{title: column[number] for title, column in zip(titles, columns, strict=True)}}
        for number, feature in enumerate(energy.features)
    ]
