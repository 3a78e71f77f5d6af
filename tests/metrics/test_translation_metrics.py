"""Values against the libraries they come from, and intervals against a known truth."""

import importlib
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from metrics.translations import made_references, translated

from esscher.core.randomness import SeededRng
from esscher.metrics import text_metrics
from esscher.metrics.metric import METRICS, LineCounts, Metric, get_metric
from esscher.metrics.text_metrics import Chrf, chrf_ngrams, shared
from esscher.testing import assert_covers

sacrebleu = pytest.importorskip("sacrebleu")

REFERENCES = made_references(60)
OTHERS = made_references(60, seed=1)
HYPOTHESES = ["", *translated(REFERENCES, seed=2)[1:]]
SEVERAL = [[one, other] if line % 3 else [one] for line, (one, other) in enumerate(zip(REFERENCES, OTHERS, strict=True))]
STREAMS = [REFERENCES, [two[1] if len(two) > 1 else None for two in SEVERAL]]
SCORERS = {
    "bleu": lambda: sacrebleu.metrics.BLEU(),
    "chrf": lambda: sacrebleu.metrics.CHRF(),
    "chrf++": lambda: sacrebleu.metrics.CHRF(word_order=2),
    "ter": lambda: sacrebleu.metrics.TER(),
}


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("several", [False, True])
def test_values_and_signatures_are_those_of_sacrebleu(name, several):
    theirs = SCORERS[name]()
    value = theirs.corpus_score(HYPOTHESES, STREAMS if several else [REFERENCES])
    scores = get_metric(name).score(HYPOTHESES, SEVERAL if several else REFERENCES, resamples=100, rng=SeededRng(0))
    assert scores.value == (value.score if name.startswith("chrf") else pytest.approx(value.score, abs=1e-9))
    assert scores.low < scores.value < scores.high and scores.n == 60
    assert scores.method.startswith(f"{value.name}|{theirs.get_signature()}; percentile bootstrap, ")
    assert scores.counted == "texts"
    assert scores == get_metric(name).score(HYPOTHESES, SEVERAL if several else REFERENCES, resamples=100, rng=SeededRng(0))
    assert scores != get_metric(name).score(HYPOTHESES, SEVERAL if several else REFERENCES, resamples=100, rng=SeededRng(1))


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize(
    ("ours", "theirs"), [("", ""), ("", "a b"), ("a", ""), ("a", "a"), ("a b c d e", "a b c d e"), ("x y", "a b")]
)
def test_odd_single_lines(name, ours, theirs):
    scores = get_metric(name).score([ours], [theirs], rng=SeededRng(0))
    assert scores.value == pytest.approx(SCORERS[name]().corpus_score([ours], [[theirs]]).score, abs=1e-9)
    assert (scores.low, scores.high, scores.n) == (-math.inf, math.inf, 1) and "no interval" in scores.method


def test_wrong_ways_to_count_chrf_are_told_apart():
    """The mean of the lines, and hypotheses counted where a reference is too short for the order."""

    @dataclass(frozen=True)
    class Eager(Chrf):
        def counts(self, candidates, references):
            ours, theirs = chrf_ngrams(candidates[0], 0), chrf_ngrams(references[0], 0)
            row = [n for a, b in zip(ours, theirs, strict=True) for n in (a.total(), b.total(), shared(a, b))]
            return torch.tensor([row], dtype=torch.float64)

    right = SCORERS["chrf"]().corpus_score(HYPOTHESES, [REFERENCES]).score
    rows = METRICS["chrf"].count(HYPOTHESES, REFERENCES).rows
    assert float(Chrf().value(rows.sum(0))) == right
    assert abs(float(Chrf().value(rows).mean()) - right) > 0.1
    eager = replace(METRICS["chrf"], measure=Eager()).count(HYPOTHESES, REFERENCES).rows
    assert abs(float(Chrf().value(eager.sum(0))) - right) > 1e-3


def test_rouge_is_that_of_its_library_and_reads_every_script():
    scorer = pytest.importorskip("rouge_score.rouge_scorer")
    plain = [[text.encode("ascii", "ignore").decode() for text in texts] for texts in (HYPOTHESES, REFERENCES, OTHERS)]
    for kind in ("rouge1", "rouge2", "rougeL"):
        theirs = scorer.RougeScorer([kind])
        each = [theirs.score_multi([a, b], h)[kind].fmeasure for h, a, b in zip(*plain, strict=True)]
        scores = get_metric(kind).score(plain[0], list(zip(*plain[1:], strict=True)), rng=SeededRng(0))
        assert scores.value == pytest.approx(100 * sum(each) / 60) and scores.unit == "%"
        assert 0 <= scores.low < scores.value < scores.high <= 100 and "interval of a mean" in scores.method and scores.n == 60
    assert get_metric("rouge1").score(["Это дом_2 №!"], ["это ДОМ 2"], rng=SeededRng(0)).value == 100
    assert scorer.RougeScorer(["rouge1"]).score("это дом", "это дом")["rouge1"].fmeasure == 0


