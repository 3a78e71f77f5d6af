"""Difficult features, warnings and errors of fitted weights."""

import math

import pytest
import torch

from esscher.objectives.moment_matching import match_moments


def shares(*probability: float, count: int = 2000, seed: int = 0) -> torch.Tensor:
    """Independent features that are 0 or 1."""
    drawn = torch.rand(count, len(probability), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (drawn < torch.tensor(probability)).double()


def kinds(fit) -> dict[str, tuple[str, ...]]:
    return {warning.kind: warning.features for warning in fit.warnings}


@pytest.mark.parametrize("want", [1e-6, 0.01, 0.5, 0.99, 1 - 1e-6])
@pytest.mark.parametrize("rate", [0.002, 0.3, 0.999])
def test_one_share_has_the_weight_that_is_known(rate, want):
    """The weight of a single share is the difference of two log-odds, however rare or frequent."""
    base = shares(rate, count=20_000)
    fit = match_moments(["a"], base, wanted={"a": want})
    seen = float(base.mean())
    assert fit.weights[0].value == pytest.approx(math.log(want / (1 - want)) - math.log(seen / (1 - seen)), abs=1e-6)
    assert fit.iterations < 60


def test_independent_shares_do_not_disturb_each_other():
    every = torch.tensor([[a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1)], dtype=torch.float64)
    odds = torch.tensor([-6.0, 0.5, 3.0], dtype=torch.float64)
    fit = match_moments(["a", "b", "c"], every, wanted={"a": 0.9, "b": 0.2, "c": 1e-5}, log_weight=every @ odds)
    wanted = torch.tensor([0.9, 0.2, 1e-5], dtype=torch.float64)
    assert torch.allclose(fit.tensor(), wanted.logit() - odds, atol=1e-6)


def test_two_hundred_features():
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(4000, 200, generator=generator, dtype=torch.float64) * torch.logspace(-3, 3, 200)
    names = [str(k) for k in range(200)]
    wanted = dict(zip(names, (0.02 * base.std(0)).tolist(), strict=True))
    fit = match_moments(names, base, wanted=wanted)
    assert torch.allclose(torch.tensor(fit.moments_model), torch.tensor(fit.moments_wanted), rtol=1e-6)


def test_nearly_collinear_features_are_told_apart():
    base = shares(0.5, 0.5)
    base = torch.cat([base, base[:, :1] + 1e-3 * base[:, 1:] * torch.linspace(0, 1, 2000, dtype=torch.float64)[:, None]], 1)
    fit = match_moments(["a", "b", "nearly a"], base, wanted={"a": 0.6, "b": 0.4, "nearly a": 0.6 + 2.1e-4})
    assert fit.l1 < 1e-8 and "collinear" not in kinds(fit)


def test_collinear_features_are_named_and_the_others_are_known():
    base = shares(0.3, 0.5)
    both = torch.cat([base, 1 - base[:, :1]], 1)
    fit = match_moments(["a", "b", "no a"], both, wanted={"a": 0.6, "b": 0.4, "no a": 0.4})
    alone = match_moments(["a", "b"], base, wanted={"a": 0.6, "b": 0.4})
    assert kinds(fit) == {"collinear": ("a", "no a")}
    assert fit.weights[1].value == pytest.approx(alone.weights[1].value)
    assert fit.weights[0].value - fit.weights[2].value == pytest.approx(alone.weights[0].value)
    assert "drop one" in str(fit.warnings[0])


def test_a_feature_all_data_have_gets_a_finite_weight_by_the_prior():
    base, data = shares(0.5, 0.4), shares(1.0, 0.6, count=500, seed=1)
    fit = match_moments(["a", "b"], base, data)
    assert 5 < fit.weights[0].value < 9
    assert kinds(fit)["separable"] == ("a",) and "prior of 0.5" in str(fit.warnings[0])
    assert fit.weights[0].high - fit.weights[0].low > 3  # the data say its sign, not its size
    assert fit.rows()[0]["note"].startswith("separable") and fit.rows()[1]["note"] == ""
    with pytest.raises(ValueError, match=r"'a' should average 1.*no finite weight.*larger `prior`"):
        match_moments(["a", "b"], base, data, prior=0.0)
    ridged = match_moments(["a", "b"], base, data, prior=0.0, ridge=2.0)
    assert 1 < ridged.weights[0].value < 9 and kinds(ridged)["separable"] == ("a",)


def test_features_that_only_together_are_on_one_side():
    """The base has b without c, the data never."""
    base = shares(0.3, 0.5)
    base = torch.cat([base, base[:, :1] * base[:, 1:]], 1)
    data = base[:500][base[:500, 0] <= base[:500, 1]]
    names = ["b", "c", "both"]
    assert set(kinds(match_moments(names, base, data))["separable"]) >= {"b", "both"}
    assert "separable" not in kinds(match_moments(names, base, base[500:1000]))
    with pytest.raises(ValueError, match=r"together.*'b' .*'both' .*on the edge.*raise `prior` or set `ridge`"):
        match_moments(names, base, data, prior=0.0)


def test_a_constant_feature_is_held_at_zero():
    base, data = shares(0.0, 0.5), shares(0.0, 0.6, seed=1)
    fit = match_moments(["never", "b"], base, data)
    assert fit.weights[0].value == 0 and "held at 0" in fit.weights[0].method
    assert kinds(fit) == {"no support": ("never",)}


def test_few_draws_behind_a_weight_are_named():
    fit = match_moments(["rare", "b"], shares(0.002, 0.5), wanted={"rare": 0.5, "b": 0.5})
    assert kinds(fit)["rare"] == ("rare",) and kinds(fit)["few effective"] == ("rare", "b") and fit.ess < 30
    assert "draw more" in str(fit.warnings[0])


def test_the_ridge_leaves_moments_unmatched_and_says_so():
    fit = match_moments(["a"], shares(0.1), shares(0.9, count=100, seed=1), ridge=0.1)
    assert kinds(fit)["not matched"] == ("a",) and fit.l1 > 0.3


def test_rows_and_history():
    fit = match_moments(["a", "b"], shares(0.1, 0.5), shares(0.3, 0.5, count=300, seed=1), wanted={"b": 0.25})
    first, second = fit.rows()
    assert list(first) == ["feature", "weight", "in the data", "wanted", "in the base", "under the model", "note"]
    assert second["in the data"] is None and second["wanted"] == 0.25 and second["note"] == "given"
    assert first["under the model"] == pytest.approx(first["wanted"])
    assert fit.base_samples == 2000 and [item.step for item in fit.history] == list(range(fit.iterations + 1))
    assert fit.history[0].weights == (0.0, 0.0) and fit.history[-1].l1 < 1e-9


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            {"a": -0.2, "b": 0.5},
            r"'a' should average -0.2, but in the 2,000 draws .* between 0 and 1.*a share.*above 0 and below 1",
        ),
        ({"a": 1.3, "b": 0.5}, r"'a' should average 1.3.*a share"),
        ({"a": 1.0, "b": 0.5}, r"'a' should average 1, .*no finite weight.*condition of sampling"),
        ({"a": math.nan}, r"moment of feature 'a' is nan.*finite number"),
        ({"b": math.inf}, r"moment of feature 'b' is inf"),
        ({"B": 0.5}, r"No feature named 'B'.*The features are a, b, long"),
        ({"long": None}, r"Feature 'long' has no moment to match.*wanted=\{'long'"),
        ({"long": 99.0}, r"'long' should average 99, .* between 1 and 30.*strictly inside"),
    ],
)
def test_impossible_moments_are_named(wanted, message):
    long = 1 + torch.arange(2000, dtype=torch.float64)[:, None] % 30
    stated = {"a": 0.5, "b": 0.5, "long": 9.0, **wanted}
    stated = {name: value for name, value in stated.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        match_moments(["a", "b", "long"], torch.cat([shares(0.3, 0.5), long], 1), wanted=stated)


def test_moments_that_contradict_each_other_are_named():
    base = shares(0.3, 0.5, 0.6)
    both = torch.cat([base, 1 - base[:, :1]], 1)
    names = ["a", "b", "c", "no a"]
    with pytest.raises(ValueError, match=r"together, though each alone is possible: 'a' 0.9, 'no a' 0.9\. .*contradict each"):
        match_moments(names, both, wanted={"a": 0.9, "b": 0.4, "c": 0.7, "no a": 0.9})
    pair = torch.cat([base, base[:, :1] * base[:, 1:2]], 1)
    names = ["a", "b", "c", "both"]
    with pytest.raises(
        ValueError, match=r"possible: 'a' 0.3, 'both' 0.4\. .*nearest that weighted draws can give is 0.\d+, 0.\d+"
    ):
        match_moments(names, pair, wanted={"a": 0.3, "b": 0.6, "c": 0.7, "both": 0.4})
    with pytest.raises(ValueError, match=r"'a' 0.3, 'both' 0.3\. .*on the edge"):
        match_moments(names, pair, wanted={"a": 0.3, "b": 0.6, "c": 0.7, "both": 0.3})
    assert match_moments(names, pair, wanted={"a": 0.3, "b": 0.6, "c": 0.7, "both": 0.29999}).l1 < 1e-9


def test_a_feature_the_base_never_shows_is_named():
    with pytest.raises(ValueError, match=r"'never' should average 0\.\d+, .* always 0: no finite weight.* draw more"):
        match_moments(["never", "b"], shares(0.0, 0.5), shares(0.3, 0.5, seed=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": torch.zeros(0, 2, dtype=torch.float64)}, r"'a' has no moment to match: there are no data"),
        ({"data": torch.full((3, 2), math.nan, dtype=torch.float64)}, r"'a' is nan in row 0 of the data"),
        ({"names": ["a"]}, r"data have 2 features and 1 names"),
        ({"prior": -1.0}, r"at least 0, not -1"),
        ({"ridge": 0.0}, r"more than 0, not 0"),
        ({"confidence": 1.0}, r"between 0 and 1, not 1"),
        ({"data": None, "wanted": {"a": 0.5, "b": 0.5}, "ridge": 1.0}, r"All moments are given.*leave `ridge` out"),
        ({"log_weight": torch.full((2000,), -math.inf)}, r"0 of 2000 draws of the base have weight"),
        ({"log_weight": torch.full((2000,), math.nan)}, r"log-weight .* NaN"),
        ({"base": torch.full((9, 2), math.inf, dtype=torch.float64)}, r"'a' is inf in row 0 of the base's draws"),
        ({"names": ["a", "a"]}, r"a name each"),
    ],
)  # fmt: skip
def test_bad_input(settings, message):
    inputs = {"names": ["a", "b"], "base": shares(0.3, 0.5), "data": shares(0.4, 0.5, count=50, seed=1)}
    with pytest.raises(ValueError, match=message):
        match_moments(**{**inputs, **settings})


def test_draws_without_weight_are_left_out():
    base, log_weight = shares(0.3, 0.5), torch.zeros(2000, dtype=torch.float64)
    log_weight[1000:] = -math.inf
    some = match_moments(["a", "b"], base, wanted={"a": 0.5, "b": 0.5}, log_weight=log_weight)
    half = match_moments(["a", "b"], base[:1000], wanted={"a": 0.5, "b": 0.5})
    assert torch.allclose(some.tensor(), half.tensor())
    assert [weight.high for weight in some.weights] == pytest.approx([weight.high for weight in half.weights])
    assert some.base_samples == 2000


def test_each_group_of_collinear_features_has_its_own_warning():
    base = shares(0.3, 0.5, 0.4)
    both = torch.cat([base, 1 - base[:, :1], 2 * base[:, 1:2]], 1)
    wanted = {"a": 0.6, "b": 0.4, "c": 0.4, "no a": 0.4, "twice b": 0.8}
    fit = match_moments(list(wanted), both, wanted=wanted)
    assert [warning.features for warning in fit.warnings] == [("a", "no a"), ("b", "twice b")]
    assert {warning.kind for warning in fit.warnings} == {"collinear"}


def test_a_constant_feature_may_be_wanted_where_it_is_and_nowhere_else():
    base = torch.cat([shares(0.5), torch.full((2000, 1), 7.0, dtype=torch.float64)], 1)
    for want in (7.0, 7.0 + 5e-12):
        assert match_moments(["a", "seven"], base, wanted={"a": 0.4, "seven": want}).weights[1].value == 0
    with pytest.raises(ValueError, match=r"'seven' should average 7, .* it is always 7: no finite weight"):
        match_moments(["a", "seven"], base, wanted={"a": 0.4, "seven": 7.0 + 1e-11})
