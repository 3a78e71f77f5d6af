"""Trained energies in the laboratory: the study's own numbers are exact, and a quick energy comes near the entropy."""

from dataclasses import replace

import pytest
import torch

from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.estimators.log_z import log_z
from esscher.exact.enumeration import tabulate
from esscher.papers.laboratory import residual as laboratory
from esscher.papers.study import StudyContext
from esscher.samplers.importance import Importance
from esscher.samplers.sir import SIR
from esscher.testing import assert_covers, assert_draws_follow


@pytest.fixture(scope="module")
def known():
    """One energy, trained for a few seconds."""
    scale = replace(laboratory.SCALES["smoke"], steps=80)
    with torch.random.fork_rng():
        return laboratory.train_energy(1, "BiT", scale)


@pytest.mark.slow
def test_a_kept_energy_is_not_trained_again(known, tmp_path, monkeypatch):
    scale = replace(laboratory.SCALES["smoke"], steps=2)
    first = laboratory.train_energy(1, "UniT", scale, tmp_path)
    monkeypatch.setattr(laboratory, "Trainer", None)
    again = laboratory.train_energy(1, "UniT", scale, tmp_path)
    assert torch.equal(first.table.log_weight, again.table.log_weight) and torch.equal(
        first.table.log_base, again.table.log_base
    )


def test_the_row_is_exact_and_the_energy_learnt(known):
    row = laboratory.entropy_row(1, "BiT", known)
    assert row["base / entropy"] > row["joint / entropy"] > 1 - 1e-9
    gained = (row["base / entropy"] - row["joint / entropy"]) / (row["base / entropy"] - 1)
    assert gained > 0.5  # of what there was to gain
    empty = known.process_table.log_prob[0]
    assert row["entropy"] == pytest.approx(float(known.process_table.entropy.mean()))
    assert float(known.process_table.entropy[0]) == pytest.approx(float(-(empty.exp() * empty).sum()))


def test_looked_up_energies_are_those_of_the_table(known):
    prompts = prompts_of(laboratory.PROMPTS)
    again = tabulate(Tilted(known.base, known.target.energy), prompts)
    assert torch.equal(again.log_weight, known.table.log_weight)
    mixed = sequences([[1, 0], [2, 2, 2, 2, 2], [0]], [[2, 1], [], [1]])
    one_by_one = torch.cat([known.target.energy(mixed.rows(slice(row, row + 1))) for row in range(3)])
    assert torch.equal(known.target.energy(mixed), one_by_one)
    with pytest.raises(ValueError, match="not among those of the table"):
        known.target.energy(sequences([[0]], [[2, 2, 2]]))


def test_intervals_cover_with_a_trained_energy(known):
    """200 replications; fails by chance once in a thousand."""
    runs = Importance()(known.target, empty_prompts(200), 300, rng=SeededRng(0))
    truth = float(known.table.log_z[0])
    assert_covers(sum(log_z(item).covers(truth) for item in laboratory.per_prompt(runs)), 200, 0.95)


def test_a_study_in_small_has_all_its_rows(known):
    rows = laboratory.coverage_rows(known, 3)
    names = [row["quantity"] for row in rows]
    assert set(names) == {*laboratory.exact_values(known), "perplexity, guaranteed"} and "step 1" in names
    assert all(row["replications"] == 3 for row in rows)


@pytest.mark.slow
def test_pools_come_nearer_as_they_grow(known):
    """False alarm below 1e-6: Pool(256) follows the joint where Pool(1), which is the base, does not."""
    actual = [laboratory.pool_row(known, size, 3000) for size in (1, 256)]
    assert actual[0]["total variation"] > 2 * actual[1]["total variation"]
    assert actual[1]["total variation"] < 1.3 * actual[1]["highest of exact draws"]
    prompts = empty_prompts(1500)
    assert_draws_follow(known.target, prompts, SIR(256, shared=False)(known.target, prompts, 1, rng=SeededRng(2)))
    with pytest.raises(AssertionError, match="standard errors apart"):
        assert_draws_follow(known.target, prompts, SIR(1, shared=False)(known.target, prompts, 1, rng=SeededRng(2)))


@pytest.mark.slow
def test_the_smoke_study(tmp_path):
    result = laboratory.run(StudyContext(scale="smoke", out=tmp_path, seeds=1))
    assert len(result["rows"]) == 2 and len(result["pool"]) == 5
