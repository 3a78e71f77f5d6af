"""Games on images: the recipe at its smallest, what a ranking says of its ends, and effects over seeds by hand."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.papers import find_recipe
from esscher.papers.energy_gan.image_tables import (
    FEATURES,
    MEAN_IMAGE,
    PROBES,
    RANKED_MODELS,
    RANKING_PICTURE,
    TABLES_FILE,
    levels,
    probe_effects,
    ranking_effects,
)
from esscher.papers.energy_gan.images import (
    ONES,
    image_folder,
    image_games,
    image_names,
    make_image_row,
    summarise_images,
)
from esscher.papers.energy_gan.objectives import Gate
from esscher.papers.energy_gan.ranking import BOX, FURTHER, Ranking, image_tiles, measure_ranking, rank, ranking_tensors
from esscher.papers.games.networks import Discriminator, Game, Generator
from esscher.papers.games.points import Points
from esscher.papers.study import OPEN, REFUTED, REPRODUCED, ROW_FILE, StudyContext


@pytest.mark.slow
def test_smoke(tmp_path: Path, monkeypatch):
    result = find_recipe("energy-gan-images").run(scale="smoke", out=tmp_path, seeds=2)
    models = ["random", "GAN", "EGAN-Const", "EGAN-Ent-VI", "EGAN-Ent-NN"]
    assert [row["model"] for row in result["probes"]] == models
    assert [row["model"] for row in result["rankings"]] == list(RANKED_MODELS)
    assert all(0 <= row[name].value <= 100 for row in result["rows"] for name in PROBES if name in row)
    content = json.loads((tmp_path / TABLES_FILE).read_text())
    assert content["missing"] == 0 and content["pictured"] and len(content["rows"]) == 16
    assert {row["verdict"] for row in content["probe effects"]} <= {OPEN, REFUTED, REPRODUCED}
    assert (tmp_path / RANKING_PICTURE).is_file() and (tmp_path / "report.html").is_file()
    monkeypatch.setattr("esscher.papers.games.networks.Trainer", None)  # nothing is trained again
    context = StudyContext(scale="smoke", out=tmp_path, seeds=2)
    assert make_image_row(context, "digits", "GAN", 1)[FEATURES] == result["rows"][9][FEATURES]
    (image_folder(context, "ones of digits", "GAN", 0) / ROW_FILE).unlink()
    assert len(summarise_images(context)["rows"]) == 15
    assert json.loads((tmp_path / TABLES_FILE).read_text())["missing"] == 1


def test_published_settings():
    games = image_games("paper")
    mnist, cifar = games["MNIST"].games["EGAN-Ent-NN"][0], games["CIFAR-10"].games["EGAN-Ent-VI"][0]
    assert mnist.gate == Gate(-1.2, 0.1) and mnist.temperature == 0.02 * 200
    nets = games["CIFAR-10"].nets
    assert (nets.noise_size, nets.positive, cifar.smoothness, cifar.temperature) == (100, True, 0.01, 0.1)
    assert (games[ONES].ranked_each, games[ONES].extremes, games[ONES].digit) == (500, 100, 1)
    context = StudyContext(scale="smoke", out=Path("nowhere"))
    with pytest.raises(ValueError, match=r"no row 'faces', 'GAN'; known are digits: random, GAN, .*ones of digits: GAN"):
        make_image_row(context, "faces", "GAN", 0)
    with pytest.raises(ValueError, match="There is no row 'ones of digits', 'random'"):
        make_image_row(context, "ones of digits", "random", 0)
    assert image_names(context)[-1] == ("ones of digits", "EGAN-Ent-NN", 0)


def test_an_empty_folder_has_tables_without_rows(tmp_path):
    context = StudyContext(scale="smoke", out=tmp_path, seeds=3)
    assert not any(summarise_images(context).values())
    content = json.loads((tmp_path / TABLES_FILE).read_text())
    assert content["missing"] == 24 and not content["pictured"] and not (tmp_path / RANKING_PICTURE).exists()


class Brightness(nn.Module):
    def forward(self, x):
        return x.flatten(1).mean(-1, keepdim=True)


def by_brightness():
    return Game(Generator(nn.Linear(1, 1), 1), Discriminator(Brightness(), nn.Identity()))


def flat(*values):
    """Images of 2 x 2 equal pixels."""
    return Points(torch.tensor(values)[:, None, None, None].expand(-1, 1, 2, 2).clone())


def test_images_are_ranked_together_and_measured_at_both_ends():
    """By rising energy 0.0 (real), 0.1, 0.2, 0.5 (real), 0.7, 1.0 (real): 0.2, 0.1, 0, 0.3, 0.5, 0.8 from the mean, 0.2."""
    mean = torch.full((1, 2, 2), 0.2)
    ranking = rank(by_brightness(), flat(0.7, 0.1, 0.2), flat(0.5, 0.0, 1.0), mean)
    assert ranking.real.tolist() == [True, False, False, True, False, True]
    assert torch.allclose(ranking.distance, torch.tensor([0.2, 0.1, 0.0, 0.3, 0.5, 0.8], dtype=torch.float64))
    measured = measure_ranking(ranking, 2)
    assert measured["distance of lowest"].value == pytest.approx(0.15)
    assert measured["distance of highest"].value == pytest.approx(0.65)
    assert measured[FURTHER].value == pytest.approx(0.5) and measured[FURTHER].n == 4
    assert measured["real among lowest"].value == measured["real among highest"].value == pytest.approx(50)
    with pytest.raises(ValueError, match="4 images at either end are wanted of 6"):
        measure_ranking(ranking, 4)


def test_a_distance_is_a_root_mean_square_over_pixels():
    image = torch.tensor([[[[0.0, 1.0], [1.0, 1.0]]]])
    assert float(Ranking(image, torch.tensor([True]), torch.zeros(1, 2, 2)).distance) == pytest.approx(0.75**0.5)


def test_the_difference_of_both_ends_covers():
    """150 rankings of 40 + 40 independent distances, 0.1 apart: fewer than 133 covered has probability below 1e-4."""
    covered = wrong = 0
    for seed in range(150):
        distance = SeededRng(seed).uniform(80) + torch.where(torch.arange(80) < 40, 1.0, 1.1)
        images = distance[:, None, None, None].expand(-1, 1, 1, 1)
        estimate = measure_ranking(Ranking(images, torch.ones(80, dtype=torch.bool), torch.zeros(1, 1, 1)), 40)[FURTHER]
        covered, wrong = covered + estimate.covers(0.1), wrong + estimate.covers(-0.1)
    assert covered >= 133 > 75 > wrong


def test_the_figure_frames_real_images():
    tensors = ranking_tensors(rank(by_brightness(), flat(0.2, 0.4), flat(0.0, 1.0), torch.zeros(1, 2, 2)), 2, 0.0)
    assert tensors["lowest"][:, 0, 0, 0].tolist() == [0, 51] and tensors["highest"][:, 0, 0, 0].tolist() == [102, 255]
    tiles = image_tiles(tensors["lowest"].numpy(), tensors["lowest real"].numpy())
    assert tiles.shape == (6, 12, 3) and tiles[0].max() == tiles[:, 0].max() == tiles[:, 5:8].max() == 0
    assert tiles[1, 1:5].tolist() == [list(BOX)] * 4 and tiles[2, 1:5].tolist() == [list(BOX), [0] * 3, [0] * 3, list(BOX)]
    assert tiles[2:4, 8:10].tolist() == [[[51] * 3] * 2] * 2 and tiles[1, 7:].max() == 0
    assert image_tiles(tensors["lowest"].numpy()[[0, 1, 0]], tensors["lowest real"].numpy()[[0, 1, 0]]).shape == (12, 12, 3)


def rows_of(images, columns, values):
    """A row for each model and seed, with all columns alike: values by model, one a seed."""
    return [
        {"images": images, "model": model, "seed": seed, MEAN_IMAGE: Estimate.exact(0.1)}
        | {column: Estimate.exact(value) for column in columns}
        for model, of_seed in values.items()
        for seed, value in enumerate(of_seed)
    ]


def test_effects_of_probes_are_errors_saved_by_neighbours():
    errors = {"random": (5.0, 5.2, 5.4), "GAN": (2.0, 1.0, 3.0), "EGAN-Const": (1.0, 1.1, 1.2), "EGAN-Ent-NN": (2.0, 2.1, 2.2)}
    table = {(row["layer"], row["against"]): row for row in probe_effects(rows_of("MNIST", PROBES, errors))}
    assert len(table) == 9 and table["features", "random"]["less error"].value == pytest.approx(3.1)
    verdicts = [table["convolution 1", other]["verdict"] for other in ("random", "GAN", "EGAN-Const")]
    assert verdicts == [REPRODUCED, OPEN, REFUTED]
    assert table["features", "GAN"]["thesis"] == 0.069 and table["convolution 1", "GAN"]["thesis"] is None
    one = probe_effects([row for row in rows_of("digits", PROBES, errors) if row["seed"] == 0])
    assert {row["verdict"] for row in one} == {OPEN} and {row["less error"] for row in one} == {None}
    assert probe_effects(rows_of(ONES, (FURTHER,), errors)) == []


def test_effects_of_rankings_are_within_a_game_and_against_others():
    further = {"GAN": (-0.1, -0.11, -0.12), "EGAN-Const": (0.1, 0.1, 0.3), "EGAN-Ent-NN": (0.1, 0.11, 0.12)}
    table = {(row["model"], row["against"]): row for row in ranking_effects(rows_of(ONES, (FURTHER,), further))}
    assert table["EGAN-Ent-NN", ""]["verdict"] == REPRODUCED and table["GAN", ""]["verdict"] == REFUTED
    assert table["EGAN-Ent-NN", "GAN"][FURTHER].value == pytest.approx(0.22)
    assert table["EGAN-Ent-NN", "EGAN-Const"]["verdict"] == OPEN and len(table) == 5


def test_levels_say_how_many_seeds_they_have():
    rows = rows_of("digits", PROBES, {"GAN": (1.0, 3.0), "EGAN-Const": (5.0,)})
    several, single = levels(rows, (*PROBES, MEAN_IMAGE))
    assert (several["model"], several["seeds"], several[FEATURES].value) == ("GAN", 2, 2.0)
    assert (single["seeds"], single[FEATURES].value) == (1, 5.0) and levels(rows, (FURTHER,)) == []
