"""Text metrics: word error rate, BLEU, chrF, chrF++ and TER of a whole corpus; ROUGE and METEOR as means over sentences.

They come from `sacrebleu` (BLEU, chrF, TER), `rapidfuzz`, `rouge-score` and `nltk`, the extra `eval`, imported when a metric
needs them; signatures are those of sacrebleu. Left out: settings and tokenizers other than the default 13a (Chinese and
Japanese need their own).

    chrF    F2 of n-grams of 1 to 6 characters without blanks (Popovic, 2015), averaged over orders that both texts have
    chrF++  the same with n-grams of 1 and 2 words, punctuation split off (Popovic, 2017); both equal sacrebleu to the last bit
    ROUGE   F1 of shared words (1), word pairs (2) or the longest common subsequence (L), against the best reference; words are
            runs of letters and digits of any script, in lower case, without stemming (`rouge-score` itself knows only ASCII)
    METEOR  matches words, stems and synonyms of the English WordNet
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

CHARACTERS = 6  # longest n-grams of chrF
RECALL = 4  # the square of beta = 2, the weight of recall
PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
ORDERS = 4  # longest n-grams of BLEU
WORD = re.compile(r"[^\W_]+")

Triplet = tuple[Float[Tensor, "*R"], Float[Tensor, "*R"], Float[Tensor, "*R"]]


def require_library(module: str, what: str) -> ModuleType:
    """Import a module of the extra `eval`; an ImportError says what needs it and how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0].replace("_", "-")
        raise ImportError(
            f'{what} needs {package}, which is not installed. Nothing was computed; pip install "esscher[eval]".'
        ) from error


def chrf_ngrams(text: str, words: int) -> list[Counter[str]]:
    """Counts of the n-grams of each order: of characters, then of up to `words` words."""
    counting = require_library("sacrebleu.metrics.helpers", "chrF")
    parts = _split_punctuation(text)
    return [
        *counting.extract_all_char_ngrams(text, CHARACTERS),
        *(counting.extract_word_ngrams(parts, order) for order in range(1, words + 1)),
    ]


def shared(hypothesis: Counter[str], reference: Counter[str]) -> int:
    """The number of shared n-grams, with multiplicity."""
    return sum(min(count, reference[gram]) for gram, count in hypothesis.items() if gram in reference)


def f_score(orders: Iterable[Triplet]) -> Float[Tensor, "*R"]:
    """chrF from the numbers of n-grams of the hypothesis, of the reference and of both, for each order."""
    precision = recall = valid_orders = torch.zeros((), dtype=torch.float64)
    for ours, theirs, both in orders:  # one after the other: a sum over a table would round differently than `sacrebleu`
        valid = (ours > 0) & (theirs > 0)
        precision = precision + torch.where(valid, both / ours, 0.0)
        recall = recall + torch.where(valid, both / theirs, 0.0)
        valid_orders = valid_orders + valid
    precision, recall = precision / valid_orders, recall / valid_orders
    score = 100 * ((1 + RECALL) * precision * recall / (RECALL * precision + recall))
    return torch.where(precision + recall > 0, score, 0.0)


def _split_punctuation(text: str) -> list[str]:
    """Words, with one punctuation mark at the end, or else at the beginning, as a word of its own."""
    parts: list[str] = []
    for word in text.split():
        if len(word) > 1 and word[-1] in PUNCTUATION:
            parts += [word[:-1], word[-1]]
        elif len(word) > 1 and word[0] in PUNCTUATION:
            parts += [word[0], word[1:]]
        else:
            parts.append(word)
    return parts


