"""Unique n-grams: counts by hand, ratios against enumeration."""

import pytest
import torch
from random_targets import random_target

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, sequences
from esscher.estimators.populations import count_ngrams, populations, unique_ngrams
from esscher.exact.enumeration import tabulate
from esscher.samplers.importance import Importance
from esscher.testing import assert_covers

SPACE = Space(3, 5, eos=0)
TARGET = random_target(SPACE)


def test_counts_by_hand():
    x = sequences([[1, 2, 1, 2, 0], [1, 1, 1], [2], []], [[1, 2], [], [2, 2, 2], [1]])
    assert [part.tolist() for part in count_ngrams(x, 1)] == [[3, 1, 1, 0], [5, 3, 1, 0]]
    assert [part.tolist() for part in count_ngrams(x, 2)] == [[3, 1, 0, 0], [4, 2, 0, 0]]
    assert [part.tolist() for part in count_ngrams(x, 4)] == [[2, 0, 0, 0], [2, 0, 0, 0]]


def truth(table, log_prob, n):
    different, every = (part.double() for part in count_ngrams(table.x, n))
    return float((log_prob.exp() * different).sum() / (log_prob.exp() * every).sum())


def test_intervals_cover_the_exact_ratio():
    """False alarm 1e-3; the joint's interval does not cover the base's ratio as often."""
    table, runs, n = tabulate(TARGET), 100, 2
    exact = {"data": truth(table, table.log_prob[0], n), "base": truth(table, table.log_base[0], n)}
    exact["joint"] = exact["data"]
    hits, wrong, same = dict.fromkeys(exact, 0), 0, 0
    for seed in range(runs):
        rng = SeededRng(seed)
        x = table.x.rows(rng.categorical(table.log_prob, 60)[0])
        actual = unique_ngrams(populations(x, Importance()(TARGET, empty_prompts(1), 600, rng=rng)), [n], confidence=0.9)[0]
        for name in hits:
            hits[name] += actual.ratio[name].covers(exact[name])
        wrong += actual.ratio["joint"].covers(exact["base"])
        same += actual.above["joint"].covers(0.0)
    for count in (*hits.values(), same):
        assert_covers(count, runs, 0.9)
    assert wrong < 0.5 * runs


def test_what_cannot_be_counted_is_an_error():
    short = sequences([[1, 0], [0]])
    actual = populations(short, Importance()(TARGET, empty_prompts(1), 50, rng=SeededRng(0)))
    with pytest.raises(ValueError, match=r"No point of the data has 3 tokens"):
        unique_ngrams(actual)
    with pytest.raises(ValueError, match=r"at least one token"):
        unique_ngrams(actual, [0])
    assert torch.tensor([row.n for row in unique_ngrams(actual, [1, 2])]).tolist() == [1, 2]
