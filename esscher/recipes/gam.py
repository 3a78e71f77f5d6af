"""Global autoregressive models (Parshakova, Andreoli, Dymetman, 2019): few strings, and features of the whole string.

For each process and size of the data: a base r, one sample of it, and for each set of features the weights, the
tilted model p and the distilled student. The sample of r does not depend on the weights, so all of them share it.
What is finished stays in the run folder, one `cell.json` for each row, and is not done again.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
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
from esscher.samplers.ancestral import Ancestral
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig
from esscher.settings.distil import DistilConfig
from esscher.settings.train import TrainRun
from esscher.settings.training import TrainingConfig
from esscher.space import empty_prompts
from esscher.storage import write_json
from esscher.target import Base, Tilted
from esscher.training.draws_in_pieces import collect
from esscher.training.processes import is_made
from esscher.verbs.distillation import Distilled, distil
from esscher.verbs.train import TrainResult, train

FTS = ("1001111", "1011111", "0111111")
EVERY = "1111111"
RIDGE = 3.0  # standard deviation of weights: a distractor that neither data nor base show stays near 0
MOTIFS = ("10001011111000", "01011101101", "001001100111", "1011100111001", "100010100011")
PAPER = [
    dict(
        zip(("|D|", "pure: r / student", "pure: student / H", "mixture: r / student", "mixture: student / H"), row, strict=True)
    )
    for row in (
        (500, "1.24 ± 0.07", "1.19 ± 0.07", "1.23 ± 0.03", "1.16 ± 0.03"),
        (1000, "1.24 ± 0.07", "1.16 ± 0.07", "1.21 ± 0.03", "1.14 ± 0.03"),
        (5000, "1.18 ± 0.08", "1.09 ± 0.05", "1.16 ± 0.05", "1.08 ± 0.04"),
        (10000, "1.08 ± 0.10", "1.04 ± 0.02", "1.02 ± 0.03", "1.04 ± 0.03"),
        (20000, "0.99 ± 0.01", "1.02 ± 0.01", "0.99 ± 0.00", "1.02 ± 0.00"),
    )
]
"""Table 3 of the paper, regime rs: cross-entropies on the test set, averaged over motifs and features."""


@dataclass(frozen=True)
class Source:
    """A process, how much of it is seen, and for how many updates; None: until 20 evaluations bring nothing."""

    motif: str
    mixture: float  # the share of strings that hold the motif; 1 is the paper's pure process
    size: int
    updates: int | None
    seed: int

    @property
    def kind(self) -> str:
        return "pure" if self.mixture == 1 else "mixture"

    @property
    def trained(self) -> str:
        return "to the end" if self.updates is None else f"{self.updates} updates"

    @property
    def name(self) -> str:
        brief = "" if self.updates is None else f"-{self.updates}updates"
        return f"{self.motif}-{self.kind}-{self.size}{brief}-seed{self.seed}"


@dataclass(frozen=True)
class Scale:
    """What differs between the scales."""

    length: int
    width: int
    updates: int  # of a base, at most
    draws: int  # of a base: half to fit weights by, half to estimate log Z by, all to distil from
    distilled: int  # strings that a student learns from
    distil_epochs: int
    motifs: tuple[str, ...]
    sizes: tuple[int, ...]
    mixtures: tuple[float, ...]
    fts: tuple[str, ...]
    few: tuple[int, ...]  # more sizes for the first motif, pure, with the first features
    descent: int  # epochs of the stochastic regimes, at most
    brief: int  # updates of bases that are stopped early, for the first motif, pure

    def cells(self, seeds: int) -> Iterator[tuple[Source, tuple[str, ...]]]:
        """All sources with their feature sets; seeds after the first repeat the first motif, pure, first features."""
        for motif in self.motifs:
            for mixture in self.mixtures:
                for size in self.sizes:
                    yield Source(motif, mixture, size, None, 0), self.fts
        for seed in range(1, seeds):
            for size in self.sizes:
                yield Source(self.motifs[0], 1.0, size, None, seed), self.fts[:1]
        for size in self.few:
            yield Source(self.motifs[0], 1.0, size, None, 0), self.fts[:1]
        for size in (*self.few[-1:], *self.sizes):
            yield Source(self.motifs[0], 1.0, size, self.brief, 0), self.fts[:1]


SCALES = {
    "smoke": Scale(12, 32, 60, 3_000, 1_000, 1, ("1000101",), (200,), (1.0, 0.9), FTS[:1], (), 4, 20),
    "small": Scale(30, 200, 2_000, 40_000, 20_000, 2, MOTIFS[:2], (500, 5000), (1.0, 0.9), FTS, (100, 200), 40, 250),
    "paper": Scale(
        30, 200, 40_000, 400_000, 20_000, 20, MOTIFS, (500, 1000, 5000, 10000, 20000), (1.0, 0.9), FTS, (100, 200), 200, 250
    ),
}


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


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """All cells, the studies of regimes and of ways to distil, and a report."""
    from esscher.recipes.gam_report import report, summary
    from esscher.recipes.gam_studies import regimes, ways

    chosen = SCALES[scale]
    rows = [row for source, fts in chosen.cells(seeds) for row in cells(source, fts, chosen, out)]
    weak = next(source for source, _ in chosen.cells(1) if source.updates is not None and source.size == chosen.sizes[0])
    ground = stand(weak, chosen, out)
    found = {"regimes": regimes(ground), "ways": ways(ground)}
    report(out / "report.html", rows, found, ground)
    studies = {name: study.rows for name, study in found.items()}
    return {"rows": [shown(row) for row in rows], "summary": summary(rows), "paper": PAPER, **studies}


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """What a table has room for; `cell.json` has all."""
    names = ("motif", "data", "ft", "|D|", "base", "seed", "CE r", "CE p", "CE student", "student / H", "motif in student")
    return {name: row[name] for name in names}


def cells(source: Source, fts: tuple[str, ...], scale: Scale, out: Path) -> list[dict[str, Any]]:
    """The rows of a source, one for each feature set; finished ones are read."""
    files = [out / source.name / ft / "cell.json" for ft in fts]
    ground = None if all(is_made(file) for file in files) else stand(source, scale, out)
    rows = []
    for ft, file in zip(fts, files, strict=True):
        if not is_made(file):
            assert ground is not None
            write_json(file, pack(cell(ground, ft)))
        rows.append(unpack(json.loads(file.read_text(encoding="utf8"))))
    return rows


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


def pack(value: Any) -> Any:
    """A row in terms of JSON; `unpack` is its inverse."""
    if isinstance(value, Estimate):
        return {"estimate": value.to_dict()}
    if isinstance(value, dict):
        return {key: pack(one) for key, one in value.items()}
    return [pack(one) for one in value] if isinstance(value, list | tuple) else value


def unpack(value: Any) -> Any:
    """What `pack` was given."""
    if isinstance(value, dict):
        return Estimate(**value["estimate"]) if set(value) == {"estimate"} else {key: unpack(one) for key, one in value.items()}
    return [unpack(one) for one in value] if isinstance(value, list) else value