@dataclass(frozen=True)
class WordErrorRate:
    """Insertions, deletions and substitutions of words in percent of the words of the nearest reference."""

    name: ClassVar[str] = "word error rate"
    unit: ClassVar[str] = "%"
    sign: ClassVar[int] = -1

    def counts(self, candidates: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N 2"]:
        distance = require_library("rapidfuzz.distance", "Word error rate").Levenshtein.distance
        answers = [reference.split() for reference in references]
        words = [candidate.split() for candidate in candidates]
        rows = [min((distance(ours, answer), len(answer)) for answer in answers) for ours in words]
        return torch.tensor(rows, dtype=torch.float64).view(-1, 2)

    def value(self, sums: Float[Tensor, "*R 2"]) -> Float[Tensor, "*R"]:
        return 100 * sums[..., 0] / sums[..., 1].clamp(min=1)

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        return "words between blanks, the nearest reference"


@dataclass(frozen=True)
class Bleu:
    """BLEU of `sacrebleu` with its default tokenizer and smoothing; counts are lengths, matches and totals of n-grams."""

    name: ClassVar[str] = "BLEU"
    unit: ClassVar[str] = ""
    sign: ClassVar[int] = 1

    def counts(self, candidates: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N 10"]:
        bleu = require_library("sacrebleu.metrics", "BLEU").BLEU
        scorer = bleu(effective_order=True)  # without a warning; the counts are the same
        scores = [scorer.sentence_score(candidate, list(references)) for candidate in candidates]
        rows = [[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores]
        return torch.tensor(rows, dtype=torch.float64).view(-1, 2 + 2 * ORDERS)

    def value(self, sums: Float[Tensor, "*R 10"]) -> Float[Tensor, "*R"]:
        """As in `sacrebleu`; orders without a match count 1/2, 1/4, ... matches."""
        ours, theirs = sums[..., 0], sums[..., 1]
        matches, totals = sums[..., 2 : 2 + ORDERS], sums[..., 2 + ORDERS :]
        none = (matches == 0) & (totals > 0)
        precision = torch.where(none, 0.5 ** none.double().cumsum(-1), matches) / totals.clamp(min=1)
        brevity = (1 - theirs / ours.clamp(min=1)).clamp(max=0)
        score = 100 * (precision.log().mean(-1) + brevity).exp()
        return torch.where((matches.sum(-1) > 0) & (ours > 0), score, 0.0)

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        return _signature(require_library("sacrebleu.metrics", "BLEU").BLEU(), "BLEU", references)


@dataclass(frozen=True)
class Chrf:
    """chrF, or chrF++ with `words` = 2; of several references the best one counts."""

    words: int = 0
    unit: ClassVar[str] = ""
    sign: ClassVar[int] = 1

    @property
    def name(self) -> str:
        return "chrF" + "+" * self.words

    def counts(self, candidates: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N S"]:
        """For each order the numbers of n-grams of the candidate, of the reference, and of both."""
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
            sums = torch.tensor(table, dtype=torch.float64)
            rows.append(sums[self.value(sums).argmax()])
        return torch.stack(rows) if rows else torch.zeros(0, 3 * (CHARACTERS + self.words), dtype=torch.float64)

    def value(self, sums: Float[Tensor, "*R S"]) -> Float[Tensor, "*R"]:
        ours, theirs, both = (sums[..., kind::3].unbind(-1) for kind in range(3))
        return f_score(zip(ours, theirs, both, strict=True))

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        scorer = require_library("sacrebleu.metrics", self.name).CHRF(word_order=self.words)
        return _signature(scorer, "chrF2" + "+" * self.words, references)


@dataclass(frozen=True)
class TranslationEditRate:
    """Insertions, deletions, substitutions and shifts in percent of the words of a reference (Snover et al., 2006)."""

    name: ClassVar[str] = "TER"
    unit: ClassVar[str] = "%"
    sign: ClassVar[int] = -1

    def counts(self, candidates: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N 2"]:
        """Edits towards the nearest reference, and the mean length of the references."""
        scorer = require_library("sacrebleu.metrics", "TER").TER()
        scores = [scorer.sentence_score(candidate, list(references)) for candidate in candidates]
        return torch.tensor([[score.num_edits, score.ref_length] for score in scores], dtype=torch.float64).view(-1, 2)

    def value(self, sums: Float[Tensor, "*R 2"]) -> Float[Tensor, "*R"]:
        """In percent; against references without words 100 if the candidate has any, else 0."""
        edits, words = sums[..., 0], sums[..., 1]
        return 100 * torch.where(words > 0, edits / words, (edits > 0).double())

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        return _signature(require_library("sacrebleu.metrics", "TER").TER(), "TER", references)


def _signature(scorer: Any, name: str, references: Sequence[Sequence[str]]) -> str:
    """The signature of a sacrebleu scorer, which must first score a line for each number of references."""
    sizes = sorted({len(line) for line in references})
    streams = [["a" if place < size else None for size in sizes] for place in range(sizes[-1])]
    scorer.corpus_score(["a"] * len(sizes), streams)
    return f"{name}|{scorer.get_signature()}"


@dataclass(frozen=True)
class RougeTokenizer:
    """Tokenizer for `rouge-score`: runs of letters and digits of any script, in lower case."""

    def tokenize(self, text: str) -> list[str]:
        return WORD.findall(text.lower())


@dataclass(frozen=True)
class Rouge:
    """ROUGE of one kind: `rouge1`, `rouge2` or `rougeL`."""

    kind: str
    unit: ClassVar[str] = "%"
    sign: ClassVar[int] = 1

    @property
    def name(self) -> str:
        return f"ROUGE-{self.kind.removeprefix('rouge')}"

    def counts(self, candidates: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N 2"]:
        scorer = require_library("rouge_score.rouge_scorer", "ROUGE").RougeScorer([self.kind], tokenizer=RougeTokenizer())
        return _once_each([scorer.score_multi(list(references), text)[self.kind].fmeasure for text in candidates])

    def value(self, sums: Float[Tensor, "*R 2"]) -> Float[Tensor, "*R"]:
        return sums[..., 0] / sums[..., 1]

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        return f"F1, words in lower case, no stemming, rouge-score {version('rouge-score')}"


@dataclass(frozen=True)
class Meteor:
    """METEOR with the settings of Lavie and Agarwal (2007) and words of nltk's tokenizer."""

    name: ClassVar[str] = "METEOR"
    unit: ClassVar[str] = "%"
    sign: ClassVar[int] = 1

    def counts(self, candidates: Sequence[str], references: Sequence[str]) -> Float[Tensor, "N 2"]:
        tokenize = require_library("nltk.tokenize", "METEOR").word_tokenize
        scoring = _meteor()
        answers = [tokenize(reference, preserve_line=True) for reference in references]
        return _once_each([scoring.meteor_score(answers, tokenize(text, preserve_line=True)) for text in candidates])

    def value(self, sums: Float[Tensor, "*R 2"]) -> Float[Tensor, "*R"]:
        return sums[..., 0] / sums[..., 1]

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        return f"alpha 0.9, beta 3, gamma 0.5, WordNet, nltk {version('nltk')}"


def _meteor() -> ModuleType:
    """nltk's module of METEOR; an ImportError if it does not find WordNet."""
    scoring = require_library("nltk.translate.meteor_score", "METEOR")
    try:
        scoring.wordnet.ensure_loaded()
    except LookupError as error:
        raise ImportError(
            "METEOR needs WordNet, which nltk finds in none of its folders. Nothing was computed; `python -m nltk."
            "downloader wordnet` gets it (without a network: docs/why/translation_metrics.md), or leave METEOR out."
        ) from error
    return scoring


def _once_each(scores: Sequence[float]) -> Float[Tensor, "N 2"]:
    """Each score in percent, and the 1 sentence that it stands for."""
    score = torch.tensor(scores, dtype=torch.float64)
    return torch.stack([100 * score, torch.ones_like(score)], -1)
