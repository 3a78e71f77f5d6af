"""What esscher sample does with a model of images: a grid of draws as a PNG; classes, and given upper halves, as prompts."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from esscher.commands.output import Answer

if TYPE_CHECKING:
    from esscher.draws import Sampler
    from esscher.target import Tilted
    from esscher.verbs.models import Model


@dataclass(frozen=True)
class Picturing:
    """Of a model of images: what is given of them."""

    classes: Annotated[tuple[int, ...], Parameter(help="Of a model with classes: those to draw; all by default.")] = ()
    complete: Annotated[
        str | None, Parameter(help="A source of images, such as digits: their upper rows are given, the rest is drawn.")
    ] = None
    rows: Annotated[int | None, Parameter(help="How many rows are given; half of them by default.")] = None
    images: Annotated[int, Parameter(help="How many images to complete, the first ones.")] = 8

    def __post_init__(self) -> None:
        if self.images < 1:
            raise ValueError(f"At least 1 image is given, not {self.images}. Nothing was drawn.")


def image_answer(
    loaded: "Model", target: "Tilted", sampler: "Sampler", picturing: Picturing, draws: int, out: Path, *, seed: int
) -> Answer:
    """Draw, write the grid, and tell how likely each draw is. A row of the grid holds the draws of one prompt; where images are
    given, after the image itself and what was given of it."""
    from esscher.randomness import Seeded
    from esscher.reports.pictures import save_grid
    from esscher.verbs.paint import drawn_images, paint, prompts_of_classes

    columns: int | None
    if picturing.complete is None:
        prompts = prompts_of_classes(loaded, picturing.classes)
        shown, found = drawn_images(loaded, target, sampler, prompts, draws, rng=Seeded(seed))
        columns = draws if len(prompts) > 1 else None
    else:
        given = picturing.complete, picturing.rows, picturing.images
        shown, found = paint(loaded, target, sampler, *given, draws, rng=Seeded(seed))
        columns = draws + 2
    save_grid(out, shown, columns)
    rows = [
        {"prompt": number // draws, "draw": number % draws, "log_base": log_base, "log_weight": log_weight}
        for number, (log_base, log_weight) in enumerate(
            zip(found.log_base.view(-1).tolist(), found.log_weight.view(-1).tolist(), strict=True)
        )
    ]
    facts = {"drawn_from_the_base": found.cost, "independent_draws": found.independent, "seed": seed, "grid": out}
    return Answer("esscher sample", {"model": loaded.folder, **facts}, {"samples": rows})
