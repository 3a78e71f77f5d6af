"""Rescoring of n-best lists: scores of a base and an energy, weights of all scores, and comparisons of systems.

    log_base     log a(x) of the whole text with its end symbol, after an empty prompt; no length limit
    log_weight   -E(x) of the same

Scores are saved in the format of `esscher.data.nbest`, a line per list; an interrupted run continues after the last whole line.
Each score has the digest of its model and is reused for that model only, so a scored file may itself be the lists.

Weights are tuned on some lists; word errors or BLEU are measured on others. Systems, each with the scores of the one before:
first candidate, scores in the lists, base, energy; beside them the base alone, and the oracle (nearest to the reference). All
tuned systems also score the number of words, because sums of log-probabilities prefer short texts.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.chunking import Chunking
from esscher.core.device import resolve_device
from esscher.core.estimate import Estimate
from esscher.core.progress import Throttle, current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.reading import read_json
from esscher.core.space import Sequences
from esscher.core.storage import saving_error, write_json
from esscher.data.nbest import Candidate, NBest, read_nbest, split_by_id
from esscher.data.text import text_points
from esscher.decoding.rescoring import NBestScores, nbest_scores, tune_weights
from esscher.energies.self_energy import is_self_energy
from esscher.energies.serialization import load_energy
from esscher.energies.text_scorers import content_digest
from esscher.hub import read_config
from esscher.metrics.metric import METRICS, TextMetric, corpus_difference, corpus_value
from esscher.reports.report import Report, write_lines
from esscher.samplers.scoring import log_prob, log_weight
from esscher.workflow.config.translate import RescoreConfig
from esscher.workflow.model import Model, load

LOG_BASE, LOG_WEIGHT = "log_base", "log_weight"
CANDIDATES_PER_SHARD = 256  # candidates that are sorted by length, scored and written together
TOKENS = 4096  # of a pass, padding included


def rescore_lists(settings: RescoreConfig) -> Report:
    """Score n-best lists, tune weights, choose candidates, and compare systems where lists have references."""
    tuning, test = _read_lists(settings)
    if settings.base is not None:
        scored = score_candidates(
            [*tuning, *test], settings.base, settings.energy, eos=settings.eos, out=settings.out, **settings.placement
        )
        tuning, test = scored[: len(tuning)], scored[len(tuning) :]
    metric, rng = METRICS[settings.metric].measure, SeededRng(settings.seed).stream("rescore")
    comparison: SystemComparison | None = None
    if settings.weights is None:
        comparison = compare_systems(tuning, test, metric, confidence=settings.confidence, rng=rng)
        weights = comparison.best_weights
    else:
        weights = _read_weights(Path(settings.weights))
        if all(nbest.references for nbest in test):
            names, systems = score_names(test), {FIRST: {}, "given weights": weights}
            comparison = _evaluate_systems(_table(test, names, metric), names, systems, {}, metric, settings.confidence, rng)
    chosen = choose_texts(test, weights)
    if settings.weights_out is not None:
        write_json(Path(settings.weights_out), weights)
    if settings.chosen is not None:
        write_lines(Path(settings.chosen), [{"id": name, "text": text} for name, text in chosen.items()])
    facts = {
        "device": None if settings.base is None else str(resolve_device(settings.device)),
        "lists": settings.lists, "tuned_on": len(tuning), "tested_on": len(test), "base": settings.base,
        "energy": settings.energy, "seed": settings.seed,
    }  # fmt: skip
    if comparison is None:
        return Report("esscher rescore", facts, {}, ["The lists have no references, so nothing was measured."])
    rows = [
        {"system": system, metric.name: value, "tuned": comparison.tuned.get(system)}
        | {f"weight of {name}": weight for name, weight in comparison.weights.get(system, {}).items()}
        for system, value in comparison.values.items()
    ]
    pairs = [{"system": new, "minus": old, "difference": value} for (new, old), value in comparison.differences.items()]
    note = "A difference whose interval leaves out 0 is not chance alone."
    return Report("esscher rescore", facts, {"systems": rows, "differences": pairs}, [note])


def _read_lists(settings: RescoreConfig) -> tuple[tuple[NBest, ...], tuple[NBest, ...]]:
    """The lists to tune on, none when there are weights, and those to test."""

    def prepared(file: str) -> tuple[NBest, ...]:
        lists = (nbest.top(settings.top) for nbest in read_nbest(Path(file)))
        return tuple(nbest.lowered() if settings.lowercase else nbest for nbest in lists)

    test = prepared(settings.lists)
    if settings.weights is not None:
        return (), test
    if settings.tune is None:
        return split_by_id(test, settings.tune_share)
    tuning = prepared(settings.tune)
    shared = {nbest.id for nbest in tuning} & {nbest.id for nbest in test}
    if shared:
        raise ValueError(
            f"{len(shared)} lists are in {settings.tune} and in {settings.lists}, {min(shared)!r} among them: lists that "
            f"weights are tuned on are no test. Nothing was done; take them out of one file."
        )
    return tuning, test


def _read_weights(file: Path) -> dict[str, float]:
    try:
        return {str(name): float(value) for name, value in read_json(file).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f'{file} holds no weights, such as {{"score": 1, "log_base": 0.3}}: {error}. Nothing was done.'
        ) from error


def score_candidates(
    lists: Sequence[NBest],
    base: str | Path,
    energy: str | Path | None = None,
    *,
    eos: str | None = None,
    out: str | Path | None = None,
    **placement: Any,
) -> tuple[NBest, ...]:
    """The lists with the scores `log_base` and, with an energy, `log_weight`; those in the lists or in `out` are used again."""
    chunking = Chunking(eos=eos) if energy is None else Chunking(eos=eos).with_defaults(load_energy(energy).chunking)
    read_config(Path(base))  # refuses a folder that holds no model
    wanted = {LOG_BASE: f"{content_digest(base)} {chunking.eos or 'default'}"}  # scores of a base depend on its end symbol
    if energy is not None:
        wanted[LOG_WEIGHT] = f"self {wanted[LOG_BASE]}" if is_self_energy(energy) else content_digest(energy)
    file = None if out is None else Path(out)
    finished = {} if file is None else _read_finished(file, lists, wanted)
    done = {nbest.id: finished.get(nbest.id, nbest) for nbest in lists}
    unscored = [nbest for nbest in done.values() if _missing_scores(nbest, wanted)]
    _append(file, [nbest for nbest in lists if nbest.id not in finished and not _missing_scores(nbest, wanted)])
    if unscored:
        model = load(base, energy, **vars(chunking), **placement)
        count, throttle = 0, Throttle()
        for shard in _shards(unscored):
            scored = _score_shard(shard, model, wanted)
            _append(file, scored)
            done |= {nbest.id: nbest for nbest in scored}
            count += len(shard)
            if throttle.due():
                left = throttle.seconds_left(count, len(unscored))
                current_progress().say(f"scored {count:,} of {len(unscored):,} lists  {left:,.0f} s left")
    return tuple(done[nbest.id] for nbest in lists)


def _missing_scores(nbest: NBest, wanted: Mapping[str, str]) -> list[str]:
    """Scores that the list does not have, or has from another model; `wanted` has the digest of the model of each score."""
    return [name for name, digest in wanted.items() if name not in nbest.names or nbest.scored_by.get(name) != digest]


def _read_finished(file: Path, lists: Sequence[NBest], wanted: Mapping[str, str]) -> dict[str, NBest]:
    """The lists that the file has already; half a line at its end is dropped, other models or candidates are refused."""
    if file.suffix == ".gz":
        raise ValueError(
            f"Scores are kept as plain text, so that they can be added to; name {file.stem} instead of {file.name}."
        )
    if not file.is_file():
        return {}
    content = file.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(file, whole)
    if whole == 0:
        return {}
    texts = {nbest.id: nbest.texts for nbest in lists}
    finished = {nbest.id: nbest for nbest in read_nbest(file)}
    for name, nbest in finished.items():
        same = texts.get(name) == nbest.texts
        if not same or _missing_scores(nbest, wanted) or (LOG_WEIGHT in nbest.names) != (LOG_WEIGHT in wanted):
            what = "scores of other models" if same else "other candidates"
            raise ValueError(
                f"{file} holds {what}: list {name!r} differs. Nothing was scored or changed; choose another --out. To add an "
                f"energy to scores that exist, pass {file} as the lists."
            )
    return finished


def _shards(lists: Sequence[NBest]) -> list[list[NBest]]:
    shards: list[list[NBest]] = []
    room = 0
    for nbest in lists:
        if room < len(nbest.candidates) or not shards:
            shards.append([])
            room = CANDIDATES_PER_SHARD
        shards[-1].append(nbest)
        room -= len(nbest.candidates)
    return shards


def _score_shard(lists: Sequence[NBest], model: Model, wanted: Mapping[str, str]) -> list[NBest]:
    """The lists with every wanted score; equal texts are scored once."""
    scorers = {LOG_BASE: lambda x: log_prob(model.base, x), LOG_WEIGHT: lambda x: log_weight(model.target, x)}
    scored = list(lists)
    for name, digest in wanted.items():
        missing = [place for place, nbest in enumerate(scored) if name in _missing_scores(nbest, wanted)]
        texts = list(dict.fromkeys(text for place in missing for text in scored[place].texts))
        scores = dict(zip(texts, _score_by_length(scorers[name], texts, model), strict=True)) if texts else {}
        for place in missing:
            nbest = scored[place]
            candidates = tuple(Candidate(each.text, {**each.scores, name: scores[each.text]}) for each in nbest.candidates)
            scored[place] = replace(nbest, candidates=candidates, scored_by={**nbest.scored_by, name: digest})
    return scored


def _score_by_length(score: Callable[[Sequences], Tensor], texts: Sequence[str], model: Model) -> list[float]:
    """A score for each text; texts of like length share a pass."""
    x = text_points(texts, model.tokenizer, max_length=sys.maxsize).x
    order = x.lengths.argsort()
    scores = torch.zeros(len(x), dtype=torch.float64)
    first = 0
    while first < len(x):
        rows = max(1, TOKENS // int(x.lengths[order[min(first + 31, len(x) - 1)]]))
        index = order[first : first + rows]
        width = int(x.stop[index].max())
        scores[index] = score(Sequences(x.tokens[index, :width], x.start[index], x.stop[index]))
        first += rows
    if not bool(scores.isfinite().all()):
        wrong = int((~scores.isfinite()).nonzero()[0, 0])
        raise ValueError(
            f"The model gives {texts[wrong][:60]!r} the score {float(scores[wrong])}, which no weight can balance. The lists "
            f"scored before are kept; leave such candidates out, or mend the energy."
        )
    return scores.tolist()


def _append(file: Path | None, lists: Sequence[NBest]) -> None:
    """Lines at the end of the file, on the disk before it goes on."""
    if file is None or not lists:
        return
    content = "".join(nbest.to_json() + "\n" for nbest in lists).encode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise saving_error(file, error, len(content)) from error


WORDS = "words"
FIRST, BASE_ALONE, ORACLE = "first candidate", "base alone", "oracle"


@dataclass(frozen=True)
class SystemComparison:
    """The metric of each system on the test lists, its weights, and the metric on the lists that it was tuned on. `differences`
    compare a system, named first, with the first candidate and with the system before."""

    values: Mapping[str, Estimate]
    weights: Mapping[str, Mapping[str, float]]
    tuned: Mapping[str, float]
    differences: Mapping[tuple[str, str], Estimate]

    @property
    def best_weights(self) -> dict[str, float]:
        """Those of the system with all scores."""
        return dict(list(self.weights.values())[-1])


def compare_systems(
    tuning: Sequence[NBest], test: Sequence[NBest], metric: TextMetric, *, confidence: float = 0.95, restarts: int = 8, rng: Rng
) -> SystemComparison:
    """Tune weights for the metric on some lists, from several random starts, and compare systems on others."""
    names = score_names(test)
    if set(score_names(tuning)) != set(names):
        raise ValueError(
            f"The lists to tune on have the scores {', '.join(score_names(tuning))}, and those to test have "
            f"{', '.join(names)}. Nothing was tuned; both need the same."
        )
    tuning_table, test_table = _table(tuning, names, metric), _table(test, names, metric)
    weights: dict[str, dict[str, float]] = {FIRST: {}}
    tuned: dict[str, float] = {}
    previous: dict[str, float] = {}  # where tuning starts: the weights of the system before
    for name, used in _systems(names).items():
        table = NBestScores(tuning_table.scores[..., [names.index(score) for score in used]], tuning_table.counts)
        start = _vector(previous if previous and name != BASE_ALONE else {used[0]: 1.0}, used)
        tuned_weights = tune_weights(table, metric, start=start, restarts=restarts, rng=rng.stream("tune", name))
        weights[name] = dict(zip(used, tuned_weights.tolist(), strict=True))
        previous = previous if name == BASE_ALONE else weights[name]
        tuned[name] = float(metric.value(table.counts_of(table.chosen(tuned_weights)).sum(0)))
    return _evaluate_systems(test_table, names, weights, tuned, metric, confidence, rng)


def choose_texts(lists: Sequence[NBest], weights: Mapping[str, float]) -> dict[str, str]:
    """For each id the candidate with the highest weighted sum; references are not needed."""
    names = score_names(lists)
    vector = _vector(weights, names)
    return {nbest.id: nbest.texts[int((_scores(nbest, names) @ vector).argmax())] for nbest in lists}


def score_names(lists: Sequence[NBest]) -> list[str]:
    """Scores of the lists in the order of the systems: those in the lists, of the base, of the energy; then the words."""
    names = lists[0].names
    ours = [name for name in (LOG_BASE, LOG_WEIGHT) if name in names]
    return [*sorted(set(names) - set(ours)), *ours, WORDS]


def _systems(names: Sequence[str]) -> dict[str, list[str]]:
    """The scores that each tuned system uses."""
    listed = [name for name in names if name not in (LOG_BASE, LOG_WEIGHT, WORDS)]
    systems: dict[str, list[str]] = {}
    used: list[str] = []
    for name, new in {"given scores": listed, "base": [LOG_BASE], "energy": [LOG_WEIGHT]}.items():
        if new and all(score in names for score in new):
            if name == "base" and used:
                systems[BASE_ALONE] = [LOG_BASE, WORDS]
            used = [*used, *new]
            systems[name] = [*used, WORDS]
    if not systems:
        raise ValueError("The lists have no score at all. Nothing was tuned; give --base, or candidates with scores.")
    return systems


def _evaluate_systems(
    test: NBestScores,
    names: Sequence[str],
    weights: Mapping[str, Mapping[str, float]],
    tuned: Mapping[str, float],
    metric: TextMetric,
    confidence: float,
    rng: Rng,
) -> SystemComparison:
    """Measure all systems and the oracle; every number uses the same resamples."""
    chosen = {name: test.chosen(_vector(used, names)) for name, used in weights.items()}
    chosen |= {FIRST: torch.zeros(len(test.scores), dtype=torch.long), ORACLE: test.nearest(metric)}
    counts = {name: test.counts_of(rows) for name, rows in chosen.items()}
    values = {
        name: corpus_value(metric, count, confidence=confidence, rng=rng.stream("bootstrap")) for name, count in counts.items()
    }
    one_more = [name for name in weights if name != BASE_ALONE]
    pairs = [*((name, FIRST) for name in list(weights)[1:]), *((new, old) for old, new in pairwise(one_more))]
    pairs += [("base", BASE_ALONE)] if BASE_ALONE in weights else []
    differences = {
        (new, old): corpus_difference(metric, counts[new], counts[old], confidence=confidence, rng=rng.stream("bootstrap"))
        for new, old in dict.fromkeys(pairs)
    }
    return SystemComparison(values, weights, tuned, differences)


def _vector(weights: Mapping[str, float], names: Sequence[str]) -> Float[Tensor, "F"]:
    """The weight of each score; one for a score that the lists do not have is refused."""
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise ValueError(
            f"There is a weight for {unknown[0]!r}, and the lists have no such score; they have {', '.join(names)}. Nothing "
            f"was chosen; score the lists with the models that the weights were tuned with."
        )
    return torch.tensor([weights.get(name, 0.0) for name in names], dtype=torch.float64)


def _table(lists: Sequence[NBest], names: Sequence[str], metric: TextMetric) -> NBestScores:
    for nbest in lists:
        if not nbest.references:
            raise ValueError(
                f"The list {nbest.id!r} has no reference, so nothing can be tuned or measured on it. Nothing was computed; "
                f"give references, or choose by weights that exist (--weights with --chosen)."
            )
    counts = [metric.counts(nbest.texts, nbest.references) for nbest in lists]
    return nbest_scores([_scores(nbest, names) for nbest in lists], counts)


def _scores(nbest: NBest, names: Sequence[str]) -> Float[Tensor, "N F"]:
    rows = [[len(each.text.split()) if name == WORDS else each.scores[name] for name in names] for each in nbest.candidates]
    return torch.tensor(rows, dtype=torch.float64)
