"""Good semi-supervised learning that requires a bad GAN (Dai et al., 2017b): what a generator between the classes is worth.

A classifier learns from few labels alone, and beside generators that match features (FM) and are kept apart from each other
(VI, PT) or from the data (LD). In the plane the boundaries are drawn; of images test errors are told, over draws of the labels.
"""

from pathlib import Path
from typing import Any

from esscher.recipes.bad_gan_rows import TOLD, make_row, over_draws
from esscher.recipes.bad_gan_studies import FewLabelStudy, few_label_studies
from esscher.recipes.energy_gan_images import pixels
from esscher.recipes.report_parts import if_any, learning, published
from esscher.recipes.rows import place_of
from esscher.reports.document import Picture, Section, Table, write_report
from esscher.reports.pictures import file_figure, save_grid
from esscher.reports.planar import boundary_panels
from esscher.reports.plots import save_picture
from esscher.storage import read_tensors

PAPER = [
    {"points": points, "model": model, "error": error, "unit": unit}
    for points, unit, rows in (
        ("MNIST, 100 labels", "of 10,000", {"FM": 85.0, "FM + VI": 86.5, "FM + LD": 79.5, "FM + LD + Ent": 89.2}),
        ("SVHN, 1,000 labels", "%",
         {"FM": 6.83, "FM + VI": 5.29, "FM + PT": 4.63, "FM + PT + Ent": 4.25, "FM + PT + LD + Ent": 4.19}),
        ("CIFAR-10, 4,000 labels", "%", {"FM": 16.14, "FM + VI": 14.41, "FM + VI + Ent": 15.82}),
    )
    for model, error in rows.items()
]  # fmt: skip
MEANING = "Test points whose class is told wrong, by the last weights; test labels are looked at once, when a row is done."


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """All models of this scale, with every draw of labels."""
    studies, left_out = few_label_studies(scale)
    rows = [
        make_row(scale, study.name, model, draw, out) for study in studies for draw in range(seeds) for model in study.models
    ]
    over = over_draws(rows, out)
    more = if_any(Table("Over draws of labels", over, "Saved: against FM, point by point."))
    sections = [_section(study, out) for study in studies]
    title, about = "Few labels", "A classifier by itself, and beside generators of what lies between the classes."
    results = Section("Results", MEANING, [Table("Models", rows), *more])
    write_report(out / "report.html", title, about, [results, *sections, published(PAPER)])
    return {"rows": rows, "over draws": over, "paper": PAPER, "left out": [{"left out": one} for one in left_out]}


def _section(study: FewLabelStudy, out: Path) -> Section:
    """Of the first draw: errors while learning, and boundaries or generated images."""
    folder = out / study.name
    shown = {model: read_tensors(place_of(folder, model, 0) / TOLD) for model in study.models}
    parts = learning(folder, study.models, "validation error, %", "While learning, draw 0.")
    if "classes" in next(iter(shown.values())):
        figure = boundary_panels(shown)
        save_picture(figure, out / f"{study.name.replace(' ', '-')}.png")
        parts.append(Picture(figure, "Classes; labelled points ringed, generated ones black. Draw 0."))
        return Section(study.name, "", parts)
    for model, tensors in shown.items():
        if study.models[model] is not None:
            low = float(getattr(study.supply, "low", 0.0))
            place = save_grid(place_of(folder, model, 0) / "made.png", pixels(tensors["made"], low))
            parts.append(Picture(file_figure(place), f"{model}: generated images."))
    return Section(study.name, "", parts)
