"""The study of rare events: events as rare as it says, and exact probabilities of how texts start."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch

from esscher.papers.laboratory.risk import AUTOMATON, SCORE, TRUTHS, after_prompts, count, motif, nearest, replicate
from esscher.papers.laboratory.risk_stories import start_probability, summarise


@pytest.mark.parametrize("make", [motif, count, after_prompts])
@pytest.mark.parametrize("truth", TRUTHS)
def test_events_are_as_rare_as_the_study_says(make, truth):
    assert 1 / 3 < nearest(make, truth).truth / truth < 3


PIECES = ["", "a", "b", "ab", " ", " a", "ba"]


@dataclass(frozen=True)
class Table:
    """A base whose next token depends on the position and on the token before."""

    table: torch.Tensor

    def logits(self, x):
        before = torch.cat([torch.zeros(len(x), 1, dtype=torch.long), x.tokens[:, :-1]], 1)
        return self.table[torch.arange(x.tokens.shape[1]), before]


def test_the_probability_of_a_start_is_that_of_all_ways_to_write_it():
    table = torch.randn(5, len(PIECES), len(PIECES), generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    share, wanted = table.softmax(-1), 0.0
    for tokens in product(range(len(PIECES)), repeat=5):
        written = "".join(PIECES[token] for token in tokens)
        if 0 not in tokens and written.startswith(("aba", " aba")):
            before = (0, *tokens[:-1])
            wanted += float(torch.stack([share[t, before[t], token] for t, token in enumerate(tokens)]).prod())
    ends = probability_with_end(share)
    total, left_out = start_probability(Table(table).logits, PIECES, "aba")
    assert total == pytest.approx(wanted + ends, rel=1e-9)
    assert left_out < 1e-9


def probability_with_end(share) -> float:
    """Of the texts that start so and have the empty token 0 afterwards."""
    total = 0.0
    for tokens in product(range(len(PIECES)), repeat=5):
        if 0 in tokens:
            written = "".join(PIECES[token] for token in tokens[: tokens.index(0)])
            if written.startswith(("aba", " aba")):
                before = (0, *tokens[:-1])
                total += float(torch.stack([share[t, before[t], token] for t, token in enumerate(tokens)]).prod())
    return total


def test_the_error_is_beside_that_of_direct_draws_with_as_many_tokens():
    row = summarise("one", "MBAR", 0.01, [{"value": 0.011, "sequences": 9900.0}, {"value": 0.009, "sequences": 9900.0}])
    assert row["relative_error"] == pytest.approx(0.1)
    assert row["direct_error"] == pytest.approx(0.1)
    assert row["ratio"] == pytest.approx(1.0)


@pytest.mark.parametrize(("method", "how"), [(AUTOMATON, "weighted"), (SCORE, "splitting")])
def test_a_replication_knows_what_its_row_says(method, how):
    rows = replicate(nearest(motif, 1e-3), 2000, 0, method)
    assert {how in row["probability"].method for row in rows} == {True}
