"""Metrics of a whole corpus: word error rate, and by `sacrebleu` BLEU, chrF, chrF++ and the translation edit rate.

Each is a `TextMetric`: what a line counts, and the value of the sum. A signature is sacrebleu's own line that says how a
value was got, so that others get the same. Left out: other tokenizers than the default (13a; Chinese and Japanese want
their own) and other settings; values with them are better asked of sacrebleu itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.metrics.libraries import library
from esscher.metrics.ngrams import CHARACTERS, chrf_ngrams, f_score, shared

ORDERS = 4  # of the n-grams of BLEU


@dataclass(frozen=True)
class WordErrorRate:
    """Insertions, deletions and substitutions in percent of a reference's words, between blanks; the nearest one counts."""

    name: ClassVar[str] = "word error rate"
    unit: ClassVar[str] = "%"
    sign: ClassVar[int] = -1

    def counts(self, candidates: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N 2"]:
        distance = library("rapidfuzz.distance", "Word error rate").Levenshtein.distance
        answers = [reference.split() for reference in references]
        rows = []
        for words in (candidate.split() for candidate in candidates):
            rows.append(min((distance(words, answer), len(answer)) for answer in answers))
        return torch.tensor(rows, dtype=torch.float64).view(-1, 2)

    def value(self, sums: Float[Tensor, "*R 2"]) -> Float[Tensor, "*R"]:
        return 100 * sums[..., 0] / sums[..., 1].clamp(min=1)

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        return "words between blanks, the nearest reference"


@dataclass(frozen=True)
class Bleu:
    """BLEU of `sacrebleu` with its own tokenizer and smoothing; counts are lengths, matches and totals of n-grams."""

    name: ClassVar[str] = "BLEU"
    unit: ClassVar[str] = ""
    sign: ClassVar[int] = 1

    def counts(self, candidates: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N 10"]:
        scorer = library("sacrebleu.metrics", "BLEU").BLEU(effective_order=True)  # no advice; the same counts
        found = [scorer.sentence_score(candidate, list(references)) for candidate in candidates]
        rows = [[one.sys_len, one.ref_len, *one.counts, *one.totals] for one in found]
        return torch.tensor(rows, dtype=torch.float64).view(-1, 2 + 2 * ORDERS)

    def value(self, sums: Float[Tensor, "*R 10"]) -> Float[Tensor, "*R"]:
        """As `sacrebleu` has it; matches of orders without any are taken for 1/2, 1/4, ..."""
        ours, theirs = sums[..., 0], sums[..., 1]
        matches, totals = sums[..., 2 : 2 + ORDERS], sums[..., 2 + ORDERS :]
        none = (matches == 0) & (totals > 0)
        precision = torch.where(none, 0.5 ** none.double().cumsum(-1), matches) / totals.clamp(min=1)
        brevity = (1 - theirs / ours.clamp(min=1)).clamp(max=0)
        score = 100 * (precision.log().mean(-1) + brevity).exp()
        return torch.where((matches.sum(-1) > 0) & (ours > 0), score, 0.0)

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        return _signature(library("sacrebleu.metrics", "BLEU").BLEU(), "BLEU", references)


@dataclass(frozen=True)
class Chrf:
    """chrF, or chrF++ with words up to order 2; of several references the one with the best score counts."""

    words: int = 0
    unit: ClassVar[str] = ""
    sign: ClassVar[int] = 1

    @property
    def name(self) -> str:
        return "chrF" + "+" * self.words

    def counts(self, candidates: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N S"]:
        """For each order the n-grams of the candidate, of the reference, and of both."""
        answers = [chrf_ngrams(reference, self.words) for reference in references]
        rows = []
        for ours in (chrf_ngrams(candidate, self.words) for candidate in candidates):
            table = [
                [
                    count
                    for mine, theirs in zip(ours, answer, strict=True)
                    for count in (mine.total() if theirs else 0, theirs.total(), shared(mine, theirs))
                ]
                for answer in answers
            ]
            found = torch.tensor(table, dtype=torch.float64)
            rows.append(found[self.value(found).argmax()])
        return torch.stack(rows) if rows else torch.zeros(0, 3 * (CHARACTERS + self.words), dtype=torch.float64)

    def value(self, sums: Float[Tensor, "*R S"]) -> Float[Tensor, "*R"]:
        ours, theirs, both = (sums[..., kind::3].unbind(-1) for kind in range(3))
        return f_score(zip(ours, theirs, both, strict=True))

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        scorer = library("sacrebleu.metrics", self.name).CHRF(word_order=self.words)
        return _signature(scorer, "chrF2" + "+" * self.words, references)


@dataclass(frozen=True)
class TranslationEditRate:
    """Insertions, deletions, substitutions and shifts in percent of the words of a reference (Snover et al., 2006)."""

    name: ClassVar[str] = "TER"
    unit: ClassVar[str] = "%"
    sign: ClassVar[int] = -1

    def counts(self, candidates: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N 2"]:
        """Edits towards the nearest reference, and the mean length of the references."""
        scorer = library("sacrebleu.metrics", "TER").TER()
        found = [scorer.sentence_score(candidate, list(references)) for candidate in candidates]
        return torch.tensor([[one.num_edits, one.ref_length] for one in found], dtype=torch.float64).view(-1, 2)

    def value(self, sums: Float[Tensor, "*R 2"]) -> Float[Tensor, "*R"]:
        """In percent; of references without words 100 where there is anything to remove, else 0."""
        edits, words = sums[..., 0], sums[..., 1]
        return 100 * torch.where(words > 0, edits / words, (edits > 0).double())

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        return _signature(library("sacrebleu.metrics", "TER").TER(), "TER", references)


def _signature(scorer: Any, name: str, references: Sequence[Sequence[str]]) -> str:
    """How sacrebleu describes its scorer, which knows that once it has seen a line for each number of references."""
    sizes = sorted({len(one) for one in references})
    streams = [["a" if place < size else None for size in sizes] for place in range(sizes[-1])]
    scorer.corpus_score(["a"] * len(sizes), streams)
    return f"{name}|{scorer.get_signature()}"
