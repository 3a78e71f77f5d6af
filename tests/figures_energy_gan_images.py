"""Blocks of `figures.py` on energy GANs: probes and rankings of images from `images.json` of `energy-gan-images`, and entropy
gradients from `gradients.json` of `energy-gan-gradients`."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from figures_cells import kept_tables, with_interval

Figures = Mapping[str, object]
Row = Mapping[str, object]
NOT_RUN = "\n*Not run.*\n"
PROBES = {"probe, convolution 1": "convolution 1", "probe, convolution 2": "convolution 2", "probe, features": "features"}
THESIS = {"random": "3.41", "GAN": "1.26", "EGAN-Const": "1.34", "EGAN-Ent-NN": "1.19"}  # Table B.3, means of 10 probes
RANKINGS = {
    "distance of lowest": "distance, lowest energy",
    "distance of highest": "distance, highest energy",
    "highest further than lowest": "difference",
    "real among lowest": "real among lowest, %",
    "real among highest": "real among highest, %",
    "mean image": "mean image off by",
}
ONES_CAPTION = (
    "Ones of MNIST, seed 0: of 500 draws and 500 test images (in a box), the 100 of lowest and of highest energy, and the mean "
    "training image."
)
ARROWS_CAPTION = (
    "seed 0: points of the generator over data, and the arrows along which its loss moves them, by the cost, by the entropy, "
    "by both, and by the entropy if its gradient were that of the data."
)


def image_figures(folder: Path) -> dict[str, object]:
    """Levels and effects of `images.json`, rounded."""
    return _kept(folder / "images.json", "probes", "probe effects", "rankings", "ranking effects")


def gradient_figures(folder: Path) -> dict[str, object]:
    """Levels and effects of `gradients.json`, rounded."""
    return _kept(folder / "gradients.json", "known", "games", "effects")


def _kept(file: Path, *tables: str) -> dict[str, object]:
    """These tables of a file, and of which games it has pictures."""
    return {**kept_tables(file, *tables), "pictured": json.loads(file.read_text())["pictured"]}


def status(figures: Figures) -> str:
    """How much was run."""
    if figures["missing"]:
        return f"\n**Not complete**: {figures['missing']} rows are not made; an effect of fewer than two seeds is *open*.\n"
    return "\nComplete: every row of the recipe is made.\n"


def probes(figures: Figures) -> str:
    """A line for each set of images and game: the error of a probe after each block, and how far the mean image is off.
    One seed has the interval for other images."""
    head = ["images", "game", "seeds", *PROBES.values(), "thesis, MNIST, features", "mean image off by"]

    def cells(row: Row) -> list[object]:
        thesis = THESIS.get(str(row["model"]), "-") if row["images"] == "MNIST" else ""
        return [row["images"], row["model"], row["seeds"], *_numbers(row, PROBES), thesis, *_numbers(row, ["mean image"])]

    return _table(head, figures["probes"], cells)


def probe_effects(figures: Figures) -> str:
    """A line for each set of images, layer and game: points of error that EGAN-Ent-NN has less."""
    head = ["images", "layer", "against", "points of error less", "thesis", "verdict"]

    def cells(row: Row) -> list[object]:
        thesis = "" if row["thesis"] is None else f"{row['thesis']:.3g}"
        return [row["images"], row["layer"], row["against"], _effect(row["less error"]), thesis, f"*{row['verdict']}*"]

    return _table(head, figures["probe effects"], cells)


def rankings(figures: Figures) -> str:
    """A line for each game: both ends of its ranking."""
    head = ["images", "game", "seeds", *RANKINGS.values()]
    return _table(head, figures["rankings"], lambda row: [row["images"], row["model"], row["seeds"], *_numbers(row, RANKINGS)])


def ranking_effects(figures: Figures) -> str:
    """A line for each claim on rankings."""
    head = ["further from the mean image: highest energy than lowest, in", "more than in", "by, over seeds", "verdict"]

    def cells(row: Row) -> list[object]:
        return [row["model"], row["against"], _effect(row["highest further than lowest"]), f"*{row['verdict']}*"]

    return _table(head, figures["ranking effects"], cells)


def ones_picture(figures: Figures) -> str:
    """The figure of the rankings, if it was made."""
    if not figures["pictured"]:
        return NOT_RUN
    return f"\n![Ones of MNIST by energy, in three games](../images/energy_gan_ones.png)\n\n*{ONES_CAPTION}*\n"


def known_gradients(figures: Figures) -> str:
    """A line for each estimator on the affine generator."""
    head = ["estimator", "cosine with the gradient", "length over the gradient's"]
    return _table(head, figures["known"], lambda row: [row["estimator"], *_numbers(row, ["cosine", "length"])])


def game_gradients(figures: Figures) -> str:
    """A line for each process, game and estimator."""
    names = ["cosine with the data's", "length over the cost's", "left of the cost's"]
    head = ["process", "game", "gradient by", "seeds", *names]

    def cells(row: Row) -> list[object]:
        return [row["process"], row["model"], row["estimator"], row["seeds"], *_numbers(row, names)]

    return _table(head, figures["games"], cells)


def gradient_effects(figures: Figures) -> str:
    """A line for each claim of B.8.3 and process."""
    head = ["claim", "process", "by, over seeds", "verdict"]
    return _table(
        head, figures["effects"], lambda row: [row["claim"], row["process"], _effect(row["effect"]), f"*{row['verdict']}*"]
    )


def arrows(figures: Figures) -> str:
    """The pictures of the processes whose games were played."""
    pictures = [
        f"\n![Entropy gradients, {process}](../images/gradients-{process.replace(' ', '-')}.png)\n\n*{process.capitalize()}, "
        f"{ARROWS_CAPTION}*\n"
        for process in figures["pictured"]
    ]
    return "".join(pictures) or NOT_RUN


def _numbers(row: Row, names: Sequence[str] | Mapping[str, str]) -> list[str]:
    return [with_interval(row[name]) for name in names]


def _effect(numbers: list[float] | None) -> str:
    return with_interval(numbers) or "fewer than two seeds"


def _table(head: Sequence[str], rows: Sequence[Row], cells: Callable[[Row], list[object]]) -> str:
    if not rows:
        return NOT_RUN
    lines = [list(head), ["---"] * len(head), *(cells(row) for row in rows)]
    return "\n" + "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


IMAGE_BLOCKS = {
    "status": status,
    "probes": probes,
    "probe_effects": probe_effects,
    "rankings": rankings,
    "ranking_effects": ranking_effects,
    "ones": ones_picture,
}
GRADIENT_BLOCKS = {
    "status": status,
    "known": known_gradients,
    "games": game_gradients,
    "effects": gradient_effects,
    "arrows": arrows,
}
