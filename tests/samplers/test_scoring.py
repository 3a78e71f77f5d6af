"""Scores by parts are the scores of the whole, in the order of the rows, and never hold too many tokens at once."""

import pytest
import torch
from random_targets import PROMPTS, random_target

from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.exact.enumeration import enumerate_points
from esscher.samplers import scoring
from esscher.samplers.scoring import log_prob, log_weight, max_rows, score_in_batches

TARGET = random_target(Space(3, 5, eos=0))
EVERYTHING = enumerate_points(TARGET.space, prompts_of(PROMPTS))


@pytest.fixture
def few_at_once(monkeypatch):
    monkeypatch.setattr(scoring, "TOKENS_AT_ONCE", 40)


def test_parts_are_the_whole(few_at_once):
    assert torch.allclose(log_weight(TARGET, EVERYTHING), TARGET.log_weight(EVERYTHING), atol=1e-12)
    assert torch.allclose(log_prob(TARGET.base, EVERYTHING), TARGET.base.log_probs(EVERYTHING).sum(-1), atol=1e-12)
    assert not torch.allclose(log_weight(TARGET, EVERYTHING).sort().values, TARGET.log_weight(EVERYTHING), atol=1e-12)


def test_no_pass_holds_more_tokens_than_it_should(few_at_once):
    shapes: list[tuple[int, ...]] = []

    def length(x: Sequences) -> torch.Tensor:
        shapes.append(tuple(x.tokens.shape))
        return x.stop.float()

    assert torch.equal(score_in_batches(length, EVERYTHING), EVERYTHING.stop.double())
    assert all(rows * width <= 40 for rows, width in shapes)
    read, needed = sum(rows * width for rows, width in shapes), int(EVERYTHING.stop.sum())
    assert read < 1.1 * needed  # padding that all rows in their own order would have: far more
    assert EVERYTHING.tokens.numel() > 1.2 * needed


def test_an_encoder_on_long_texts_gets_few_rows():
    assert max_rows(160) * 160 <= 2**15 and max_rows(160) > 100
    assert max_rows(2000) * 2000**2 <= 2**23 and max_rows(100_000) == 1
    assert max_rows(0) == max_rows(1) == 4096


def test_no_rows_and_empty_points():
    nothing = score_in_batches(lambda x: x.stop.double(), sequences([]))
    assert nothing.shape == (0,)
    assert torch.equal(
        score_in_batches(lambda x: x.lengths.double(), sequences([[], [1], []], [[], [], [2, 2]])),
        torch.tensor([0.0, 1, 0]).double(),
    )
