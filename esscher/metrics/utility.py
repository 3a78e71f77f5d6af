"""Utility of one text where another is the reference, for minimum-Bayes-risk decoding (Kumar and Byrne, 2004). Values are those
of `sacrebleu` for single sentences: chrF, chrF++, and BLEU over the orders that a text is long enough for."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.metrics.text_metrics import ORDERS, Triplet, chrf_ngrams, f_score, require_library

WORDS = {"chrf": 0, "chrf++": 2}  # the longest n-grams of words
UTILITIES = (*WORDS, "bleu")

Utility = Callable[[str, str], float]
"""`utility(text, reference)`, between 0 and 100."""


def sentence_utility(name: str) -> Utility:
    """The score of a text against one reference, by `chrf`, `chrf++` or `bleu`."""
    scorer = _scorer(name)
    return lambda text, reference: float(scorer.sentence_score(text, [reference]).score)


def pairwise(name: str, candidates: Sequence[str]) -> Float[Tensor, "N N"]:
    """The utility of each candidate (row) against each candidate (column) as reference; equal texts are counted once."""
    scorer = _scorer(name)
    texts = list(dict.fromkeys(candidates))
    if not texts:
        raise ValueError("There is no candidate to compare. Nothing was computed; give at least one.")
    values = _bleu(texts, scorer.tokenizer) if name == "bleu" else f_score(_orders(texts, WORDS[name]))
    place = {text: number for number, text in enumerate(texts)}
    rows = torch.tensor([place[text] for text in candidates])
    return values[rows][:, rows]


def _scorer(name: str) -> Any:
    if name not in UTILITIES:
        raise ValueError(f"No utility named {name!r}. Nothing was computed; choose from: {', '.join(UTILITIES)}.")
    metrics = require_library("sacrebleu.metrics", f"The utility {name}")
    return metrics.BLEU(effective_order=True) if name == "bleu" else metrics.CHRF(word_order=WORDS[name])


def _orders(texts: Sequence[str], words: int) -> Iterator[Triplet]:
    """The counts of chrF for each pair of texts, order by order."""
    grams = [chrf_ngrams(text, words) for text in texts]
    for counters in zip(*grams, strict=True):
        totals = torch.tensor([counter.total() for counter in counters], dtype=torch.float64)
        both = _shared(counters)
        yield totals[:, None].expand_as(both), totals.expand_as(both), both


def _bleu(texts: Sequence[str], tokenizer: Callable[[str], str]) -> Float[Tensor, "N N"]:
    """Sentence BLEU: orders without a match count 1/2, 1/4, ...; orders longer than the text are left out."""
    words = [tokenizer(text.rstrip()).split() for text in texts]
    lengths = torch.tensor([len(text) for text in words], dtype=torch.float64)
    log_sum = matches = torch.zeros(len(texts), len(texts), dtype=torch.float64)
    missed = torch.zeros_like(matches)
    for order in range(1, ORDERS + 1):
        both = _shared([Counter(zip(*(text[start:] for start in range(order)), strict=False)) for text in words])
        total = (lengths - order + 1)[:, None].expand_as(both)
        missed = missed + ((both == 0) & (total > 0))
        precision = torch.where(both > 0, both, 0.5**missed) / total
        log_sum = log_sum + torch.where(total > 0, precision.log(), 0.0)
        matches = matches + both
    brevity = (1 - lengths[None] / lengths[:, None]).clamp(max=0)
    score = 100 * (log_sum / lengths.clamp(1, ORDERS)[:, None] + brevity).exp()
    return torch.where(matches > 0, score, 0.0)


def _shared(counters: Sequence[Counter[Any]]) -> Float[Tensor, "N N"]:
    """The number of n-grams that each two texts share, with multiplicity."""
    from scipy.sparse import csr_array

    column: dict[tuple[Hashable, int], int] = {}
    places = [
        [column.setdefault((gram, time), len(column)) for gram, count in counter.items() for time in range(count)]
        for counter in counters
    ]
    ends = torch.tensor([0, *map(len, places)]).cumsum(0).numpy()
    flat = torch.tensor([place for row in places for place in row], dtype=torch.long).numpy()
    has = csr_array((torch.ones(len(flat)).numpy(), flat, ends), shape=(len(counters), max(len(column), 1)))
    return torch.from_numpy((has @ has.T).toarray()).double()
