"""Draws of strong tilts are right, or say that they are unreliable: they are compared with what the energy's folder holds."""

from dataclasses import replace

import pytest

import esscher
from esscher.core.estimate import Estimate
from esscher.data.config import DataConfig
from esscher.estimators.reliability import StoredEstimates
from esscher.networks.recurrent_config import GruConfig
from esscher.samplers.accept_reject import Metropolis
from esscher.samplers.importance import Importance
from esscher.samplers.sir import SIR, AdaptiveSIR
from esscher.training.config import DistilConfig, TrainingConfig
from esscher.workflow.config.distil import DistilTraining
from esscher.workflow.config.tilt import FitConfig

STRONG = {  # wanted moments far from the base, each with the share of draws that must show it
    "matches:^(0000000|1111111)": 0.99,
    "starts-with:0110100": 0.9,
    "contains:11111111": 0.95,
    "ends-with:00000000": 0.9,
    "matches:^(01)+$": 0.99,
    "matches:^1?0+$": 0.9,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Almost even strings of 8 bits, so that the base shows these features once in 60 to 300 draws."""
    folder = tmp_path_factory.mktemp("evidence")
    data, training = DataConfig("motif:1", length=8, size=300), TrainingConfig(steps=30, batch_size=32, learning_rate=0.01)
    return esscher.train(out=str(folder / "base"), data=data, base=GruConfig(width=16, layers=1), training=training)


@pytest.fixture(scope="module")
def tilts(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tilts")
    return {
        want: base.tilt(want={want: rate}, out=str(folder / str(number)), fit=FitConfig(draws=8000))
        for number, (want, rate) in enumerate(STRONG.items())
    }


def shows(model, texts) -> float:
    """The share of the texts that have the feature."""
    energies = model.score(texts).energy
    return sum(energy < -1 for energy in energies) / len(texts)


@pytest.mark.parametrize("want", STRONG)
def test_a_strong_tilt_ends_in_right_draws_or_says_unreliable(tilts, want):
    """The pool grows until it shows what the energy's folder holds. A pool of 16 candidates, all without the feature, has equal
    weights, the largest effective sample size, and was called good before. The limit of 4,096 candidates suffices here, so
    most draws must be right: a pool that does not grow is caught, too."""
    model, right = tilts[want], 0
    for seed in range(3):
        result = model.sample(draws=16, seed=seed)
        (pool,) = result.pools
        share = shows(model, result.texts)
        assert pool["verdict"] == "unreliable" or share > 0.6
        assert not pool["missing"] or pool["verdict"] == "unreliable"
        assert pool["missing"] or (pool["candidates"] > 16 and share > 0.6)
        right += pool["verdict"] != "unreliable" and share > 0.6
    assert right >= 2


@pytest.mark.parametrize("want", STRONG)
def test_where_the_limit_is_reached_the_reason_is_given(tilts, want):
    model, said = tilts[want], 0
    for seed in range(4):
        result = model.sample(draws=16, seed=seed, sampler=AdaptiveSIR(max_candidates=16))
        (pool,) = result.pools
        lacks = shows(model, result.texts) == 0
        assert not lacks or (pool["verdict"] == "unreliable" and pool["missing"] and not pool["large_enough"])
        text = " ".join([*result.notes, *result.report.notes])
        assert not lacks or ("unreliable" in text and "--proposal" in text and "no draw shows" in " ".join(pool["missing"]))
        said += lacks
    assert said > 0


@pytest.mark.parametrize("sampler", [Metropolis(3), Importance(), SIR(16)])
def test_samplers_of_a_fixed_size_say_it_too(tilts, sampler):
    model = tilts["matches:^(0000000|1111111)"]
    result = next(
        found for seed in range(9) if not shows(model, (found := model.sample(draws=8, seed=seed, sampler=sampler)).texts)
    )
    assert any("unreliable" in note for note in result.report.notes)


def test_draws_that_agree_are_left_in_peace(tilts):
    for sampler in (Metropolis(1500), Importance()):
        result = tilts["matches:^(0000000|1111111)"].sample(
            draws=2000 if isinstance(sampler, Importance) else 8, sampler=sampler
        )
        assert not any("unreliable" in note for note in result.notes)


def test_measuring_with_too_few_draws_is_unreliable(tilts, tmp_path):
    model = tilts["contains:11111111"]
    (tmp_path / "test.txt").write_text("11111111\n" * 12)
    few = next(found for seed in range(9) if (found := model.measure(str(tmp_path / "test.txt"), draws=16, seed=seed)))
    assert few.report.facts["reliability"] == "unreliable"
    enough = model.measure(str(tmp_path / "test.txt"), draws=8000)
    assert enough.report.facts["reliability"] == "good" and enough.measurement.estimates.reliability[0].missing == ()


def test_a_student_of_too_few_candidates_is_unreliable(tilts, tmp_path):
    """No candidate shows the feature, so the student learns nothing of it, and the draws that judge it do not show it."""
    model = tilts["starts-with:0110100"]
    few = DistilConfig(draws=20, candidates=20, evaluation_draws=20)
    model.distil(out=str(tmp_path / "student"), distil=few, training=DistilTraining(steps=2))
    report = (tmp_path / "student" / "report.json").read_text() if (tmp_path / "student" / "report.json").exists() else ""
    report += (tmp_path / "student" / "results.json").read_text() + (tmp_path / "student" / "report.html").read_text()
    assert "unreliable" in report


def test_the_folder_holds_moments_and_their_reliability(tilts):
    model = tilts["contains:11111111"]
    stored = esscher.load(model.folder, energy=model.energy_folder).stored_estimates([])
    assert isinstance(stored, StoredEstimates) and stored.reliable
    (moment,) = stored.moments.values()
    assert moment.low < 0.95 < moment.high + 0.03 and esscher.load(model.folder, model.energy_folder).energy.wanted == (0.95,)


def test_a_fit_that_saw_nothing_makes_no_good_draws(base, tmp_path):
    """The energy's own draws were unreliable, so agreement with them proves nothing."""
    model = base.tilt(want={"contains:1": 0.6}, out=str(tmp_path / "energy"), fit=FitConfig(draws=300))
    doubtful = esscher.load(model.folder, model.energy_folder)
    unsure = replace(doubtful, energy=replace(doubtful.energy, verdict="unreliable"))
    (pool,) = unsure.sample(draws=2, sampler=SIR(2000)).pools
    assert pool["verdict"] != "good" and "unreliable itself" in pool["advice"]
    (pool,) = doubtful.sample(draws=2, sampler=SIR(2000)).pools
    assert "unreliable itself" not in pool["advice"]


def test_a_stored_mean_that_draws_contradict_is_named(tilts):
    model = tilts["contains:11111111"]
    other = Estimate(0.2, 0.19, 0.21, 0.95, 8000, "stored")
    changed = replace(model, energy=replace(model.energy, moments=(other,)))
    (pool,) = changed.sample(draws=2, sampler=SIR(8000)).pools
    assert pool["verdict"] == "unreliable" and "and 0.2 as stored" in " ".join(pool["missing"])
