"""The recipe on calibrated energy GANs at its smallest: rows, pictures, and that nothing is made twice."""

import json
from pathlib import Path

import pytest

from esscher.core.estimate import Estimate
from esscher.core.storage import write_json
from esscher.papers import find_recipe
from esscher.papers.energy_gan.recipe import (
    OPTIONS,
    game_folder,
    make_option_row,
    make_row,
    planar_game_settings,
    summarise_plane,
)
from esscher.papers.energy_gan.tables import DIVERGENCES, EXACT, MODELS, PAPER, judge_claims
from esscher.papers.games.calibration import NeighbourEntropy
from esscher.papers.games.points import PROCESSES
from esscher.papers.study import OPEN, REFUTED, REPRODUCED, ROW_FILE, StudyContext


@pytest.mark.slow
def test_smoke(tmp_path: Path, monkeypatch):
    result = find_recipe("energy-gan").run(scale="smoke", out=tmp_path, seeds=1)
    assert [(row["process"], row["model"]) for row in result["rows"]] == [(p, m) for p in PROCESSES for m in MODELS]
    assert result["rows"][0]["KL(disc||data)"].n == 0 < result["rows"][0]["KL(gen||data)"].n
    plane = json.loads((tmp_path / "plane.json").read_text())
    assert set(plane["rows"][0]) > {*DIVERGENCES, EXACT} and {claim["verdict"] for claim in plane["claims"]} == {OPEN}
    assert (tmp_path / "report.html").is_file() and (tmp_path / "two-spirals.png").is_file()
    assert [row["option"] for row in result["options"]] == list(OPTIONS)[:2]
    monkeypatch.setattr("esscher.papers.games.networks.Trainer", None)  # nothing is trained again
    context = StudyContext(scale="smoke", out=tmp_path)
    row = make_row(context, "biased pair", "GAN", 0)
    assert row["KL(gen||data)"] == result["rows"][4]["KL(gen||data)"]
    assert (game_folder(context, "biased pair", "GAN", 0) / ROW_FILE).is_file()


def test_published_settings():
    plan = planar_game_settings("paper", "biased pair", "EGAN-Ent-NN")
    assert plan.objective.temperature == 0.15 and plan.objective.calibration == NeighbourEntropy(20, "variance")
    assert (plan.objective.gate.low, plan.objective.margin, plan.training.epochs) == (-0.2, 10.0, 100)
    assert planar_game_settings("paper", "two spirals", "GAN").training.optimizer == "adagrad"
    assert all(
        planar_game_settings(scale, p, m).training.batch_size == 500
        for scale in ("small", "paper")
        for p in PROCESSES
        for m in MODELS
    )
    with pytest.raises(ValueError, match="There is no row 'plane', 'GAN'; known are four Gaussians"):
        planar_game_settings("small", "plane", "GAN")
    context = StudyContext(scale="smoke", out=Path("nowhere"))
    with pytest.raises(ValueError, match="There is no option 'none'; known are direction over"):
        make_option_row(context, "none", 0)


def test_rows_without_their_games_are_summarised_without_pictures(tmp_path):
    """As after `kept_rows.py restore`, of a run that is not finished."""
    context, one = StudyContext(scale="smoke", out=tmp_path), Estimate.exact(0.5)
    for model in MODELS[:3]:
        row = {"process": "biased pair", "model": model, "seed": 0, "steps": 1}
        content = {**row, "divergences": dict.fromkeys((*DIVERGENCES, EXACT), one.to_dict())}
        write_json(game_folder(context, "biased pair", model, 0) / ROW_FILE, content)
    assert len(summarise_plane(context)["rows"]) == 3 and not list(tmp_path.glob("*.png"))
    assert json.loads((tmp_path / "plane.json").read_text())["missing"] == 9


def test_claims_are_judged_by_ratios_over_seeds():
    """Rows that are Table B.2 times noise, then ones of equal games, then ones with the games of the table exchanged."""

    def rows(exchanged, noise):
        names = {"EGAN-Ent-NN": "EGAN-Const", "EGAN-Const": "EGAN-Ent-NN"} if exchanged else {}
        return [
            {"process": row["process"], "model": names.get(row["model"], row["model"]), "seed": seed}
            | {column: Estimate.exact(row[column] * (1 + noise * seed)) for column in DIVERGENCES}
            for row in PAPER
            for seed in range(3)
        ]

    by_table = judge_claims(rows(False, 0.0))
    assert {claim["verdict"] for claim in by_table} == {REPRODUCED} and len(by_table) == 15
    first = by_table[0]
    assert first["ratio"].value == pytest.approx(0.0901 / 6.2159) and first["thesis"] == round(0.0901 / 6.2159, 3)
    assert judge_claims(rows(True, 0.01))[0]["verdict"] == REFUTED
    powers = {"EGAN-Ent-NN": 1, "EGAN-Const": -1}
    wild = [
        {**row, "KL(disc||data)": Estimate.exact((0.1, 10.0, 1.0)[row["seed"]] ** powers.get(row["model"], 1))}
        for row in rows(False, 0.0)
    ]
    assert judge_claims(wild)[0]["verdict"] == OPEN
    assert {claim["verdict"] for claim in judge_claims([row for row in rows(False, 0) if row["seed"] == 0])} == {OPEN}
