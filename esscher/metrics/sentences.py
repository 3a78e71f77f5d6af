"""Metrics that are means of scores of sentences: ROUGE by `rouge-score`, METEOR by `nltk`.

Each is a `TextMetric` whose counts are a score in percent and the sentence it stands for. ROUGE-1, -2 and -L are F1 of shared
words, pairs of words, and the longest common subsequence; of several references the best counts. Words are runs of letters and
digits in lower case, without stemming: on ASCII those of `rouge-score`, which would take other letters for blanks. METEOR
matches words, stems and synonyms of WordNet, which knows English alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from types import ModuleType
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.metrics.libraries import library

WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Words:
    """Runs of letters and digits of any script, in lower case; in the form that `rouge-score` asks for."""

    def tokenize(self, text: str) -> list[str]:
        return WORD.findall(text.lower())


@dataclass(frozen=True)
class Rouge:
    """ROUGE of a kind: `rouge1`, `rouge2` or `rougeL`."""

    kind: str
    unit: ClassVar[str] = "%"
    sign: ClassVar[int] = 1

    @property
    def name(self) -> str:
        return f"ROUGE-{self.kind.removeprefix('rouge')}"

    def counts(self, candidates: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N 2"]:
        scorer = library("rouge_score.rouge_scorer", "ROUGE").RougeScorer([self.kind], tokenizer=Words())
        return _once_each([scorer.score_multi(list(references), one)[self.kind].fmeasure for one in candidates])

    def value(self, sums: Float[Tensor, "*R 2"]) -> Float[Tensor, "*R"]:
        return sums[..., 0] / sums[..., 1]

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        return f"F1, words in lower case, no stemming, rouge-score {version('rouge-score')}"


@dataclass(frozen=True)
class Meteor:
    """METEOR with the settings of Lavie and Agarwal (2007), words as nltk's tokenizer parts them."""

    name: ClassVar[str] = "METEOR"
    unit: ClassVar[str] = "%"
    sign: ClassVar[int] = 1

    def counts(self, candidates: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N 2"]:
        part = library("nltk.tokenize", "METEOR").word_tokenize
        scoring = _meteor()
        answers = [part(reference, preserve_line=True) for reference in references]
        return _once_each([scoring.meteor_score(answers, part(one, preserve_line=True)) for one in candidates])

    def value(self, sums: Float[Tensor, "*R 2"]) -> Float[Tensor, "*R"]:
        return sums[..., 0] / sums[..., 1]

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        return f"alpha 0.9, beta 3, gamma 0.5, WordNet, nltk {version('nltk')}"


def _meteor() -> ModuleType:
    """nltk's module, when WordNet is where nltk looks for it."""
    scoring = library("nltk.translate.meteor_score", "METEOR")
    try:
        scoring.wordnet.ensure_loaded()
    except LookupError as error:
        raise ImportError(
            "METEOR needs WordNet, which nltk finds in none of its folders. Nothing was computed; `python -m nltk."
            "downloader wordnet` gets it (without a network: docs/why/translation_metrics.md), or leave METEOR out."
        ) from error
    return scoring


def _once_each(scores: Sequence[float]) -> Float[Tensor, "N 2"]:
    found = torch.tensor(scores, dtype=torch.float64)
    return torch.stack([100 * found, torch.ones_like(found)], -1)
