"""Next-token tables against enumeration: exact where a point is one token, coverage elsewhere, sums of one always."""

import pytest
import torch
from random_targets import random_automaton, random_target, taste

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, prompts_of
from esscher.core.target import Tilted
from esscher.estimators import continuations
from esscher.estimators.continuations import next_tokens
from esscher.exact.enumeration import tabulate
from esscher.samplers.importance import Importance
from esscher.testing import assert_covers

CONFIDENCE = 0.9
SPACE = Space(6, 2, eos=0)
TARGET = Tilted(random_automaton(SPACE), taste(SPACE, seed=4, scale=0.7))
PROMPT = prompts_of([[2, 1]])
EXACT = tabulate(TARGET, PROMPT).log_next(0)[0, 0].exp()


def truth(row, rows):
    """The exact joint probability of a row, those not shown taken together."""
    shown = [other.token for other in rows if other.token is not None]
    return float(EXACT[row.token]) if row.token is not None else 1 - float(EXACT[shown].sum())


def hits(runs):
    """How often the likeliest token and all others are covered."""
    actual = {"first": 0, "others": 0}
    for seed in range(runs):
        rows = next_tokens(TARGET, PROMPT, top=2, draws=40, confidence=CONFIDENCE, rng=SeededRng(seed)).rows
        assert sum(row.joint.value for row in rows) == pytest.approx(1)
        assert sum(row.base.value for row in rows) == pytest.approx(1)
        actual["first"] += rows[0].joint.covers(truth(rows[0], rows))
        actual["others"] += rows[-1].joint.covers(truth(rows[-1], rows))
    return actual


@pytest.mark.slow
def test_intervals_cover():
    """False alarm 1e-3 for each number."""
    actual = hits(120)
    assert_covers(actual["first"], 120, CONFIDENCE)
    assert_covers(actual["others"], 120, CONFIDENCE)


def test_others_that_are_not_weighed_are_caught(monkeypatch):
    def wrong(target, prompt, allowed, draws, *, rng):
        energy = target.energy if int(allowed.sum()) == 1 else (lambda x: torch.zeros(len(x)))
        return Importance()(Tilted(continuations.FirstTokenRestricted(target.base, allowed), energy), prompt, draws, rng=rng)

    monkeypatch.setattr(continuations, "_stratum", wrong)
    actual = hits(25)
    with pytest.raises(AssertionError, match=r"held the truth"):
        assert_covers(actual["others"], 25, CONFIDENCE)


def test_the_base_is_not_the_joint_here():
    rows = next_tokens(TARGET, PROMPT, top=3, draws=3000, rng=SeededRng(0)).rows
    base = TARGET.base.begin(PROMPT)[0][0].softmax(-1)
    for row in rows:
        if row.token is not None:
            assert row.base.n == 0 and row.base.value == pytest.approx(float(base[row.token]))
    assert not all(row.joint.covers(row.base.value) for row in rows)
    assert [row.base.value for row in rows[:-1]] == sorted((row.base.value for row in rows[:-1]), reverse=True)


@pytest.mark.parametrize("space", [Space(6, 1), Space(6, 1, eos=3)], ids=["no end symbol", "end symbol"])
def test_a_point_of_one_token_is_exact(space):
    target = random_target(space)
    expected = tabulate(target, PROMPT).log_next(0)[0, 0].exp()
    rows = next_tokens(target, PROMPT, top=2, rng=SeededRng(0)).rows
    shown = [row.token for row in rows if row.token is not None]
    assert all(row.joint.n == 0 and row.joint.low == row.joint.high for row in rows)
    assert all(row.joint.value == pytest.approx(float(expected[row.token])) for row in rows if row.token is not None)
    assert rows[-1].token is None and rows[-1].joint.value == pytest.approx(1 - float(expected[shown].sum()))
    assert int(expected.argmax()) in shown, "the joint's likeliest is shown, too"
    whole = next_tokens(target, PROMPT, top=6, rng=SeededRng(0)).rows
    assert len(whole) == 6 and all(row.token is not None for row in whole)


def test_all_tokens_shown_leave_no_others_and_a_rare_favourite_is_found():
    space = Space(5, 3)
    base = random_automaton(space)
    rare = int(base.begin(empty_prompts(1))[0][0].argmin())
    target = Tilted(base, lambda x: -6.0 * (x.tokens[:, 0] == rare).double())
    rows = next_tokens(target, empty_prompts(1), top=1, draws=50, rng=SeededRng(0)).rows
    assert rare in [row.token for row in rows] and rows[-1].token is None
    favourite = next(row for row in rows if row.token == rare)
    assert favourite.joint.value > 0.9 > favourite.base.value
    assert len(next_tokens(target, empty_prompts(1), top=5, draws=50, rng=SeededRng(0)).rows) == 5


def test_forbidden_tokens_have_probability_0_and_all_forbidden_is_an_error():
    space = Space(3, 2)
    never = Tilted(random_automaton(space), lambda x: torch.where(x.tokens[:, 0] == 1, torch.inf, 0.0))
    rows = next_tokens(never, empty_prompts(1), top=3, draws=20, rng=SeededRng(0)).rows
    assert [row.joint.value for row in rows if row.token == 1] == [0.0]
    nothing = Tilted(random_automaton(space), lambda x: torch.full((len(x),), torch.inf))
    with pytest.raises(ValueError, match=r"forbids all \d+ draws"):
        next_tokens(nothing, empty_prompts(1), top=2, draws=20, rng=SeededRng(0))


def test_uneven_weights_are_told():
    space = Space(2, 12)
    wild = Tilted(random_automaton(space), taste(space, scale=6.0))
    assert "fewer than 10 effective" in next_tokens(wild, empty_prompts(1), top=2, draws=30, rng=SeededRng(0)).warnings[0]
    assert next_tokens(TARGET, PROMPT, top=2, draws=400, rng=SeededRng(0)).warnings == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": Tilted(TARGET.base)}, "no energy"),
        ({"prompt": prompts_of([[1], [2]])}, "one prompt"),
        ({"top": 0}, "at least 1 token"),
        ({"draws": 1}, "at least 2 draws"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(ValueError, match=message):
        next_tokens(**{"target": TARGET, "prompt": PROMPT, "rng": SeededRng(0), **arguments})
