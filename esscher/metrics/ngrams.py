"""The n-grams of chrF and chrF++ (Popovic, 2015 and 2017), and their F-score.

    chrF    n-grams of 1 to 6 characters, blanks left out
    chrF++  those, and n-grams of 1 and 2 words, with punctuation at the end or the beginning of a word parted from it

For each order three counts decide: n-grams of the hypothesis, of the reference, and those they share. The score is F2 of the
mean precision and the mean recall over orders that both texts have. Everything is as in `sacrebleu`, to the last bit.
"""

from collections import Counter
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.metrics.libraries import library

CHARACTERS = 6  # the longest n-grams
RECALL = 4  # the square of beta = 2: how much recall counts
PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")

Triplet = tuple[Float[Tensor, "*R"], Float[Tensor, "*R"], Float[Tensor, "*R"]]


def chrf_ngrams(text: str, words: int) -> list[Counter[str]]:
    """Counts of the n-grams of each order: of characters, then of up to so many words."""
    counting = library("sacrebleu.metrics.helpers", "chrF")
    parts = _parted(text)
    return [
        *counting.extract_all_char_ngrams(text, CHARACTERS),
        *(counting.extract_word_ngrams(parts, order) for order in range(1, words + 1)),
    ]


def shared(hypothesis: Counter[str], reference: Counter[str]) -> int:
    """How many n-grams both have, each as often as the one that has fewer."""
    return sum(min(count, reference[gram]) for gram, count in hypothesis.items() if gram in reference)


def f_score(orders: Iterable[Triplet]) -> Float[Tensor, "*R"]:
    """chrF from the n-grams of the hypothesis, of the reference and of both, order by order; 0 where nothing is shared.

    Orders are added one after the other, not by a sum over a table, which would round differently.
    """
    precision = recall = known = torch.zeros((), dtype=torch.float64)
    for ours, theirs, both in orders:
        told = (ours > 0) & (theirs > 0)
        precision = precision + torch.where(told, both / ours, 0.0)
        recall = recall + torch.where(told, both / theirs, 0.0)
        known = known + told
    precision, recall = precision / known, recall / known
    score = 100 * ((1 + RECALL) * precision * recall / (RECALL * precision + recall))
    return torch.where(precision + recall > 0, score, 0.0)


def _parted(text: str) -> list[str]:
    """Words, of which one mark at the end, or else one at the beginning, is a word by itself."""
    parts: list[str] = []
    for word in text.split():
        if len(word) > 1 and word[-1] in PUNCTUATION:
            parts += [word[:-1], word[-1]]
        elif len(word) > 1 and word[0] in PUNCTUATION:
            parts += [word[0], word[1:]]
        else:
            parts.append(word)
    return parts
