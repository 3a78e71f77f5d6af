"""Utilities of pairs are those of sacrebleu, one by one and all at once."""

from collections import Counter

import pytest
import torch
from metrics.translations import made_references, translated

from esscher.metrics import utility
from esscher.metrics.utility import UTILITIES, pairwise, sentence_utility

sacrebleu = pytest.importorskip("sacrebleu")

TEXTS = ["", " ", "a", "aa aa", "(hi) ok!!", "a b c d e f", *made_references(12), *translated(made_references(6), seed=1)]
TEXTS += TEXTS[4:7]
CALLS = {
    "chrf": lambda text, right: sacrebleu.sentence_chrf(text, [right]).score,
    "chrf++": lambda text, right: sacrebleu.sentence_chrf(text, [right], word_order=2).score,
    "bleu": lambda text, right: sacrebleu.sentence_bleu(text, [right]).score,
}


def one_by_one(name):
    return torch.tensor([[CALLS[name](text, right) for right in TEXTS] for text in TEXTS], dtype=torch.float64)


@pytest.mark.parametrize("name", UTILITIES)
def test_pairs_are_those_of_sacrebleu(name):
    theirs, actual = one_by_one(name), pairwise(name, TEXTS)
    assert torch.equal(actual, theirs) if name != "bleu" else torch.allclose(actual, theirs, rtol=1e-13, atol=1e-13)
    alone = sentence_utility(name)
    assert all(alone(text, TEXTS[8]) == theirs[row, 8] for row, text in enumerate(TEXTS))
    assert not torch.equal(actual, actual.T)


@pytest.mark.parametrize("name", UTILITIES)
def test_ngrams_told_once_or_turned_around_are_wrong(name, monkeypatch):
    theirs, real = one_by_one(name), utility._shared
    assert not torch.allclose(pairwise(name, TEXTS).T, theirs, atol=1e-3)
    monkeypatch.setattr(utility, "_shared", lambda counters: real([Counter(list(counter)) for counter in counters]))
    assert not torch.allclose(pairwise(name, TEXTS), theirs, atol=1e-3)


def test_names_and_candidates_are_checked():
    for call in (sentence_utility, lambda name: pairwise(name, ["a"])):
        with pytest.raises(ValueError, match=r"No utility named 'ter'.*chrf, chrf\+\+, bleu"):
            call("ter")
    with pytest.raises(ValueError, match="There is no candidate"):
        pairwise("chrf", [])
    assert pairwise("chrf", ["a b"]).tolist() == [[100.0]]
