"""Rows of the recipe on global autoregressive models: a base of a process, a set of features, the tilted model, the student.

The sample of the base r does not depend on the weights, so all sets of features share it. What is finished stays in the run
folder, one `cell.json` for each row, and is not done again.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.draws import Draws
from esscher.energies.declaration import Declared
from esscher.energies.declared import declared_features
from esscher.energies.features import Feature, LogLinear, values
from esscher.energies.motif_features import NAMES, declared_motif_features
from esscher.energies.saved import SavedEnergy, base_digest, save_energy
from esscher.estimate import Estimate
from esscher.estimators.log_z import log_z
from esscher.estimators.moments import moments
from esscher.estimators.perplexity import cross_entropy
from esscher.hub import Card, save_base
from esscher.objectives.moment_fit import MomentFit
from esscher.objectives.moment_match import match_moments
from esscher.randomness import Seeded
from esscher.recipes.gam_studies import Scale, Source
from esscher.recipes.rows import kept
from esscher.samplers.ancestral import Ancestral
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig
from esscher.settings.distil import DistilConfig
from esscher.settings.train import TrainRun
from esscher.settings.training import TrainingConfig
from esscher.space import empty_prompts
from esscher.target import Base, Tilted
from esscher.training.draws_in_pieces import collect
from esscher.verbs.distillation import Distilled, distil
from esscher.verbs.train import TrainResult, train

EVERY = "1111111"
RIDGE = 3.0  # standard deviation of weights: a distractor that neither data nor base show stays near 0


@dataclass(frozen=True)
class Ground:
    """What all feature sets of a source share."""

    source: Source
    scale: Scale
    folder: Path
    result: TrainResult
    declared: tuple[Declared, ...]
    features: list[Feature]
    pool: Draws
    of_pool: Float[Tensor, "N 7"]
    of_data: Float[Tensor, "M 7"]

    @property
    def base(self) -> Base:
        return self.result.base

    @property
    def entropy(self) -> float:
        return dict(self.result.points.truth)["entropy of the process"].value

    def nats(self, model: Tilted, draws: Draws | None = None) -> Estimate:
        """Cross-entropy on the test strings, per symbol."""
        material = self.result.points
        return cross_entropy(model, material.test, draws=draws, units=material.units)["token"]


def cells(source: Source, fts: tuple[str, ...], scale: Scale, out: Path) -> list[dict[str, Any]]:
    """The rows of a source, one for each feature set; finished ones are read, and all others stand on one ground."""
    ground = cache(lambda: stand(source, scale, out))

    def make(ft: str) -> dict[str, Any]:
        return cell(ground(), ft)

    return [kept(out / source.name / ft / "cell.json", partial(make, ft)) for ft in fts]


def stand(source: Source, scale: Scale, out: Path) -> Ground:
    """The base of a source, a sample of it, and all seven features of sample and data."""
    folder = out / source.name
    result = train_base(source, scale, folder)
    declared = declared_motif_features(source.motif, EVERY, rng=Seeded(source.seed).stream("distractors"))
    features = declared_features(declared)
    rng = Seeded(source.seed).stream("gam")
    pool = collect(Ancestral(), Tilted(result.base), empty_prompts(1), scale.draws, rng=rng, folder=folder / "draws")
    of_data = values(features, result.points.train)
    return Ground(source, scale, folder, result, declared, features, pool, values(features, pool.x), of_data)


def train_base(source: Source, scale: Scale, folder: Path) -> TrainResult:
    """The base r of a source: Adam at 1e-3, stopped by a patience of 20 as in the paper, or after so many updates."""
    batch = 50
    return train(
        TrainRun(
            out=str(folder / "base"),
            data=DataConfig(source=f"motif:{source.motif}", size=source.size, length=scale.length, mixture=source.mixture),
            base=BaseChoice(kind="lstm", width=scale.width),
            training=TrainingConfig(
                batch_size=batch,
                evaluate_every=max(1, min(source.size // batch, 50)),
                optimiser="adam",
                seed=source.seed,
                steps=source.updates or scale.updates,
                patience=20 if source.updates is None else None,
            ),
        ),
        resume=True,
    )


@dataclass(frozen=True)
class Fitted:
    """The weights of a feature set, the tilted model, and the base's draws weighted towards it."""

    fit: MomentFit
    teacher: Tilted
    weighted: Draws
    chosen: tuple[int, ...]  # places among the seven

    @property
    def fresh(self) -> Draws:
        """The half of the draws that the weights were not fitted on."""
        return self.weighted.columns(slice(self.weighted.log_weight.shape[1] // 2, None))


def fitted(ground: Ground, ft: str) -> Fitted:
    """Newton's weights for a feature set, on one half of the base's draws."""
    chosen = [place for place, bit in enumerate(ft) if bit == "1"]
    names = [NAMES[place] for place in chosen]
    fit = match_moments(names, ground.of_pool[: ground.scale.draws // 2, chosen], ground.of_data[:, chosen], ridge=RIDGE)
    teacher = Tilted(ground.base, LogLinear([ground.features[place] for place in chosen], fit.tensor()))
    weighted = replace(ground.pool, log_weight=(ground.of_pool[:, chosen] @ fit.tensor())[None])
    return Fitted(fit, teacher, weighted, tuple(chosen))


def cell(ground: Ground, ft: str) -> dict[str, Any]:
    """Weights, tilted model and student for one set of features."""
    tilted, folder, scale = fitted(ground, ft), ground.folder / ft, ground.scale
    save_energy(folder / "energy", _saved(ground, tilted))
    student = deepcopy(ground.result.base)
    worth = float(tilted.weighted.effective())
    if worth > scale.distilled / 2:
        config = DistilConfig("importance", scale.distilled, scale.draws)
    else:
        config = DistilConfig("cyclical", scale.distilled, 2 * scale.draws, stages=2)
    found = distil(
        tilted.teacher,
        student,
        empty_prompts(1),
        config,
        distil_training(ground),
        candidates=tilted.weighted,
        folder=folder,
        resume=True,
    )
    row = _row(ground, ft, tilted, student, found, config.method)
    card = Card(f"Student of {folder}", measured=[("cross-entropy", row["CE student"])])
    save_base(folder / "student", student, ground.result.material.tokenizer, card)
    return row


def _saved(ground: Ground, tilted: Fitted) -> SavedEnergy:
    declared = tuple(ground.declared[place] for place in tilted.chosen)
    known = base_digest(ground.result.base)
    return SavedEnergy(declared, tilted.fit.weights, str(ground.result.folder), known, log_z(tilted.fresh), ground.source.seed)


def distil_training(ground: Ground) -> TrainingConfig:
    """How a student that starts from the base's weights goes on."""
    return TrainingConfig(
        epochs=ground.scale.distil_epochs,
        batch_size=100,
        learning_rate=5e-4,
        schedule="linear",
        optimiser="adam",
        seed=ground.source.seed,
    )


def _row(ground: Ground, ft: str, tilted: Fitted, student: Base, found: Distilled, method: str) -> dict[str, Any]:
    source, entropy, fit, fresh = ground.source, ground.entropy, tilted.fit, tilted.fresh
    own = Ancestral()(Tilted(student), empty_prompts(1), 4000, rng=Seeded(source.seed).stream("own"))
    models = {
        "CE r": ground.nats(Tilted(ground.base)),
        "CE p": ground.nats(tilted.teacher, fresh),
        "CE student": ground.nats(Tilted(student)),
    }
    laws = {"r": replace(fresh, log_weight=torch.zeros_like(fresh.log_weight)), "p": fresh, "student": own}
    motif = {f"motif in {name}": with_motif(ground, draws) for name, draws in laws.items()}
    weights = dict(zip(fit.names, fit.weights, strict=True))
    return {
        "motif": source.motif,
        "data": source.kind,
        "ft": ft,
        "|D|": source.size,
        "base": source.trained,
        "seed": source.seed,
        "H": entropy,
        **models,
        "r / student": models["CE r"].value / models["CE student"].value,
        "student / H": models["CE student"].value / entropy,
        **motif,
        "weights": weights,
        "l1": fit.l1,
        "effective": fit.effective,
        "method": method,
        "drawn": found.cost,
        "kl to student": found.divergences["kl"],
        "notes": [str(one) for one in fit.warnings],
    }


def with_motif(ground: Ground, draws: Draws) -> Estimate:
    """The share of strings with the motif under the law that the draws are weighted to."""
    present = 1 - values(ground.features[:1], draws.x)
    return moments(draws, present.view(1, -1, 1))[0]
