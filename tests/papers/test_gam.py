"""The recipe on global autoregressive models, tiny: all its parts run, and what is finished is not done again."""

import json
import math

import pytest
import torch
from checking import CHECKED

from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.core.target import Tilted, flat
from esscher.energies.features import feature_values
from esscher.energies.motif_features import NAMES, motif_features
from esscher.exact.languages import motif_process, white_noise
from esscher.papers.gam import comparisons, rows
from esscher.papers.gam.lookahead import OTHER, Lookahead
from esscher.papers.gam.recipe import run_gam, summary
from esscher.papers.gam.rows import FEATURE_SETS, MIXTURE_MOTIFS, PURE_MOTIFS, READINGS, SCALES, Cell, GamScale, _base, _student
from esscher.papers.study import StudyContext
from esscher.samplers.importance import Importance
from esscher.samplers.proposals import AssumeCovering
from esscher.training.config import DistilConfig

TINY = GamScale(
    base=_base(length=9, width=8, steps=15), max_strings_read=500,
    distil=DistilConfig(draws=60, candidates=1000, evaluation_draws=100), student=_student(10), distil_epochs=1,
    motifs={"pure": ("1001",)}, sizes=(60,), first_sizes=1, readings=("updates",),
    readings_elsewhere=("updates",), descent_epochs=2, weak_updates=5,
)  # fmt: skip


@pytest.mark.slow
def test_all_parts_run_and_resume(tmp_path, monkeypatch):
    monkeypatch.setitem(SCALES, "smoke", TINY)
    for _ in range(CHECKED):  # from then on its digest stays as it is
        flat(empty_prompts(1))
    actual = run_gam(StudyContext(scale="smoke", out=tmp_path, seeds=2))
    assert [(row["ft"], row["seed"]) for row in actual["rows"]] == [*((bits, 0) for bits in FEATURE_SETS), (FEATURE_SETS[0], 1)]
    for row in actual["rows"]:
        assert row["CE student"].low <= row["CE student"].value and 0 <= row["motif in student"].value <= 1
        assert row["student / H"] > 1 and row["patience of 20"] == "updates"
    kept = json.loads((tmp_path / "gam.json").read_text())
    assert len(kept["rows"]) == 4 and kept["not made"] == [] and kept["rows"][0]["accepted"] == 60
    assert [row["regime"] for row in actual["regimes"]] == ["newton", "snis", "rs"]
    assert len(actual["students"]) == 6 and actual["paper"][0]["|D|"] == 500
    assert "Global autoregressive models" in (tmp_path / "report.html").read_text() and (tmp_path / "gam.png").exists()
    cell = tmp_path / "1001-pure-60-updates-seed0" / FEATURE_SETS[0]
    assert {"energy", "student", "row.json"} <= {file.name for file in cell.iterdir()}

    def never(*_, **__):
        raise AssertionError("a finished part was done again")

    for module, name in ((rows, "make_row"), (comparisons, "_distilled"), (comparisons, "_regime")):
        monkeypatch.setattr(module, name, never)
    assert run_gam(StudyContext(scale="smoke", out=tmp_path, seeds=2))["rows"] == actual["rows"]


def test_a_distractor_that_a_few_draws_decide_has_no_weight():
    """One half of the draws has the distractor d2 five times and never with the motif, which all data have: its moment is
    reached by huge weights of both. One fresh draw that has both shows it, and the fit is made again without d2."""
    uniform = white_noise(symbols=2, length=12)
    draws = Importance()(Tilted(uniform), empty_prompts(1), 2_000, rng=SeededRng(0))
    features = torch.ones(2_000, 7, dtype=torch.float64)  # 1 where absent
    features[::2, 0] = 0  # every second string has the motif
    features[1:11:2, NAMES.index("d2")] = 0
    without = features.clone()
    features[1_500, NAMES.index("d2")] = 0
    data = torch.ones(5_000, 7, dtype=torch.float64)
    data[:, 0] = 0
    data[:50, NAMES.index("d2")] = 0

    def fitted(pool_features):
        context = object.__new__(rows.GamContext)
        for name, value in {"pool": draws, "pool_features": pool_features, "data_features": data}.items():
            object.__setattr__(context, name, value)
        return context.fit("1001111")

    huge, kept = fitted(without), fitted(features)
    assert huge.names == ("m", "d2") and min(weight.value for weight in huge.weights) < -10  # no fresh draw tells
    assert kept.names == ("m",) and -11 < kept.weights[0].value < -8


