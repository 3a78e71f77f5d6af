"""Calibrating energy-based GANs (Dai et al., 2017): does the discriminator know the density?

Four games on three processes in the plane whose density is known. The cost of each is normalised on a grid and compared with
the true density, as are the generator's draws; then what differences between thesis and released code come to, one at a time.
The same games on images are judged by a linear probe on features, by the mean image, and by eye.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from esscher.adversarial.planar import PROCESSES
from esscher.recipes import energy_gan_images as on_images
from esscher.recipes.energy_gan_images import image_games, make_image_row
from esscher.recipes.energy_gan_options import OPTIONS, make_option_row
from esscher.recipes.energy_gan_rows import MODELS, make_row, shown_of
from esscher.recipes.rows import means_over_seeds, place_of
from esscher.reports.document import Picture, Section, Table, write_report
from esscher.reports.pictures import file_figure
from esscher.reports.planar import planar_panels
from esscher.reports.plots import save_picture

PAPER = [
    dict(zip(("process", "model", "KL(disc||data)", "KL(gen||data)"), row, strict=True))
    for row in (
        ("four Gaussians", "GAN", 6.20, 0.25), ("four Gaussians", "EGAN-Const", 6.22, 0.22),
        ("four Gaussians", "EGAN-Ent-VI", 0.72, 0.090), ("four Gaussians", "EGAN-Ent-NN", 0.090, 0.062),
        ("biased pair", "GAN", 6.49, 0.041), ("biased pair", "EGAN-Const", 6.50, 0.12),
        ("biased pair", "EGAN-Ent-VI", 2.99, 0.030), ("biased pair", "EGAN-Ent-NN", 0.52, 0.033),
        ("two spirals", "GAN", 4.38, 0.38), ("two spirals", "EGAN-Const", 3.97, 0.72),
        ("two spirals", "EGAN-Ent-VI", 0.31, 0.43), ("two spirals", "EGAN-Ent-NN", 0.41, 0.45),
    )
]  # fmt: skip
PROBES = [
    {"model": model, "probe": error}
    for model, error in (("EGAN-Ent-NN", 1.19), ("EGAN-Const", 1.34), ("GAN", 1.26), ("random", 3.41))
]
MAIN = ("KL(disc||data)", "KL(gen||data)")
MEANING = (
    "data is the true density, emp its draws that were learnt from, gen the generator's draws, disc the cost taken for an "
    "energy and normalised over the grid. A divergence between two that are known is exact for the networks of its row."
)


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """All games on all processes, with every seed."""
    rows = [make_row(scale, process, model, seed, out) for seed in range(seeds) for process in PROCESSES for model in MODELS]
    over = means_over_seeds(rows, ("process", "model"), MAIN)
    figures = {process: planar_panels({model: shown_of(out, process, model, 0) for model in MODELS}) for process in PROCESSES}
    sections = []
    for process, figure in figures.items():
        save_picture(figure, out / f"{process.replace(' ', '-')}.png")
        picture = Picture(figure, "Above, energies up to 12 nats; below, data in red and generated points in blue. Seed 0.")
        own = Table("Divergences", [row for row in rows if row["process"] == process], MEANING)
        sections.append(Section(process, "A cost that knows the density has the colours of the truth.", [picture, own]))
    options = [make_option_row(scale, option, 0, out) for option in list(OPTIONS)[: 2 if scale == "smoke" else None]]
    told = [{key: row[key] for key in ("option", "process", "model", *MAIN)} for row in options]
    sections.append(Section("Thesis and code", "One difference at a time, with one seed.", [Table("Divergences", told)]))
    pictured = [
        make_image_row(scale, images, model, seed, out)
        for images in image_games(scale)
        for seed in range(seeds)
        for model in on_images.MODELS
    ]
    sections += [_images(images, [row for row in pictured if row["images"] == images], out) for images in image_games(scale)]
    published = Section("Published", "From the thesis, B.8.2.", [Table("Divergences", PAPER), Table("Probes on MNIST", PROBES)])
    title, about = "Calibrated energy GANs", "Four games on processes in the plane whose density is known, and on images."
    write_report(out / "report.html", title, about, [*sections, published])
    short = [{key: row[key] for key in ("process", "model", "seed", "steps", *MAIN)} for row in rows]
    return {"rows": short, "over seeds": over, "options": told, "images": pictured, "paper": PAPER}


def _images(images: str, rows: Sequence[Mapping[str, Any]], out: Path) -> Section:
    """The numbers of all games on some images, and the pictures of the first seed."""
    parts: list[Table | Picture] = [Table("Games", rows, "The error of a linear probe, and how far the mean image is off.")]
    for model in on_images.MODELS:
        place = place_of(out / images, model, 0)
        for file, meaning in (
            (on_images.MADE, "draws"),
            (on_images.MEAN, "the mean of test images and of draws"),
            (on_images.RANKED, "test images of class 1, of lowest energy above, of highest below"),
        ):
            parts.append(Picture(file_figure(place / file), f"{model}: {meaning}."))
    return Section(images, "", parts)
