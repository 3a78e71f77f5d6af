"""One module a paper or study: `run(*, scale, out, seeds)` gives our rows beside the paper's.

This list is all that `esscher reproduce` knows, and imports no torch. A recipe's module is imported when run. Beside it stand

    ..._studies    what is studied at each scale, as settings that are told and not run
    ..._rows       how one row is made, and kept in its folder so that it is not made again
    ..._report     its page, where that is long

of this recipe or of several on one subject (stream: one long text; translation; image). What all recipes do with rows, with
data that a machine may have, and on their pages is in `rows`, `sources` and `report_parts`.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from esscher.launch import started

SCALES = ("smoke", "small", "paper")


@dataclass(frozen=True)
class Recipe:
    """A study by name; `smoke` ends within a minute on two cores, `paper` is the published size."""

    name: str
    paper: str
    about: str
    scales: tuple[str, ...] = SCALES
    text: bool = False  # whether it may be given a text of the user's
    alone: str = ""  # why several processes cannot share it

    def run(self, *, scale: str, out: Path, seeds: int, data: str | None = None) -> dict[str, Any]:
        """`{"rows": [...], "paper": [...]}`, and what else the recipe reports."""
        if scale not in self.scales:
            raise ValueError(f"Recipe {self.name!r} has no scale {scale!r}. Its scales are: {', '.join(self.scales)}.")
        if seeds < 1:
            raise ValueError(f"A recipe needs at least one seed; got --seeds {seeds}.")
        if data is not None and not self.text:
            raise ValueError(f"Recipe {self.name!r} has data of its own. Nothing was run; leave --data out.")
        if started() > 1 and self.alone:
            raise ValueError(
                f"{started()} processes were started, and recipe {self.name!r} is for one: {self.alone}. Nothing was run; "
                f"start one process."
            )
        out.mkdir(parents=True, exist_ok=True)
        module = import_module(f"esscher.recipes.{self.name.replace('-', '_')}")
        given = {} if data is None else {"data": data}
        result: dict[str, Any] = module.run(scale=scale, out=out, seeds=seeds, **given)
        return result


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("quickstart", "-", "train, tilt, measure, sample and report on embedded data"),
        Recipe(
            "gam",
            "Global autoregressive models (Parshakova et al., 2019)",
            "few strings, features, weights, students",
            alone="its policy gradients have one prompt, which cannot be shared",
        ),
        Recipe("laboratory", "Global autoregressive models (Parshakova et al., 2019)", "entropies of the motif processes"),
        Recipe(
            "residual",
            "Residual energy-based models (Deng et al., 2020; Bakhtin et al., 2021)",
            "energies over continuations beside plain models of equal size",
            scales=("smoke", "small", "pretrained", "paper"),
            text=True,
        ),
        Recipe(
            "residual-laboratory",
            "Residual energy-based models (Deng et al., 2020)",
            "trained energies against exact entropies, coverage and pools",
        ),
        Recipe("transformer-xl", "Transformer-XL (Dai et al., 2019)", "what a memory is worth on one long text"),
        Recipe("local-xl", "Local-XL (thesis of Dai, 2020); Wu et al. (2019)", "local attention and convolutions beside it"),
        Recipe(
            "xlnet", "XLNet (Yang et al., 2019)", "ways to pretrain one network, tasks it then learns, and a pretrained energy"
        ),
        Recipe("local-xlnet", "Local-XLNet (thesis of Dai, 2020)", "the same with local attention"),
        Recipe(
            "softmax-bottleneck",
            "Breaking the softmax bottleneck (Yang et al., 2018)",
            "one softmax, mixtures of contexts and of softmaxes: ranks and perplexities",
        ),
        Recipe("eforcing-lm", "E-Forcing (Anonymous, 2023)", "a model as its own energy-based model, beside other objectives"),
        Recipe(
            "eforcing-translation", "E-Forcing (Anonymous, 2023)", "the same on translation, and mixtures as heads of a decoder"
        ),
        Recipe("eforcing-images", "E-Forcing (Anonymous, 2023)", "the same on images: three kinds of PixelCNN"),
        Recipe("eforcing-backbones", "E-Forcing (Anonymous, 2023)", "the same on seven kinds of networks"),
        Recipe(
            "energy-gan",
            "Calibrating energy-based GANs (Dai et al., 2017)",
            "does a discriminator know the density?",
            alone="its games read whole batches",
        ),
        Recipe(
            "bad-gan",
            "Good semi-supervised learning that requires a bad GAN (Dai et al., 2017)",
            "classes from few labels beside a generator",
            alone="its games read whole batches",
        ),
        Recipe("coverage", "Residual energy-based models (Bakhtin et al., 2021)", "do the intervals cover the exact value?"),
    )
}


def find(name: str) -> Recipe:
    """The recipe of that name; an unknown one is an error that lists them all."""
    if name not in RECIPES:
        raise ValueError(f"No recipe named {name!r}. Choose from: {', '.join(RECIPES)}.")
    return RECIPES[name]
