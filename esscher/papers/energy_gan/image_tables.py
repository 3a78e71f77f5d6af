"""What the rows of games on images say: linear probes beside Table B.3 of the thesis, rankings of one digit, and effects.

An effect is a difference of two games seed by seed, or a difference within a game, with Student's interval over seeds. The
claims of the thesis are that EGAN-Ent-NN has features with a smaller error than the other games and than random weights
(B.8.5), that images of high energy are further from the mean image than images of low energy, and in EGAN-Ent-NN more clearly
so than in other games (B.8.4). A claim is "open" with fewer than two seeds.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from esscher.core.estimate import Estimate
from esscher.core.storage import read_tensors, write_file
from esscher.papers.energy_gan.ranking import FURTHER, RANKING_COLUMNS, ranking_panels
from esscher.papers.energy_gan.tables import CONST, GAN, NN, above_zero, differences, mean_over_seeds
from esscher.papers.study import Row, Rows, means_over_seeds, table_rows
from esscher.reports.plots import save_figure

RANDOM = "random"
RANKED_MODELS = (GAN, CONST, NN)  # of the thesis
FEATURES = "probe, features"
PROBES = ("probe, convolution 1", "probe, convolution 2", FEATURES)
MEAN_IMAGE = "mean image"
PUBLISHED_PROBES = table_rows(("model", FEATURES), (NN, 1.190), (CONST, 1.338), (GAN, 1.259), (RANDOM, 3.409))
"""Mean test errors in % of 10 probes (Table B.3)."""
TABLES_FILE, RANKING_FILE, RANKING_PICTURE = "images.json", "ranking.safetensors", "energy_gan_ones.png"


def levels(rows: Rows, columns: Sequence[str]) -> list[Row]:
    """The numbers of each game that has these columns: means over seeds, or those of its one seed with the intervals for other
    images."""
    having = [row for row in rows if columns[0] in row]
    means = {(row["images"], row["model"]): row for row in means_over_seeds(having, ("images", "model"), columns)}
    table = []
    for key in dict.fromkeys((row["images"], row["model"]) for row in having):
        single = next(row for row in having if (row["images"], row["model"]) == key)
        one_seed = {"images": key[0], "model": key[1], "seeds": 1} | {column: single[column] for column in columns}
        table.append(means.get(key, one_seed))
    return table


def probe_effects(rows: Rows) -> list[Row]:
    """How many points of error EGAN-Ent-NN has less than another game, for each set of images and layer."""
    published = {row["model"]: row[FEATURES] for row in PUBLISHED_PROBES}
    table = []
    for images in _images_with(rows, FEATURES):
        for column in PROBES:
            of_model = {model: _by_seed(rows, images, model, column) for model in published}
            for other in (RANDOM, GAN, CONST):
                effect = mean_over_seeds(differences(of_model[other], of_model[NN]), unit="points")
                thesis = round(published[other] - published[NN], 3) if column == FEATURES and images == "MNIST" else None
                about = {"images": images, "layer": column.removeprefix("probe, "), "against": other}
                table.append({**about, "less error": effect, "thesis": thesis, "verdict": above_zero(effect)})
    return table


def ranking_effects(rows: Rows) -> list[Row]:
    """How much further images of highest energy are from the mean image than those of lowest energy, in each game, and in
    EGAN-Ent-NN than in another game."""
    table = []
    for images in _images_with(rows, FURTHER):
        of_model = {model: _by_seed(rows, images, model, FURTHER) for model in RANKED_MODELS}
        compared = [(model, "", of_model[model]) for model in reversed(RANKED_MODELS)]
        compared += [(NN, other, differences(of_model[NN], of_model[other])) for other in (GAN, CONST)]
        for model, other, by_seed in compared:
            effect = mean_over_seeds(by_seed)
            about = {"images": images, "model": model, "against": other}
            table.append({**about, FURTHER: effect, "verdict": above_zero(effect)})
    return table


def _images_with(rows: Rows, column: str) -> list[str]:
    return list(dict.fromkeys(row["images"] for row in rows if column in row))


def _by_seed(rows: Rows, images: str, model: str, column: str) -> dict[int, float]:
    chosen = [row for row in rows if (row["images"], row["model"]) == (images, model) and column in row]
    return {row["seed"]: row[column].value for row in chosen}


def keep(folder: Path, rows: Rows, missing: int, rankings: Mapping[str, Path]) -> dict[str, list[Row]]:
    """Write the tables of these rows to `images.json`, and the figure of the rankings whose files, by game, are all there;
    returns the tables."""
    tables: dict[str, list[Row]] = {
        "rows": [dict(row) for row in rows],
        "probes": levels(rows, (*PROBES, MEAN_IMAGE)),
        "probe effects": probe_effects(rows),
        "rankings": levels(rows, (*RANKING_COLUMNS, MEAN_IMAGE)),
        "ranking effects": ranking_effects(rows),
    }
    pictured = bool(rankings) and all(file.exists() for file in rankings.values())
    if pictured:
        save_figure(ranking_panels({model: read_tensors(file) for model, file in rankings.items()}), folder / RANKING_PICTURE)
    content = {"missing": missing, "pictured": pictured, **tables}
    write_file(folder / TABLES_FILE, json.dumps(content, indent=1, default=Estimate.to_dict).encode())
    return tables
