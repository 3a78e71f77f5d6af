"""Intervals of translation metrics against sacrebleu's own, and the utility of every pair of texts against one pair at a time.

3,000 lines of 20 words out of 2,000, a tenth of the system's words being others than the reference's: the value and its
interval from 1,000 resamples, by `metric_of(name).score` and by `corpus_score(..., n_bootstrap=1000)`; the gap is between the
values. Then chrF of all pairs of 64 such lines, by `pairwise`, and by `sentence_utility` (sacrebleu's score of one line) for
each pair.
"""

import sacrebleu.metrics
import torch

from benchmarks._timing import Row, Table, time_runs, versus
from esscher.core.randomness import SeededRng
from esscher.metrics.metric import get_metric
from esscher.metrics.utility import pairwise, sentence_utility

REPEATS = 3
LINES, WORDS, VOCAB, CHANGED, RESAMPLES, CANDIDATES = 3_000, 20, 2_000, 0.1, 1_000, 64
PEERS = {"bleu": sacrebleu.metrics.BLEU, "chrf": sacrebleu.metrics.CHRF}


def texts() -> tuple[list[str], list[str]]:
    """Lines of a system and of the reference; words have three letters."""
    rng = SeededRng(0)
    right = rng.stream("right").categorical(torch.zeros(LINES, VOCAB), WORDS)
    other = rng.stream("other").categorical(torch.zeros(LINES, VOCAB), WORDS)
    changed = rng.stream("changed").categorical(torch.tensor([1 - CHANGED, CHANGED]).log().expand(LINES, 2), WORDS).bool()
    return _lines(torch.where(changed, other, right)), _lines(right)


def _lines(tokens: torch.Tensor) -> list[str]:
    words = ["".join(chr(97 + number // 26**place % 26) for place in range(3)) for number in range(VOCAB)]
    return [" ".join(words[token] for token in row) for row in tokens.tolist()]


def interval(name: str, repeats: int) -> Row:
    system, right = texts()
    metric, peer = get_metric(name), PEERS[name]()
    runs = {
        "score": lambda: metric.score(system, right, rng=SeededRng(1)),
        "corpus_score": lambda: peer.corpus_score(system, [right], n_bootstrap=RESAMPLES),
    }
    gap = abs(runs["score"]().value - runs["corpus_score"]().score)
    return {"work": f"{name}, {LINES:,} lines", **versus(time_runs(runs, repeats), "score", "corpus_score"), "gap": gap}


def pairs(repeats: int) -> Row:
    some, utility = texts()[0][:CANDIDATES], sentence_utility("chrf")
    runs = {"pairwise": lambda: pairwise("chrf", some), "one by one": lambda: [utility(a, b) for a in some for b in some]}
    gap = float((pairwise("chrf", some).flatten() - torch.tensor(runs["one by one"](), dtype=torch.float64)).abs().max())
    actual = versus(time_runs(runs, repeats), "pairwise", "one by one")
    return {"work": f"chrf of {CANDIDATES} x {CANDIDATES} pairs", **actual, "gap": gap}


def tables(repeats: int) -> list[Table]:
    return [Table("metrics, and utilities of pairs", [*(interval(name, repeats) for name in PEERS), pairs(repeats)])]
