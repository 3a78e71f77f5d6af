"""Votes survive crashes, pairs are blind and fair, and what is shown is escaped."""

import json
from collections import Counter

import pytest

from esscher.cli import main
from esscher.explorer import blind_comparison
from esscher.explorer.blind_comparison import VOTES, ComparisonHandlers, ComparisonStore, make_pairs

EVIL = "<script>alert(1)</script> <img src=x onerror=alert(2)>"


@pytest.fixture
def store(tmp_path):
    texts = [[f"{name} wrote text number {n} here" for n in range(20)] for name in ("first", "second")]
    pairs = make_pairs([f"prompt {n}" for n in range(20)], *texts, seed=0)
    return ComparisonStore.create_or_resume(tmp_path / "judged", pairs, seed=0)


def test_checks_are_the_same_words_in_another_order(store):
    checks = [store.pairs[name] for name in store.checks]
    assert len(checks) == 2 and len(store.pairs) == 22
    for pair in checks:
        assert sorted(pair.a.split()) == sorted(pair.b.split()) and pair.a != pair.b


def test_votes_are_kept_by_model_whatever_side_they_stood_on(store):
    seen = []
    while (pair := store.next("ann")) is not None:
        seen.append(pair.id)
        store.vote("ann", pair, "left" if store.left_model("ann", pair) == "b" else "right")
    assert sorted(seen) == sorted(store.pairs) and {vote.choice for vote in store.votes()} == {"b"}
    other = [store.next("bob")]
    assert other[0] is not None and Counter(vote.rater for vote in store.votes()) == {"ann": 22}
    sides = Counter(store.left_model(f"rater {n}", pair) for n in range(20) for pair in store.pairs.values())
    assert abs(sides["a"] - 220) < 5 * 220**0.5 / 2**0.5  # five deviations
    assert seen != list(store.pairs)


def test_a_crash_loses_no_confirmed_vote(store):
    first, again = store.next("ann"), store.next("ann")
    assert first == again
    store.vote("ann", first, "left")
    store.vote("ann", first, "right")  # a second click
    with (store.folder / VOTES).open("a") as file:
        file.write('{"pair": "p3", "rat')  # a crash in the midst of a line
    after = ComparisonStore(store.folder)
    assert after.votes() == store.votes()[:1] and after.next("ann") == store.next("ann") != first
    after.vote("ann", after.next("ann"), "equal")
    lines = (store.folder / VOTES).read_text().splitlines()
    assert len(lines) == 2 and all(json.loads(line) for line in lines)


def test_other_pairs_are_refused(store):
    with pytest.raises(ValueError, match="no vote was lost"):
        ComparisonStore.create_or_resume(store.folder, make_pairs(["p"], ["x y z w"], ["y"], seed=0), seed=0)
    with pytest.raises(ValueError, match="nothing to judge"):
        make_pairs(["p"], ["same"], ["same "], seed=0)
    with pytest.raises(ValueError, match="choose from"):
        store.vote("ann", store.next("ann"), "up")
    with pytest.raises(ValueError, match="name"):
        store.vote(" ", store.next("ann"), "left")


def test_names_and_raters_are_bounded(store, monkeypatch):
    pair = store.next("ann")
    for wrong in ("a" * 65, "a\nb", "a\u202eb", "a\ud800"):
        assert "printable" in ComparisonHandlers(store).show(wrong)[0]
        with pytest.raises(ValueError, match="at most 64 printable"):
            store.vote(wrong, pair, "left")
    monkeypatch.setattr(blind_comparison, "MAX_RATERS", 1)
    store.vote("ann", pair, "left")
    with pytest.raises(ValueError, match="1 raters already"):
        store.vote("bob", pair, "left")
    store.vote("ann", store.next("ann"), "left")
    assert len(store.votes()) == 2


def test_texts_are_never_markup_and_the_page_does_not_tell_who_wrote(tmp_path):
    work = ComparisonHandlers(ComparisonStore.create_or_resume(tmp_path, make_pairs([EVIL], [EVIL], ["other"], seed=0), seed=0))
    html, now = work.show("ann")
    assert "<script" not in html and "<img" not in html and "&lt;script&gt;" in html
    done = work.vote(now, "left")
    assert "error" in work.show("")[0] and work.vote(None, "left")[1] is None
    assert "Pair 2 of 2" in done[0] and "Thank you" in work.vote(done[1], "equal")[0]


def test_results_are_printed(store, capsys):
    for rater in ("ann", "bob"):
        while (pair := store.next(rater)) is not None:
            better = pair.expected or "b"
            store.vote(rater, pair, "left" if store.left_model(rater, pair) == better else "right")
    main(["compare", "--results", str(store.folder), "--json"])
    output = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert output["prefer_b"]["value"] == 1 and output["p_value"] == pytest.approx(2 / 2**20)
    assert output["agreement_of_raters"]["value"] == 1 and output["krippendorff_alpha"] is None  # all say the same
    assert output["votes_for_b"] == 40
    assert [row["checks right"] for row in output["raters"]] == [1.0, 1.0]
