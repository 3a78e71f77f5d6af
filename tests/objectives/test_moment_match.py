"""Fitted weights against exact ones, by enumeration."""

import pytest
import torch
from languages import random_automaton

from esscher.energies.features import LogLinear, contains, count, length, values
from esscher.exact.enumeration import enumerate_points
from esscher.objectives.moment_match import match_moments
from esscher.randomness import Seeded
from esscher.samplers.ancestral import draw
from esscher.space import Space, empty_prompts
from esscher.target import Tilted
from esscher.testing import assert_covers

SPACE = Space(3, 6, eos=0)
FEATURES = [contains([1, 2]), count([2]), length()]
NAMES = [feature.name for feature in FEATURES]
TRUE = torch.tensor([1.5, -0.7, 0.3], dtype=torch.float64)


def data_and_base(size: int, seed: int, *, drawn: int | None = None):
    """Data of a target with known weights, and draws of its base (as many, unless told): features of both."""
    base = random_automaton(SPACE)
    x = enumerate_points(SPACE)
    log_score = Tilted(base, LogLinear(FEATURES, TRUE)).log_score(x).detach()
    rng = Seeded(seed)
    data = x.rows(rng.categorical(log_score[None], size)[0])
    points, _ = draw(base, empty_prompts(1), drawn or size, rng=rng)
    return values(FEATURES, points), values(FEATURES, data)


@pytest.mark.parametrize(("size", "drawn"), [(400, 4000), (4000, 400)], ids=["few data", "few draws"])
def test_weights_are_found_and_their_intervals_cover(size, drawn):
    """Either sample dominates the error once; 250 repetitions, a correct interval fails with probability 1e-4 each."""
    hits = torch.zeros(3)
    for seed in range(250):
        fit = match_moments(NAMES, *data_and_base(size, seed, drawn=drawn), prior=0.0)
        assert fit.moments_model == pytest.approx(fit.moments_wanted, abs=1e-7)
        hits += torch.tensor([weight.covers(float(true)) for weight, true in zip(fit.weights, TRUE, strict=True)])
    for hit in hits.tolist():
        assert_covers(int(hit), 250, 0.95, false_alarm=1e-4)


def test_a_feature_all_data_have_gets_a_finite_weight_by_the_prior():
    base, data = data_and_base(2000, 0)
    data[:, 0] = 1.0
    fit = match_moments(NAMES, base, data)
    assert 3 < fit.weights[0].value < 15
    with pytest.raises(ValueError, match=r"contains \[1, 2\].*no finite weight"):
        match_moments(NAMES, base, data, prior=0.0)


def test_a_feature_the_base_never_shows_is_named():
    base, data = data_and_base(500, 0)
    base[:, 0] = 0.0
    with pytest.raises(ValueError, match=r"'contains \[1, 2\]' should average .* draw more"):
        match_moments(NAMES, base, data)
