"""Votes survive crashes, pairs are blind and fair, and what is shown is escaped."""

import json
from collections import Counter

import pytest

from esscher.cli import main
from esscher.explorer.ballots import VOTES, Ballots, make_pairs
from esscher.explorer.compare_page import Voting

EVIL = "<script>alert(1)</script> <img src=x onerror=alert(2)>"


@pytest.fixture
def ballots(tmp_path):
    texts = [[f"{name} wrote text number {n} here" for n in range(20)] for name in ("first", "second")]
    pairs = make_pairs([f"prompt {n}" for n in range(20)], *texts, seed=0)
    return Ballots.begin(tmp_path / "judged", pairs, seed=0)


def test_checks_are_the_same_words_in_another_order(ballots):
    checks = [ballots.pairs[name] for name in ballots.checks]
    assert len(checks) == 2 and len(ballots.pairs) == 22
    for pair in checks:
        assert sorted(pair.a.split()) == sorted(pair.b.split()) and pair.a != pair.b


def test_votes_are_kept_by_model_whatever_side_they_stood_on(ballots):
    seen = []
    while (pair := ballots.next("ann")) is not None:
        seen.append(pair.id)
        ballots.vote("ann", pair, "left" if ballots.left("ann", pair) == "b" else "right")
    assert sorted(seen) == sorted(ballots.pairs) and {vote.choice for vote in ballots.votes()} == {"b"}
    other = [ballots.next("bob")]
    assert other[0] is not None and Counter(vote.rater for vote in ballots.votes()) == {"ann": 22}
    sides = Counter(ballots.left(f"rater {n}", pair) for n in range(20) for pair in ballots.pairs.values())
    assert abs(sides["a"] - 220) < 5 * 220**0.5 / 2**0.5  # five deviations
    assert seen != list(ballots.pairs)


def test_a_crash_loses_no_confirmed_vote(ballots):
    first, again = ballots.next("ann"), ballots.next("ann")
    assert first == again
    ballots.vote("ann", first, "left")
    ballots.vote("ann", first, "right")  # a second click
    with (ballots.folder / VOTES).open("a") as file:
        file.write('{"pair": "p3", "rat')  # a crash in the midst of a line
    after = Ballots(ballots.folder)
    assert after.votes() == ballots.votes()[:1] and after.next("ann") == ballots.next("ann") != first
    after.vote("ann", after.next("ann"), "equal")
    lines = (ballots.folder / VOTES).read_text().splitlines()
    assert len(lines) == 2 and all(json.loads(line) for line in lines)


def test_other_pairs_are_refused(ballots):
    with pytest.raises(ValueError, match="no vote was lost"):
        Ballots.begin(ballots.folder, make_pairs(["p"], ["x y z w"], ["y"], seed=0), seed=0)
    with pytest.raises(ValueError, match="nothing to judge"):
        make_pairs(["p"], ["same"], ["same "], seed=0)
    with pytest.raises(ValueError, match="choose from"):
        ballots.vote("ann", ballots.next("ann"), "up")
    with pytest.raises(ValueError, match="name"):
        ballots.vote(" ", ballots.next("ann"), "left")


def test_texts_are_never_markup_and_the_page_does_not_tell_who_wrote(tmp_path):
    work = Voting(Ballots.begin(tmp_path, make_pairs([EVIL], [EVIL], ["other"], seed=0), seed=0))
    html, now = work.show("ann")
    assert "<script" not in html and "<img" not in html and "&lt;script&gt;" in html
    done = work.vote(now, "left")
    assert "error" in work.show("")[0] and work.vote(None, "left")[1] is None
    assert "Pair 2 of 2" in done[0] and "Thank you" in work.vote(done[1], "equal")[0]


def test_results_are_printed(ballots, capsys):
    for rater in ("ann", "bob"):
        while (pair := ballots.next(rater)) is not None:
            better = pair.right or "b"
            ballots.vote(rater, pair, "left" if ballots.left(rater, pair) == better else "right")
    with pytest.raises(SystemExit):
        main(["compare", "--results", str(ballots.folder), "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["prefer_b"]["value"] == 1 and found["p_value"] == pytest.approx(2 / 2**20)
    assert found["agreement_of_raters"]["value"] == 1 and found["krippendorff_alpha"] is None  # all say the same
    assert found["votes_for_b"] == 40
    assert [row["checks right"] for row in found["raters"]] == [1.0, 1.0]
