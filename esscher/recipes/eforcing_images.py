"""E-Forcing (Anonymous, 2023) on images: PixelCNN, Gated PixelCNN and PixelCNN++ beside themselves by likelihood.

What is asked: bits per dimension of test images and of images learnt from; of binarised MNIST nats per image, as is usual; and
what draws and completed halves look like.
"""

from pathlib import Path
from typing import Any

from esscher.recipes.image_rows import COMPLETED, SAMPLES, run_studies
from esscher.recipes.image_studies import ImageStudy, image_studies
from esscher.recipes.report_parts import if_any, learning, published
from esscher.recipes.rows import means_over_seeds, place_of
from esscher.reports.document import Picture, Section, Table, write_report
from esscher.reports.pictures import file_figure

PAPER = [
    {"images": images, "model": model, "test": test, "train": train, "unit": "bits per dimension"}
    for images, rows in {
        "MNIST": (("PixelCNN", 0.17, 0.13), ("PixelCNN, E-Forcing", 0.15, 0.12), ("Gated PixelCNN", 0.14, 0.11),
                  ("Gated PixelCNN, E-Forcing", 0.12, 0.10)),
        "CIFAR-10": (("PixelCNN", 3.14, 3.08), ("PixelCNN, E-Forcing", 3.07, 2.98), ("Gated PixelCNN", 3.03, 2.90),
                     ("Gated PixelCNN, E-Forcing", 2.97, 2.87)),
    }.items()
    for model, test, train in rows
]  # fmt: skip
PAPER.append(
    {"images": "MNIST, binarised", "model": "PixelCNN (van den Oord et al. 2016)", "test": 81.3, "unit": "nats per image"}
)
MEANING = (
    "Bits per dimension of test images and of as many images that were learnt from, with an interval for other images; saved: "
    "against likelihood, the same network and seed, image by image."
)


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """All models of this scale, with every seed."""
    studies, left_out = image_studies(scale)
    rows = run_studies(studies, out, seeds)
    over = means_over_seeds(rows, ("images", "model"), ("test", "train", "nats", "saved"))
    tables = [Table("Models", rows), *if_any(Table("Over seeds", over))]
    sections = [_section(study, out / study.name) for study in studies]
    about = "One network and set of images, and what it is trained to minimise."
    sections = [Section("Results", MEANING, tables), *sections, published(PAPER)]
    write_report(out / "report.html", "E-Forcing on images", about, sections)
    return {"rows": rows, "over seeds": over, "paper": PAPER, "left out": [{"left out": one} for one in left_out]}


def _section(study: ImageStudy, folder: Path) -> Section:
    """While learning, draws, and completed halves, of the first seed."""
    grids = []
    for model in study.models:
        place = place_of(folder, model, 0)
        grids.append(Picture(file_figure(place / SAMPLES), f"{model}: draws."))
        completed = "an image, its upper half, and what was drawn after that."
        grids.append(Picture(file_figure(place / COMPLETED), f"{model}: {completed}"))
    return Section(study.name, "", [*learning(folder, study.models, "validation, nats per dimension"), *grids])
