"""Choices by a network's own likelihood: scores against the chain rule, options in their place, and which option is chosen."""

import itertools
import json

import pytest
import torch
from test_xlnet_spans import SMALL, lively

from esscher.core.space import Sequences
from esscher.data.tokenizers import train_tokenizer
from esscher.hub import save_base
from esscher.objectives.config import LikelihoodConfig, MaskedLMConfig, PermutationLMConfig
from esscher.papers.xlnet.likelihood_choices import (
    CHOICES,
    OptionInText,
    choice_accuracy,
    left_to_right,
    option_scores,
    options_in_text,
    score_of,
)
from esscher.papers.xlnet.recipe import XLNetStudy, by_likelihood
from esscher.papers.xlnet.span_scores import PERMUTED, filled_spans, permuted_spans
from esscher.workflow.config.train import TrainRun

WORDS = train_tokenizer("word", ["a b c d . a b c d ."], vocab_size=8)


@torch.no_grad()
def test_from_left_to_right_a_span_is_scored_with_all_that_follows_it():
    base = lively()
    rows = torch.tensor(list(itertools.product(range(3), repeat=4)))
    whole = base.log_probs(Sequences(rows, torch.zeros(81, dtype=torch.long), torch.full((81,), 4))).double()
    for first in range(4):
        expected = whole[:, first:].sum(1)
        assert torch.allclose(left_to_right(base, rows, torch.full((81, 1), first)), expected, atol=1e-6)
    mixed = torch.arange(81)[:, None] % 4  # rows of one batch whose spans begin at different places
    expected = torch.stack([values[int(first) :].sum() for values, first in zip(whole, mixed, strict=True)])
    assert torch.allclose(left_to_right(base, rows, mixed), expected, atol=1e-6)


def test_an_objective_has_its_score():
    assert score_of(PermutationLMConfig()) is permuted_spans and score_of(MaskedLMConfig()) is filled_spans
    assert score_of(PermutationLMConfig(order="left-to-right")) is score_of(LikelihoodConfig()) is left_to_right


def test_scores_of_mixed_shapes_are_those_of_each_text_alone():
    base, span = lively(length=5), torch.tensor
    options = [OptionInText([0, 1, 2, 1], 1, 2), OptionInText([2, 1, 0], 1, 1), OptionInText([0, 1, 2, 2], 0, 2)]
    alone = [
        float(permuted_spans(base, span([o.tokens]), span([[o.first + n for n in range(o.size)]])).detach()) for o in options
    ]
    assert option_scores(base, options, permuted_spans) == pytest.approx(alone, abs=1e-6)


def test_an_option_is_read_in_its_place():
    cloze = {"article": "a _ c .", "options": ["b", "d"], "answer": 0, "document": 0}
    following = {"article": "a b", "options": ["c d", "d ."], "answer": 1, "document": 0}
    (gap, _), (_, after) = options_in_text(cloze, WORDS), options_in_text(following, WORDS)
    assert WORDS.decode([gap.tokens]) == ["a b c ."] and (gap.first, gap.size) == (1, 1)
    assert WORDS.decode([after.tokens]) == ["a b d ."] and (after.first, after.size) == (2, 2)


def test_a_word_is_chosen_by_its_probability_and_a_sentence_by_that_of_a_token():
    """A score of -1 a token: the shorter option of a gap, and no preference after a text, where the first one is taken."""
    by_length = lambda base, tokens, span: torch.full((len(tokens),), -float(span.shape[1]))  # noqa: E731
    cloze = {"article": "a _ c", "options": ["b d", "d"], "answer": 1, "document": 0}
    following = {"article": "a b", "options": ["c d", "d"], "answer": 1, "document": 1}
    assert choice_accuracy(lively(), WORDS, [cloze], by_length).value == 1
    assert choice_accuracy(lively(), WORDS, [following], by_length).value == 0
    both = choice_accuracy(lively(), WORDS, [cloze, following, cloze], by_length)
    assert both.value == pytest.approx(2 / 3) and both.low < 2 / 3 < both.high


def test_a_network_from_its_folder_ranks_the_options_of_a_study(tmp_path):
    """The column of each task with options is the accuracy of the network that was saved."""
    base = lively(vocab_size=WORDS.vocab_size, length=16).float()
    save_base(tmp_path / "base", base, WORDS)
    rows = [{"article": "a _ c .", "options": ["b", "d"], "answer": answer, "document": answer} for answer in (0, 1, 1)]
    for task in CHOICES:
        (tmp_path / f"{task}-test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    study = XLNetStudy(
        name="words", models={PERMUTED: TrainRun("", base=SMALL, objective=PermutationLMConfig())}, tasks={}, files=tmp_path
    )
    found = by_likelihood(study, PERMUTED, tmp_path / "base")
    expected = choice_accuracy(base, WORDS, rows, permuted_spans)
    assert found == {"next by likelihood, accuracy": expected, "cloze by likelihood, accuracy": expected}
    assert expected.value in (pytest.approx(1 / 3), pytest.approx(2 / 3))
