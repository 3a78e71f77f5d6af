"""Rows of the recipe on few labels: a model of a study with one draw of labels, judged once, by test points, when it is done.

The classes it tells of all test points are kept in the run folder, so that models are compared point by point and a finished
row is not made again; so are generated points, and in the plane the class of every cell. Validation points are looked at while
learning, for a curve; nothing is chosen by them, and the weights judged are the last ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esscher.adversarial.classifier_networks import settle_game
from esscher.adversarial.complement_gan import ComplementGan, LowDensity, Supervised
from esscher.adversarial.grid import Grid
from esscher.adversarial.networks import Game, in_pieces
from esscher.adversarial.points import Points
from esscher.adversarial.probes import error_rate
from esscher.data.image_points import FewLabels
from esscher.estimate import Estimate
from esscher.randomness import Seeded
from esscher.recipes.bad_gan_studies import FewLabelStudy, Terms, few_label_studies
from esscher.recipes.rows import ROW, kept, mean_of, means_over_seeds, place_of
from esscher.storage import read_tensors, write_tensors
from esscher.training.trainer import Trainer

TOLD = "told.safetensors"
SETTLING, SHOWN, CELLS = 500, 64, 100
AGAINST = "FM"


def make_row(scale: str, study: str, model: str, draw: int, out: Path) -> dict[str, Any]:
    """The test error of one model, from the folder if it is there."""
    found = _find(scale, study, model)
    place = place_of(out / found.name, model, draw)

    def make() -> dict[str, Any]:
        sets, terms = found.supply.sets(draw), found.models[model]
        infers = terms is not None and terms.variational > 0
        game = found.nets.build(classes=found.classes, inference=infers, rng=Seeded(draw, "networks"))
        by = getattr(sets, found.settled_by).values[:SETTLING]
        settle_game(game, by, rng=Seeded(draw, "settling"))
        steps = _learn(found, game, sets, terms, draw, place)
        told = in_pieces(game.discriminator, sets.test.values, 1_000).argmax(-1)
        write_tensors(place / TOLD, {"told": told, "wrong": _wrong(told, sets.test), **_shown(game, sets, draw)})
        return {"points": found.name, "model": model, "draw": draw, "steps": steps}

    row = kept(place / ROW, make)
    return {**row, "error": error_rate(read_tensors(place / TOLD)["wrong"])}


def make_density(scale: str, study: str, out: Path) -> float:
    """Learn the density of a study beforehand, which all rows with LD use; its threshold for the first draw."""
    found = _find(scale, study, None)
    return found.supply.density(found.supply.sets(0), out / found.name / "density")[1]


def over_draws(rows: Sequence[Mapping[str, Any]], out: Path) -> list[dict[str, Any]]:
    """Mean errors over draws of labels, and what each model saves against feature matching, point by point; nothing of one."""
    told = [{**row, "saved": None if row["model"] == AGAINST else saved(row, out)} for row in rows]
    return means_over_seeds(told, ("points", "model"), ("error", "saved"))


def saved(row: Mapping[str, Any], out: Path) -> Estimate:
    """Errors that a model saves against feature matching with the same labels, in percent of the test points."""
    places = (place_of(out / row["points"], model, row["draw"]) for model in (row["model"], AGAINST))
    own, other = (read_tensors(place / TOLD)["wrong"].double() for place in places)
    return mean_of(100 * (other - own), method="points as pairs", unit="%")


def _find(scale: str, study: str, model: str | None) -> FewLabelStudy:
    known, left_out = few_label_studies(scale)
    found = next((one for one in known if one.name == study), None)
    if found is None or (model is not None and model not in found.models):
        names = "; ".join(f"{one.name}: {', '.join(one.models)}" for one in known)
        raise ValueError(f"There is no row {study!r}, {model!r} at {scale}; known are {names}. {' '.join(left_out)}".strip())
    return found


def _learn(study: FewLabelStudy, game: Game, sets: FewLabels, terms: Terms | None, draw: int, place: Path) -> int:
    """Play the game, or learn from the labels; the updates it took."""
    held_out = sets.validation
    looks = _validation(game, held_out) if len(held_out) else None
    if terms is None:
        training = replace(study.by_labels, seed=draw, batch_size=min(study.by_labels.batch_size, len(sets.labelled)))
        only, paces = {"discriminator": game.discriminator}, {"discriminator": study.paces["discriminator"]}
        return Trainer(training)(
            Supervised(), game, sets.labelled, modules=only, paces=paces, validation=looks, folder=place, resume=True
        ).steps
    low = None
    if terms.low_density:
        density, threshold = study.supply.density(sets, place.parent / "density")
        low = LowDensity(density, threshold, terms.low_density, study.start, study.share, study.points)
    objective = ComplementGan(
        sets.labelled, study.labelled, study.matching, terms.pull_away, terms.variational, low_density=low,
        conditional_entropy=terms.conditional_entropy, unlabelled=study.unlabelled, fresh=study.fresh,
    )  # fmt: skip
    paces = {name: study.paces[name] for name in game.players}
    training = replace(study.training, seed=draw)
    return Trainer(training)(
        objective, game, sets.unlabelled, modules=game.players, paces=paces, validation=looks, folder=place, resume=True
    ).steps


def _validation(game: Game, held_out: Points) -> Callable[[], Estimate]:
    def look() -> Estimate:
        told = in_pieces(game.discriminator, held_out.values, 1_000).argmax(-1)
        return error_rate(_wrong(told, held_out))

    return look


def _wrong(told: Tensor, points: Points) -> Tensor:
    """1 where the class of a point is told wrong, else 0."""
    assert points.labels is not None
    return told.cpu().ne(points.labels).long()


@torch.no_grad()
def _shown(game: Game, sets: FewLabels, draw: int) -> dict[str, Tensor]:
    """Generated points; in the plane also the labelled ones, some without labels, and the class and the box of every cell."""
    made = game.generator.draw(SHOWN if sets.test.values.ndim > 2 else 1_000, rng=Seeded(draw, "shown"))
    if sets.test.values.ndim > 2:
        return {"made": made}
    grid = Grid.around(sets.unlabelled, CELLS)
    classes = in_pieces(game.discriminator, grid.centres).argmax(-1)
    labels = sets.labelled.labels
    assert labels is not None
    box = torch.tensor([*grid.low, *grid.high], dtype=torch.float64)
    data = {"labelled": sets.labelled.values, "labels": labels, "data": sets.unlabelled.values}
    return {"made": made, "classes": classes, "box": box, **data}