def test_a_look_ahead_proposes_strings_with_the_motif():
    """Where the base is coin tosses, all but `OTHER` of the proposals have the motif; their weights are those of the base."""
    process, noise = motif_process("1000101", 12), white_noise(2, 12)
    sampler = Importance(AssumeCovering(Lookahead(noise, tuple(process.tokens))))
    draws = sampler(Tilted(noise), empty_prompts(1), 4000, rng=SeededRng(0))
    present = 1 - feature_values(motif_features("1000101", "1000000", rng=SeededRng(0)), draws.x)[:, 0]
    assert float(present.mean()) == pytest.approx(1 - OTHER, abs=5 * math.sqrt(OTHER / 4000))  # 5 standard errors
    weight = draws.log_weight[0].exp()
    # given the motif all weights are equal, so the sum over these strings has the error of their number
    assert float((weight * present).mean()) == pytest.approx(math.exp(process.log_share), rel=0.03)
    with_motif = weight[present > 0]
    assert float(with_motif.max() / with_motif.min()) == pytest.approx(1.0)
    assert torch.allclose(
        Lookahead(noise, tuple(process.tokens)).log_probs(draws.x).sum(-1), (draws.log_base - draws.log_weight)[0]
    )


def test_a_reading_of_the_patience_sets_batch_and_evaluations():
    scale = SCALES["small"]
    training = {name: scale.run(Cell("10001", "pure", 5000, name)).training for name in READINGS}
    assert {name: (each.batch_size, each.evaluate_every) for name, each in training.items()} == {
        "epochs of batches of 50": (50, 100), "updates": (50, 1), "epochs of batches of 500": (500, 10),
    }  # fmt: skip
    assert all(each.patience == 20 for each in training.values())


def test_averages_are_over_the_rows_of_one_reading_and_the_first_seed():
    rows = [
        {"|D|": 500, "data": "pure", "patience of 20": reading, "seed": seed, "r / student": ratio, "student / H": 1.5,
         "motif: student / r": 2 * ratio}
        for reading, seed, ratio in (("updates", 0, 1.0), ("updates", 0, 2.0), ("updates", 1, 9.0), ("epochs", 0, 5.0))
    ]  # fmt: skip
    line, other = summary(rows)
    assert line["pure: r / student"] == "1.500 ± 0.707" and line["mixture: student / H"] == "-" and line["pure: rows"] == 2
    assert line["pure: motif, student / r"] == "[2, 4]" and other["pure: r / student"] == "5.000"


def test_the_paper_scale_has_every_row_of_the_published_table():
    cells = list(SCALES["paper"].cells())
    assert len(set(cells)) == len(cells) == 3 * 5 * (5 * 3 + 5)
    assert {cell.motif for cell, _ in cells if cell.kind == "pure"} == set(PURE_MOTIFS)
    assert {cell.motif for cell, _ in cells if cell.kind == "mixture"} == set(MIXTURE_MOTIFS)
    assert {bits for cell, bits in cells if cell.kind == "mixture"} == {FEATURE_SETS[0]}
    assert {cell.size for cell, _ in cells} == {500, 1000, 5000, 10000, 20000}
    assert len(set(SCALES["small"].cells())) == 5 * (3 + 3 * 1)
    small = [(cell.motif, cell.kind, cell.size) for cell, _ in SCALES["small"].cells()]
    assert small[:3] == [(PURE_MOTIFS[0], "pure", size) for size in (500, 5000, 20000)]  # made first
