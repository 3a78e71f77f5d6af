"""The paper's stochastic regimes against exact weights, and what they cost."""

import math

import pytest
import torch
from marks import slow
from objectives.moments import BASE, FEATURES, LOG_BASE, MOMENTS, NAMES, TRUE, VALUES, samples

from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.energies.features import feature_values
from esscher.objectives.moment_descent import MomentDescent, base_feature_sampler
from esscher.objectives.moment_matching import match_moments
from esscher.samplers.ancestral import draw

GIVEN = dict(zip(NAMES, MOMENTS.tolist(), strict=True))
BOUNDS = {NAMES[1]: (0.0, 6.0), NAMES[2]: (1.0, 6.0)}


def table_source(seed: int):
    """Features of draws of the base, looked up: fast."""
    rng = SeededRng(seed, "source")
    return lambda count: VALUES[rng.categorical(LOG_BASE[None], count)[0]]


def near(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """The mean of 6 runs is within 8 of its standard errors and 0.03: a right regime fails with probability below 1.5e-3."""
    error = found.std(0) / math.sqrt(len(found))
    return bool(((found.mean(0) - exact).abs() < 8 * error + 0.03).all())


@pytest.mark.parametrize("regime", ["rs", slow("snis")])
def test_weights_are_near_the_exact_ones(regime):
    runs = [
        MomentDescent(regime)(NAMES, table_source(seed), wanted=GIVEN, bounds=BOUNDS, rng=SeededRng(seed)) for seed in range(6)
    ]
    actual = torch.stack([run.tensor() for run in runs])
    assert near(actual, TRUE)
    for wrong in (-actual, actual - TRUE, 1.3 * actual):  # the other sign, no tilting, a rate or bound that is off
        assert not near(wrong, TRUE)


@pytest.mark.parametrize("regime", [slow("rs"), "snis"])
def test_the_interval_holds_the_exact_weights_of_data(regime):
    """Wider than Newton's at 99.9 %: 10 runs, three weights each, two misses have probability 5e-4."""
    misses = 0
    for seed in range(10):
        fit = MomentDescent(regime, patience=8)(
            NAMES, table_source(seed), samples(300, 2, seed).data, bounds=BOUNDS, confidence=0.999, rng=SeededRng(seed)
        )
        misses += sum(not weight.covers(float(true)) for weight, true in zip(fit.weights, TRUE, strict=True))
        assert all(weight.low <= weight.value <= weight.high for weight in fit.weights)
    assert misses <= 1


@pytest.mark.parametrize("regime", ["rs", "snis"])
def test_what_a_run_records(regime):
    counted = 0

    def source(count: int) -> torch.Tensor:
        nonlocal counted
        counted += count
        return feature_values(FEATURES, draw(BASE, empty_prompts(1), count, rng=rng)[0])

    rng = SeededRng(1)
    settings = MomentDescent(regime, epochs=12, updates=5)
    fit = settings(NAMES, source, wanted=GIVEN, bounds=BOUNDS, rng=SeededRng(2))
    assert fit.base_samples == counted == fit.history[-1].base_samples
    assert [item.step for item in fit.history] == list(range(12)) and fit.iterations == 60
    assert fit.history[0].weights == (0.0, 0.0, 0.0) and fit.history[0].base_samples > 0
    assert all(a.base_samples <= b.base_samples for a, b in zip(fit.history, fit.history[1:], strict=False))
    share = torch.softmax(VALUES @ fit.tensor() + LOG_BASE, 0)
    assert fit.ess / fit.base_samples == pytest.approx(float(1 / (share**2 / LOG_BASE.exp()).sum()), rel=0.2)
    assert fit.l1 < 0.5 * sum(abs(a - b) for a, b in zip(fit.moments_base, fit.moments_wanted, strict=True))
    again = settings(
        NAMES, base_feature_sampler(BASE, FEATURES, rng=SeededRng(1)), wanted=GIVEN, bounds=BOUNDS, rng=SeededRng(2)
    )
    assert again.tensor().tolist() == fit.tensor().tolist()
    assert len(match_moments(NAMES, source(2000), wanted=GIVEN).history) > 1


def test_rejection_accepts_by_the_tilted_law():
    """At weights that stay where they are (a rate of almost nothing), accepted draws have the base's moments at 0."""
    fit = MomentDescent("rs", rate=1e-9, updates=200, epochs=3)(
        NAMES, table_source(0), wanted=GIVEN, bounds=BOUNDS, rng=SeededRng(0)
    )
    gap = sum(abs(a - b) for a, b in zip(fit.moments_base, fit.moments_wanted, strict=True))
    assert fit.history[-1].l1 == pytest.approx(gap, abs=0.2)  # 2,000 draws: 5 standard errors of the summed moments


def test_rare_features_cost_little_more_than_their_draws():
    """Acceptance near 1e-3: the source is asked for large batches, and no draw is offered twice."""
    generator, asked = torch.Generator().manual_seed(0), []

    def source(count: int) -> torch.Tensor:
        asked.append(count)
        return (torch.rand(count, 1, generator=generator, dtype=torch.float64) < 1e-3).double()

    fit = MomentDescent("rs", epochs=4, updates=5)(["rare"], source, wanted={"rare": 0.9}, rng=SeededRng(0))
    accepted = 4 * 5 * 10
    assert sum(asked) == fit.base_samples < 2.5 * accepted / 1e-3
    assert sum(asked) / len(asked) > 1000
    assert fit.weights[0].value > 6


def test_bounds():
    at = 0

    def source(count: int) -> torch.Tensor:
        """Early draws do not show the range."""
        nonlocal at
        at += count
        rows = torch.arange(at - count, at, dtype=torch.float64)
        return (rows % 1000 / 1000 * (2 + rows.div(1000).floor()).clamp(max=5))[:, None]

    with pytest.raises(ValueError, match=r"'size' was said to lie between 0 and 3, and a draw has .* biased.*true bounds"):
        MomentDescent("rs", epochs=9)(["size"], source, wanted={"size": 2.0}, bounds={"size": (0.0, 3.0)}, rng=SeededRng(0))
    at = 0
    fit = MomentDescent("rs", epochs=9)(["size"], source, wanted={"size": 2.0}, rng=SeededRng(0))
    assert fit.warnings[-1].kind == "bound raised" and "state `bounds`" in str(fit.warnings[-1])


def test_errors():
    with pytest.raises(ValueError, match=r"Unknown regime 'mcmc'; the known ones are rs, snis"):
        MomentDescent("mcmc")
    with pytest.raises(ValueError, match="patience is more than 0"):
        MomentDescent(patience=0)
    with pytest.raises(ValueError, match="No feature named 'x' to bound"):
        MomentDescent("rs")(NAMES, table_source(0), wanted=GIVEN, bounds={"x": (0.0, 1.0)}, rng=SeededRng(0))
    with pytest.raises(RuntimeError, match=r"above its budget of 5,000.*use match_moments"):
        MomentDescent("rs", budget=5000)(NAMES, table_source(0), wanted=GIVEN, bounds=BOUNDS, rng=SeededRng(0))
    with pytest.raises(ValueError, match=r"'never' should average 0.5.* draw more"):
        MomentDescent(epochs=2)(
            ["never"], lambda n: torch.zeros(n, 1, dtype=torch.float64), wanted={"never": 0.5}, rng=SeededRng(0)
        )
