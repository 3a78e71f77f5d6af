"""A watched target counts each token and each energy once, and speaks no more often than it should."""

import pytest
from random_targets import random_target

from esscher.core import progress
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts
from esscher.core.target import Tilted, flat
from esscher.samplers.importance import Importance
from esscher.samplers.progress import ProgressCounter, with_progress


@pytest.fixture
def clock(monkeypatch):
    """The seconds that pass, set by hand."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_it_speaks_after_every_pause(clock):
    said: list[str] = []
    tally = ProgressCounter(said.append, pause=5.0)
    for at, tokens, weighed in ((104.9, 1000, 0), (105.0, 200, 3), (109.9, 1, 0), (110.0, 0, 4), (110.1, 1, 1)):
        clock[0] = at
        tally.add(tokens=tokens, weighed=weighed)
    assert said == ["1,200 tokens drawn, 3 sequences weighed, 5 s", "1,201 tokens drawn, 7 sequences weighed, 10 s"]
    assert (tally.tokens, tally.weighed) == (1202, 8)


def test_the_usual_pause_is_ten_seconds(clock):
    said: list[str] = []
    tally = ProgressCounter(said.append)
    for at in (109.9, 110.0):
        clock[0] = at
        tally.add()
    assert said == ["0 tokens drawn, 0 sequences weighed, 10 s"]


def test_every_token_and_every_energy_counts_once_and_changes_nothing():
    target, tally = random_target(Space(3, 4)), ProgressCounter(lambda text: None)
    seen = with_progress(target, tally)
    plain, same = (Importance()(item, empty_prompts(1), 1, rng=SeededRng(0)) for item in (target, seen))
    assert same.x.points() == plain.x.points() and same.log_weight.tolist() == plain.log_weight.tolist()
    assert (tally.tokens, tally.weighed) == (3, 1)  # the first token follows from the prompt alone
    assert seen.space == target.space
    assert with_progress(Tilted(target.base), tally).energy is flat