def test_meteor_is_that_of_nltk(monkeypatch):
    scoring = pytest.importorskip("nltk.translate.meteor_score")
    dictionary = {"cat": ["dog"]}

    def synsets(word):
        lemmas = [SimpleNamespace(name=item.__str__) for item in dictionary.get(word, ())]
        return [SimpleNamespace(lemmas=lemmas.copy)]

    def with_dictionary(references, hypothesis):
        return scoring.meteor_score(references, hypothesis, wordnet=SimpleNamespace(synsets=synsets))

    monkeypatch.setattr(text_metrics, "_meteor", lambda: SimpleNamespace(meteor_score=with_dictionary))
    rows = METRICS["meteor"].count(["The cats sat.", "the cat", "", "of"], ["the cat sat .", "the dog", "a", ["if", "of"]]).rows
    whole = [1 - 0.5 * (1 / 4) ** 3, 1 - 0.5 * (1 / 2) ** 3, 0, 1 - 0.5]
    assert rows[:, 0].tolist() == pytest.approx([100 * item for item in whole])
    assert METRICS["meteor"].score(["a"] * 3, ["a"] * 3, rng=SeededRng(0)).method.startswith("alpha 0.9")


def test_meteor_with_the_real_wordnet():
    scoring = pytest.importorskip("nltk.translate.meteor_score")
    try:
        scoring.wordnet.ensure_loaded()
    except LookupError:
        pytest.skip("WordNet is not installed")
    right = "It is a guide to action that ensures that the military will forever heed Party commands"
    ours = "It is a guide to action which ensures that the military always obeys the commands of the party"
    assert get_metric("meteor").score([ours], [right], rng=SeededRng(0)).value == pytest.approx(69.44, abs=0.01)


def test_what_is_missing_is_named(monkeypatch):
    scoring = pytest.importorskip("nltk.translate.meteor_score")

    def nowhere():
        raise LookupError("wordnet")

    monkeypatch.setattr(scoring, "wordnet", SimpleNamespace(ensure_loaded=nowhere))
    with pytest.raises(ImportError, match=r"METEOR needs WordNet.*python -m nltk\.downloader wordnet"):
        get_metric("meteor").score(["a"], ["a"], rng=SeededRng(0))
    real = importlib.import_module

    def absent(name):
        if name.split(".")[0] in ("sacrebleu", "rapidfuzz", "rouge_score", "nltk"):
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr("esscher.metrics.text_metrics.import_module", absent)
    needed = {"bleu": "sacrebleu", "chrf": "sacrebleu", "ter": "sacrebleu", "wer": "rapidfuzz", "rougeL": "rouge-score"}
    for name, package in {**needed, "meteor": "nltk"}.items():
        with pytest.raises(ImportError, match=rf'needs {package}, which is not installed.*pip install "esscher\[eval\]"'):
            get_metric(name).score(["a"], ["a"], rng=SeededRng(0))


def test_names_and_lines_are_checked():
    with pytest.raises(ValueError, match=r"No metric named 'blue'.*bleu, chrf, chrf\+\+, ter, wer, rouge1"):
        get_metric("blue")
    assert [item.name for item in METRICS.values()] == list(METRICS)
    wer = get_metric("wer")
    for hypotheses, references, message in [
        (["a"], ["a", "b"], "1 hypotheses and references for 2 lines"),
        ([], [], "There is no line at all"),
        (["a", "b"], [["a"], []], "Line 2 has no reference"),
    ]:
        with pytest.raises(ValueError, match=message):
            wer.score(hypotheses, references, rng=SeededRng(0))
    assert wer.score(["a b", "c"], [["x", "a b"], "c"], rng=SeededRng(0)).value == 0
    with pytest.raises(ValueError, match="between 0 and 1, not 95"):
        get_metric("bleu").score(["a", "b"], ["a", "b"], confidence=95, rng=SeededRng(0))


def covering(metric: Metric, population: torch.Tensor, *, copies: int = 1, lines: int = 60, replications: int = 200) -> int:
    """How often the interval from a few lines of the population holds its value; copies of lines pass for lines."""
    truth = float(metric.measure.value(population.sum(0)))
    hits = 0
    for seed in range(replications):
        drawn = SeededRng(seed).categorical(torch.zeros(1, len(population), dtype=torch.float64), lines)[0]
        counts = LineCounts(metric, population[drawn].repeat(copies, 1), "")
        hits += counts.estimate(resamples=200, rng=SeededRng(seed)).covers(truth)
    return hits


@pytest.mark.parametrize("name", ["bleu", "chrf", "rougeL"])
def test_intervals_cover_and_those_of_repeated_lines_do_not(name):
    """False-alarm rate 1e-3 each."""
    references = made_references(400, seed=3, longest=20)
    population = get_metric(name).count(translated(references, seed=4), references).rows
    assert_covers(covering(get_metric(name), population), 200, 0.95)
    with pytest.raises(AssertionError, match="stated rate 95%"):
        assert_covers(covering(get_metric(name), population, copies=4, replications=60), 60, 0.95)
