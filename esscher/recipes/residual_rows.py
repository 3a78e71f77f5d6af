"""Rows of the recipe on residual energies: a plain model of equal capacity or an energy, on one base and its continuations.

A finished row stays in the run folder as `row.json` and is not made again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.bases.causal_lm import CausalLM
from esscher.bases.corrected import Corrected
from esscher.bases.grown import deepened, deepened_causal_lm
from esscher.bases.logits import LogitBase
from esscher.bases.network import build_base
from esscher.estimate import Estimate
from esscher.estimators.intervals import interval
from esscher.estimators.measured import Measured, measure_by
from esscher.estimators.perplexity import as_perplexity, cross_entropy
from esscher.objectives.likelihood import Likelihood
from esscher.randomness import Seeded
from esscher.recipes.residual_studies import ResidualStudy
from esscher.recipes.rows import ROW, kept, place_of, size_of
from esscher.samplers.scores import log_prob
from esscher.settings.tilt import TiltRun
from esscher.settings.train import TrainRun
from esscher.space import Sequences
from esscher.target import Base, Tilted
from esscher.training.evaluation import HeldOut
from esscher.training.trainer import Trainer
from esscher.verbs.contrast import LearntEnergy, judged
from esscher.verbs.models import Model, load_model
from esscher.verbs.tilt import read_sets, tilt
from esscher.verbs.train import train


@dataclass(frozen=True)
class Ground:
    """What all rows of a study share: the base, text to learn from and to choose by, and the continuations to judge by."""

    study: ResidualStudy
    folder: Path
    model: Model
    train: Sequences
    validation: Sequences
    test: Sequences
    units: dict[str, Tensor]


def names(study: ResidualStudy, seeds: int) -> list[tuple[str, int]]:
    """The rows of a study: its base, then every other row with every seed."""
    others = [*study.controls, *study.energies]
    return [("base", 0), *((name, seed) for name in others for seed in range(seeds))]


def prepare_ground(study: ResidualStudy, folder: Path) -> Ground:
    """Train the base, unless it is a folder already, and read the text."""
    if isinstance(study.base, TrainRun):
        train(study.base, resume=True)
    model = load_model(study.base if isinstance(study.base, str) else study.base.out, cut=study.cut)
    sets = read_sets(model, study.data)
    test, units = judged(sets, study.contrast.draws)
    return Ground(study, folder, model, sets.train, sets.validation, test, units)


def make_row(ground: Ground, name: str, seed: int) -> dict[str, Any]:
    """One row of the table, from the folder if it is there."""
    folder = place_of(ground.folder, name.replace("*", "-pretrained"), seed)

    def make() -> dict[str, Any]:
        if name == "base":
            found = _plain(ground, ground.model.base, size_of(ground.model.base))
        elif name in ground.study.controls:
            found = _control(ground, name, seed, folder)
        else:
            found = _energy(ground, name, seed, folder)
        return {"text": ground.study.name, "model": name, "seed": seed, **found}

    return kept(folder / ROW, make)


def _energy(ground: Ground, name: str, seed: int, folder: Path) -> dict[str, Any]:
    """An energy by noise contrast, in a folder that the command line reads."""
    study = ground.study
    choice, training = study.energies[name]
    data, cut = study.data, study.cut
    assert data.split != "raw"  # continuations are cut from texts
    settings = TiltRun(
        str(folder),
        data=data.source,
        unit=data.unit,
        separator=data.separator,
        split=data.split,
        energy=choice,
        contrast=study.contrast,
        training=training,
        max_length=cut.max_length,
        eos=cut.eos,
        given=cut.given,
        seed=seed,
    )
    found = tilt(str(ground.model.folder), settings, resume=True)
    assert isinstance(found, LearntEnergy) and found.measured.draws is not None
    learnt = cast(nn.Module, found.target.energy)
    fixed = measure_by(found.measured.draws, found.target, ground.test, units=ground.units, test="fixed")
    return {
        "parameters": size_of(ground.model.base) + size_of(learnt),
        **_columns(found.measured, fixed),
        "steps": found.record.best_step,
    }


def _columns(measured: Measured, fixed: Measured) -> dict[str, Any]:
    """What is told of a tilted model; `fixed` is of just these test sequences, the other of text like them."""
    assert measured.tilted is not None and measured.saved is not None and fixed.tilted is not None
    return {
        **_perplexities(measured.tilted),
        "per token, this test set": as_perplexity(fixed.tilted)["token"],
        **_gains(measured.saved),
        "log Z": measured.log_z,
        "reliable prompts": sum(one.verdict == "good" for one in measured.reliability) / len(measured.reliability),
    }


def _control(ground: Ground, name: str, seed: int, folder: Path) -> dict[str, Any]:
    """A plain language model of the size of base and energy, trained by likelihood of whole chunks."""
    base, study = ground.model.base, ground.study
    rng = Seeded(seed).stream("control", name)
    if name == "RALM":
        correction = build_base(study.correction, base.space, rng=rng)
        learner: nn.Module = correction
        control: nn.Module = Corrected(cast(LogitBase, base), cast(LogitBase, correction))
    else:
        deeper = deepened_causal_lm(base, study.deeper) if isinstance(base, CausalLM) else None
        control = learner = deeper if deeper is not None else deepened(base, study.deeper, rng=rng)  # type: ignore[arg-type]
    whole = Sequences(ground.train.tokens, torch.zeros_like(ground.train.start), ground.train.stop)
    record = Trainer(replace(study.controls[name], seed=seed))(
        Likelihood(),
        Tilted(cast(Base, control)),
        whole,
        modules=learner,
        validation=HeldOut(Likelihood(), ground.validation),
        folder=folder,
        resume=True,
    )
    size = size_of(base) + size_of(learner) if name == "RALM" else size_of(learner)
    return {**_plain(ground, cast(Base, control), size), "steps": record.best_step}


def _plain(ground: Ground, model: Base, parameters: int) -> dict[str, Any]:
    """A normalised model on the test data, beside the base."""
    nats = cross_entropy(Tilted(model), ground.test, units=ground.units)
    fixed = cross_entropy(Tilted(model), ground.test, units=ground.units, test="fixed")
    found = {
        "parameters": parameters,
        **_perplexities(nats),
        "per token, this test set": as_perplexity(fixed)["token"],
    }
    if model is ground.model.base:
        return found
    more = log_prob(model, ground.test) - log_prob(ground.model.base, ground.test)
    return {**found, **_gains({unit: _ratio(more, ground.units[unit].double(), unit) for unit in ("token", "word")})}


def _ratio(more: Float[Tensor, "B"], unit: Float[Tensor, "B"], name: str) -> Estimate:
    """Nats that a model saves against the base, by sequences as replicates."""

    def statistic(count: Tensor) -> Tensor:
        return (count[0] * more).sum() / (count[0] * unit).sum()

    method = f"{len(unit)} test sequences as a sample, paired with the base"
    return interval(statistic, [(1, len(unit))], level=0.95, draws=len(unit), method=method, unit=f"nats per {name}")


def _perplexities(nats: Mapping[str, Estimate]) -> dict[str, Estimate]:
    return {f"per {unit}": value for unit, value in as_perplexity(nats).items()}


def _gains(saved: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Nats saved for each token, and by how much less each word is perplexing."""
    word = saved["word"].map(lambda nats: float(-torch.expm1(torch.tensor(-nats, dtype=torch.float64))), unit="per word")
    return {"saved": saved["token"], "gain": word}
