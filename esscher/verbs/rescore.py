"""Whether a language model, and an energy on top of it, choose better among candidates: weights from one set of lists,
word errors or BLEU on another.

    found = rescore(tuning, test, WordErrorRate(), rng=rng)

Systems, each with the scores of the one before: the first candidate; the given scores; the base; the energy; beside them the
base alone, without the given scores, and the oracle, the candidate nearest to the reference. The number of words is a score of
all that are tuned, because sums of log-probabilities prefer short texts. Scores come from the lists themselves
(`esscher.verbs.candidate_scores` puts them there).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.data.nbest import NBest
from esscher.estimate import Estimate
from esscher.estimators.rescoring import ListScores, list_scores, tune_weights
from esscher.estimators.text_metrics import TextMetric, corpus_difference, corpus_value
from esscher.randomness import Rng
from esscher.verbs.candidate_scores import LOG_BASE, LOG_WEIGHT

WORDS = "words"
FIRST, ALONE, ORACLE = "first candidate", "base alone", "oracle"


@dataclass(frozen=True)
class System:
    """A way to choose: its weights, and the metric of its choices; on the lists it was tuned on without an interval."""

    name: str
    weights: Mapping[str, float]
    value: Estimate
    tuned: float | None = None


@dataclass(frozen=True)
class Difference:
    """The metric of a system minus that of another, on the same lists."""

    system: str
    against: str
    value: Estimate


@dataclass(frozen=True)
class Rescored:
    """All systems on the test lists, and how the later ones differ from the first candidate and from the one before."""

    systems: tuple[System, ...]
    differences: tuple[Difference, ...]

    @property
    def best(self) -> System:
        """The system with all scores."""
        return next(one for one in reversed(self.systems) if one.name != ORACLE)


def rescore(
    tuning: Sequence[NBest], test: Sequence[NBest], metric: TextMetric, *, level: float = 0.95, restarts: int = 8, rng: Rng
) -> Rescored:
    """Weights tuned on some lists, their choices judged on others."""
    names = score_names(test)
    _check_names(tuning, names, "to tune on")
    learnt, judged = _table(tuning, names, metric), _table(test, names, metric)
    weights: dict[str, dict[str, float]] = {FIRST: {}}
    tuned: dict[str, float | None] = {FIRST: None}
    before: dict[str, float] = {}  # where tuning starts: the weights of the system before
    for name, used in _systems(names).items():
        part = _columns(learnt, names, used)
        start = torch.tensor([before.get(one, 0.0) for one in used], dtype=torch.float64)
        start = start if before and name != ALONE else torch.eye(len(used), dtype=torch.float64)[0]
        found = tune_weights(part, metric, start=start, restarts=restarts, rng=rng.stream("tune", name))
        weights[name] = dict(zip(used, found.tolist(), strict=True))
        before = before if name == ALONE else weights[name]
        tuned[name] = float(metric.value(part.counts_of(part.chosen(found)).sum(0)))
    return _judge(judged, names, weights, tuned, metric, level, rng)


def judge(
    test: Sequence[NBest], weights: Mapping[str, float], metric: TextMetric, *, level: float = 0.95, rng: Rng
) -> Rescored:
    """The choices of given weights beside the first candidates and the nearest."""
    names = score_names(test)
    _check_weights(weights, names)
    return _judge(_table(test, names, metric), names, {FIRST: {}, "given weights": weights}, {}, metric, level, rng)


def choose_texts(lists: Sequence[NBest], weights: Mapping[str, float]) -> dict[str, str]:
    """For each id the candidate with the highest weighted sum; references are not needed."""
    names = score_names(lists)
    _check_weights(weights, names)
    found = {}
    for one in lists:
        scores = _scores(one, names) @ torch.tensor([weights.get(name, 0.0) for name in names], dtype=torch.float64)
        found[one.id] = one.candidates[int(scores.argmax())].text
    return found


def score_names(lists: Sequence[NBest]) -> list[str]:
    """Scores of the lists in the order of the systems: the given ones, the base's, the energy's; then the words."""
    ours = (LOG_BASE, LOG_WEIGHT)
    names = lists[0].names
    return [*sorted(name for name in names if name not in ours), *(name for name in ours if name in names), WORDS]


def _systems(names: Sequence[str]) -> dict[str, list[str]]:
    """The scores that each tuned system uses."""
    given = [name for name in names if name not in (LOG_BASE, LOG_WEIGHT, WORDS)]
    steps = {"given scores": given, "base": [LOG_BASE], "energy": [LOG_WEIGHT]}
    systems: dict[str, list[str]] = {}
    used: list[str] = []
    for name, new in steps.items():
        if new and all(one in names for one in new):
            if name == "base" and used:
                systems[ALONE] = [LOG_BASE, WORDS]
            used = [*used, *new]
            systems[name] = [*used, WORDS]
    if not systems:
        raise ValueError("The lists have no score at all. Nothing was tuned; give --base, or candidates with scores.")
    return systems


def _judge(
    judged: ListScores,
    names: Sequence[str],
    weights: Mapping[str, Mapping[str, float]],
    tuned: Mapping[str, float | None],
    metric: TextMetric,
    level: float,
    rng: Rng,
) -> Rescored:
    chosen = {name: _chosen(judged, names, given) for name, given in weights.items()}
    counts = {name: judged.counts_of(one) for name, one in {**chosen, ORACLE: judged.nearest(metric)}.items()}

    def resampling() -> Rng:
        return rng.stream("bootstrap")  # the same resamples for every number

    systems = [
        System(name, weights.get(name, {}), corpus_value(metric, one, level=level, rng=resampling()), tuned.get(name))
        for name, one in counts.items()
    ]
    one_more = [name for name in chosen if name != ALONE]
    pairs = dict.fromkeys([*((name, FIRST) for name in list(chosen)[1:]), *((new, old) for old, new in pairwise(one_more))])
    pairs |= {("base", ALONE): None} if ALONE in chosen else {}
    differences = [
        Difference(new, old, corpus_difference(metric, counts[new], counts[old], level=level, rng=resampling()))
        for new, old in pairs
    ]
    return Rescored(tuple(systems), tuple(differences))


def _chosen(lists: ListScores, names: Sequence[str], weights: Mapping[str, float]) -> Int[Tensor, "L"]:
    if not weights:
        return torch.zeros(len(lists.scores), dtype=torch.long)
    return lists.chosen(torch.tensor([weights.get(name, 0.0) for name in names], dtype=torch.float64))


def _table(lists: Sequence[NBest], names: Sequence[str], metric: TextMetric) -> ListScores:
    for one in lists:
        if not one.references:
            raise ValueError(
                f"The list {one.id!r} has no reference, so nothing can be tuned or judged on it. Nothing was computed; give "
                f"references, or choose by weights that exist (--weights with --chosen)."
            )
    counts = [metric.counts(one.texts, one.references) for one in lists]
    return list_scores([_scores(one, names) for one in lists], counts)


def _scores(one: NBest, names: Sequence[str]) -> Float[Tensor, "N F"]:
    rows = [[len(each.text.split()) if name == WORDS else each.scores[name] for name in names] for each in one.candidates]
    return torch.tensor(rows, dtype=torch.float64)


def _columns(lists: ListScores, names: Sequence[str], used: Sequence[str]) -> ListScores:
    return ListScores(lists.scores[..., [names.index(name) for name in used]], lists.counts)


def _check_names(lists: Sequence[NBest], names: Sequence[str], what: str) -> None:
    if set(score_names(lists)) != set(names):
        raise ValueError(
            f"The lists {what} have the scores {', '.join(score_names(lists))}, and those to test have {', '.join(names)}. "
            f"Nothing was tuned; both need the same."
        )


def _check_weights(weights: Mapping[str, float], names: Sequence[str]) -> None:
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise ValueError(
            f"There is a weight for {unknown[0]!r}, and the lists have no such score; they have {', '.join(names)}. Nothing "
            f"was chosen; score the lists with the models that the weights were tuned with."
        )
