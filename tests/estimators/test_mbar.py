"""Multistate reweighting: the numbers of pymbar, exact values on enumerated models, and coverage with runs as replicates."""

import json
import math
from pathlib import Path

import pytest
import torch
from random_targets import random_target

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts
from esscher.estimators import mbar
from esscher.estimators.mbar import ladder_mbar, mbar_log_z, mbar_moments, solve_mbar
from esscher.samplers.importance import Exhaustive
from esscher.samplers.ladder import Ladder, LadderRuns
from esscher.testing import assert_covers

GOLDEN = json.loads((Path(__file__).parent / "mbar_golden.json").read_text())
TARGET = random_target(Space(3, 4, eos=0))
RUNGS = torch.tensor([[0.0, 0, 0, 0, 0], [0.5, 0, 0, 0, 0], [1.0, 0, 0, 0, 0]], dtype=torch.float64)
EVERY = Exhaustive()(TARGET, empty_prompts(1), 0, rng=SeededRng(0))
LOG_Z = float(EVERY.log_z())


def ones(x) -> torch.Tensor:
    return (x.counted & (x.tokens == 1)).sum(-1).double()


MEAN_ONES = float(EVERY.expect(ones(EVERY.x)[None]))


def runs_of(seed: int, runs: int = 6, particles: int = 24) -> LadderRuns:
    return Ladder(particles, moves=2).run(TARGET, empty_prompts(1), runs, rng=SeededRng(seed), rungs=RUNGS)


def features_of(runs: LadderRuns) -> torch.Tensor:
    return torch.stack([ones(x).view(runs.log_base.shape[1:]) for x in runs.x])[..., None]


@pytest.mark.parametrize("case", GOLDEN, ids=["three states", "a state without draws"])
def test_the_numbers_are_those_of_pymbar(case):
    """Golden numbers: mbar_golden.py."""
    energy, counts = torch.tensor(case["reduced_energy"], dtype=torch.float64), torch.tensor(case["counts"])
    solution = solve_mbar(-energy, counts)
    assert (-solution.log_z).tolist() == pytest.approx(case["free_energy"], abs=1e-8)
    variance = solution.covariance()
    spread = variance.diagonal()[:, None] + variance.diagonal() - 2 * variance
    assert torch.allclose(spread.clamp(min=0).sqrt(), torch.tensor(case["error"], dtype=torch.float64), atol=1e-7)
    assert solution.log_weight[-1].exp().tolist() == pytest.approx(case["weights_of_last"], abs=1e-8)
    x = torch.tensor(case["x"], dtype=torch.float64)
    assert [solution.expect(x, state) for state in range(len(counts))] == pytest.approx(case["expectation"], abs=1e-8)


def test_weights_of_every_state_sum_to_one_and_a_common_factor_does_not_matter():
    case = GOLDEN[0]
    energy, counts = torch.tensor(case["reduced_energy"], dtype=torch.float64), torch.tensor(case["counts"])
    solution, shifted = solve_mbar(-energy, counts), solve_mbar(-energy + torch.tensor([[0.0], [700.0], [-900.0]]), counts)
    assert torch.allclose(solution.log_weight.exp().sum(-1), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(shifted.log_z - solution.log_z, torch.tensor([0.0, 700.0, -900.0], dtype=torch.float64))


def test_exact_draws_give_the_exact_log_z():
    """With all points of the space as draws of the base, in proportion, the equations have the exact solution."""
    log_tilt = EVERY.log_weight[0] - EVERY.log_base[0] - math.log(EVERY.log_base.shape[1])
    times = (EVERY.log_base[0].exp() * 10**6).round().long()
    density = torch.stack([torch.zeros_like(log_tilt), log_tilt]).repeat_interleave(times, 1)
    solution = solve_mbar(density, torch.tensor([density.shape[1], 0]))
    assert float(solution.log_z[1]) == pytest.approx(LOG_Z, abs=1e-4)


def coverage(replications: int, estimate) -> tuple[int, int]:
    """How often log Z and a moment are covered."""
    hits = [estimate(runs_of(seed)) for seed in range(replications)]
    return sum(log_z.covers(LOG_Z) for log_z, _ in hits), sum(mean.covers(MEAN_ONES) for _, mean in hits)


def test_runs_as_replicates_cover():
    """False-alarm rate 1e-3 each."""
    replications = 60

    def by_runs(runs):
        return mbar_log_z(runs), mbar_moments(runs, features_of(runs))[0]

    for hits in coverage(replications, by_runs):
        assert_covers(hits, replications, 0.95)


def test_pooling_all_rungs_is_nearer_than_the_last_one_alone():
    """The mean squared error of the moment, 40 ladders: pooled draws against the particles of the last rung."""
    pooled, last = [], []
    for seed in range(40):
        runs = runs_of(seed, runs=2)
        values = features_of(runs)[..., 0]
        pooled.append(ladder_mbar(runs).expect(values.reshape(-1)) - MEAN_ONES)
        last.append(float((runs.log_z().softmax(0)[:, None] * values[-1]).sum() / values.shape[2]) - MEAN_ONES)
    assert sum(gap**2 for gap in pooled) < sum(gap**2 for gap in last)


def test_a_wrong_mixture_is_caught(monkeypatch):
    """The wrong version: states in the mixture without their counts."""
    right = mbar._substituted
    monkeypatch.setattr(mbar, "_better_of", lambda density, count, z: right(density, torch.zeros_like(count), z))
    case = GOLDEN[0]
    solution = solve_mbar(-torch.tensor(case["reduced_energy"], dtype=torch.float64), torch.tensor(case["counts"]))
    assert (-solution.log_z).tolist() != pytest.approx(case["free_energy"], abs=1e-3)


def test_refusals():
    density = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="sum to the number of draws"):
        solve_mbar(density, torch.tensor([1, 1]))
    with pytest.raises(ValueError, match="a number, or -inf"):
        solve_mbar(density.fill_(math.nan), torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="forbidden by all states"):
        solve_mbar(torch.full((2, 3), -math.inf), torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="at least 2 runs"):
        mbar_log_z(runs_of(0, runs=1))
    with pytest.raises(ValueError, match="one row of features a draw"):
        mbar_moments(runs_of(0, runs=2), torch.zeros(1, 2, 3, 1))
