"""Calibrating energy-based GANs (Dai et al., 2017): does the discriminator know the density?

Four games on three processes in the plane whose density is known. The cost of each is normalised on a grid and compared with
the true density, as are the generator's draws. What it leaves out: the games on images.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from esscher.adversarial.planar import PROCESSES
from esscher.recipes.energy_gan_rows import MODELS, make_row, shown_of
from esscher.recipes.seeds import means_over_seeds
from esscher.reports.document import Picture, Section, Table, write_report
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
MAIN = ("KL(disc||data)", "KL(gen||data)")
MEANING = (
    "data is the true density, emp its draws that were learnt from, gen the generator's draws, disc the cost taken for an "
    "energy and normalised over the grid. A divergence between two that are known is exact for the networks of its row."
)


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """All games on all processes, with every seed."""
    rows = [make_row(scale, process, model, seed, out) for seed in range(seeds) for process in PROCESSES for model in MODELS]
    over = over_seeds(rows)
    figures = {process: planar_panels({model: shown_of(out, process, model, 0) for model in MODELS}) for process in PROCESSES}
    sections = []
    for process, figure in figures.items():
        save_picture(figure, out / f"{process.replace(' ', '-')}.png")
        picture = Picture(figure, "Above, energies up to 12 nats; below, data in red and generated points in blue. Seed 0.")
        own = Table("Divergences", [row for row in rows if row["process"] == process], MEANING)
        sections.append(Section(process, "A cost that knows the density has the colours of the truth.", [picture, own]))
    published = Section("Published", "From the thesis, B.8.2.", [Table("Divergences", PAPER)])
    title, about = "Calibrated energy GANs", "Four games on processes in the plane whose density is known."
    write_report(out / "report.html", title, about, [*sections, published])
    short = [{key: row[key] for key in ("process", "model", "seed", "steps", *MAIN)} for row in rows]
    return {"rows": short, "over seeds": over, "paper": PAPER}


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds of the main divergences."""
    return means_over_seeds(rows, ("process", "model"), MAIN)
