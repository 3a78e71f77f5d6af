"""Do the intervals cover? Every estimator that states a rate, against exact values, many times over.

Four processes whose truth is known without sampling:

    ending      a three-state automaton with end symbol, an energy for each token: enumerated
    motif       fair bits, an energy unless a motif occurs, so two weights only: enumerated
    heavy       independent symbols, an additive energy: log-weights near normal with deviation 1.5, closed form
    prompted    the automaton of `ending` after random prompts, each with its own draws: enumerated from every state

A replication draws afresh what the estimate depends on: the draws, and a test set from the target where there is one.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esscher.draws import Draws
from esscher.estimate import Estimate
from esscher.estimators.divergences import divergences
from esscher.estimators.guarantee import guaranteed_log_z
from esscher.estimators.log_z import log_z
from esscher.estimators.moments import moments
from esscher.estimators.perplexity import cross_entropy
from esscher.estimators.reliability import reliability
from esscher.estimators.replicates import per_prompt
from esscher.exact.automaton import Automaton
from esscher.exact.enumeration import enumerate_points
from esscher.randomness import Rng, Seeded
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Importance
from esscher.space import Sequences, Space, empty_prompts, prompts_of
from esscher.target import Tilted

LEVEL = 0.95
TEST_SEQUENCES = 200
PROMPTS, PROMPT_LENGTH, PROMPTED_DRAWS = 80, 12, 32
ROWS_AT_ONCE = 200_000
SCALES = {  # replications, draws
    "smoke": (500, (200,)),
    "small": (1000, (200, 1000, 5000)),
    "paper": (5000, (200, 1000, 5000)),
}
PAPER = [{"quantity": "all", "coverage": LEVEL, "note": "the stated rate; the residual paper's bounds state none"}]


@dataclass(frozen=True)
class Process:
    """A target, its exact numbers, and exact test sequences from it."""

    name: str
    target: Tilted
    truth: dict[str, float]
    sequences: Callable[[int, Rng], Sequences]
    bounds: tuple[float, float]


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """The rate at which each interval covered, with its own Wilson interval, and how often the verdict warned."""
    replications, sizes = SCALES[scale]
    rows: list[dict[str, Any]] = []
    with one_thread():
        for size in sizes:
            for process in (ending(), motif(), heavy()):
                found = _unprompted(process, size, replications, seeds)
                rows += tally(process.name, size, process.truth, found)
        truth, found = _prompted(PROMPTED_DRAWS, replications, seeds)
    rows += tally("prompted", PROMPTED_DRAWS, truth, found)
    result = {"rows": rows, "paper": PAPER}
    (out / "coverage.json").write_text(json.dumps(result, indent=1))
    return result


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors of a few hundred numbers: a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def ending() -> Process:
    """A three-state automaton over four tokens, one of them the end."""
    return _enumerated("ending", _automaton_target())


def motif() -> Process:
    """Fair bits of length 12, two nats for want of the motif 1011."""
    space = Space(2, 12)
    base = Automaton(torch.full((1, 2), math.log(0.5), dtype=torch.float64), torch.zeros(1, 2, dtype=torch.long), space)

    def lacking(x: Sequences) -> Tensor:
        windows = x.tokens.unfold(1, 4, 1) == torch.tensor([1, 0, 1, 1])
        return 2.0 * (~windows.all(-1).any(-1)).double()

    return _enumerated("motif", Tilted(base, lacking))


def heavy() -> Process:
    """Five symbols at 24 places, an energy for each symbol: the tilted model is again independent symbols."""
    length, symbols = 24, torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1], dtype=torch.float64)
    liking = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0], dtype=torch.float64)
    liking = 1.5 * liking / ((symbols * liking**2).sum() * length).sqrt()
    space, move = Space(5, length), torch.zeros(1, 5, dtype=torch.long)
    tilted = torch.log_softmax(symbols.log() + liking, -1)
    surprise = -tilted
    truth = {
        "log Z": length * float(torch.logsumexp(symbols.log() + liking, -1)),
        "cross-entropy": float((tilted.exp() * surprise).sum()),
        "moment": length * float(tilted.exp()[-1]),
    }
    target = Tilted(Automaton(symbols.log()[None], move, space), lambda x: -liking[x.tokens].sum(-1))

    def sequences(count: int, rng: Rng) -> Sequences:
        return draw(Automaton(tilted[None], move, space), empty_prompts(1), count, rng=rng)[0]

    return Process("heavy", target, truth, sequences, (length * float(liking.min()), length * float(liking.max())))


def _automaton_target() -> Tilted:
    emit = torch.tensor([[0.1, 0.5, 0.2, 0.2], [0.3, 0.1, 0.4, 0.2], [0.2, 0.3, 0.1, 0.4]], dtype=torch.float64).log()
    move = torch.tensor([[0, 1, 2, 0], [0, 2, 0, 1], [0, 0, 1, 2]])
    cost = torch.tensor([0.0, 0.5, -0.4, 0.2], dtype=torch.float64)
    return Tilted(Automaton(emit, move, Space(4, 6, eos=0)), lambda x: torch.where(x.counted, cost[x.tokens], 0.0).sum(-1))


def _enumerated(name: str, target: Tilted) -> Process:
    x = enumerate_points(target.space)
    log_a, log_w = target.base.log_probs(x).sum(-1), target.log_weight(x)
    log_z = torch.logsumexp(log_a + log_w, -1)
    log_p = log_a + log_w - log_z
    p, a, mixture = log_p.exp(), log_a.exp(), torch.logaddexp(log_p, log_a) - math.log(2)
    truth = {
        "log Z": float(log_z),
        "cross-entropy": float(-(p * log_p).sum() / (p * x.lengths).sum()),
        "moment": float((p * _feature(x)).sum()),
        "kl": float((p * (log_p - log_a)).sum()),
        "reverse_kl": float((a * (log_a - log_p)).sum()),
        "tv": float((p - a).abs().sum() / 2),
        "js": float((p * (log_p - mixture)).sum() + (a * (log_a - mixture)).sum()) / 2,
    }

    def sequences(count: int, rng: Rng) -> Sequences:
        return x.rows(rng.categorical(log_p[None], count)[0])

    return Process(name, target, truth, sequences, (float(log_w.min()), float(log_w.max())))


def _feature(x: Sequences) -> Tensor:
    """How often the last token of the vocabulary seen here occurs."""
    return (x.counted & (x.tokens == int(x.tokens.max()))).sum(-1).double()


Found = dict[str, list[Estimate | str]]


def _unprompted(process: Process, draws: int, replications: int, seeds: int) -> Found:
    found: Found = {}
    for number, (one, rng) in enumerate(_replications(process, draws, replications, seeds)):
        test = process.sequences(TEST_SEQUENCES, rng.stream("test", number))
        for name, value in _estimates(process, one, test).items():
            found.setdefault(name, []).append(value)
    return found


def _replications(process: Process, draws: int, replications: int, seeds: int) -> Iterator[tuple[Draws, Rng]]:
    together = max(1, ROWS_AT_ONCE // draws)
    for seed in range(seeds):
        for first in range(0, replications, together):
            rng = Seeded(seed, "coverage", process.name, draws, first)
            prompts = empty_prompts(min(together, replications - first))
            for one in per_prompt(Importance()(process.target, prompts, draws, rng=rng)):
                yield one, rng


def _estimates(process: Process, draws: Draws, test: Sequences) -> dict[str, Estimate | str]:
    low, high = process.bounds
    measure = partial(cross_entropy, process.target, draws=draws, level=LEVEL)
    feature = _feature(draws.x).view(1, -1, 1)
    found: dict[str, Estimate | str] = {
        "log Z": log_z(draws, level=LEVEL),
        "log Z, guaranteed": guaranteed_log_z(draws, low=low, high=high, level=LEVEL)[0],
        "perplexity": measure(test)["token"],
        "moment": moments(draws, feature, level=LEVEL)[0],
        "verdict": reliability(draws)[0].verdict,
    }
    if "kl" in process.truth:
        found |= divergences(process.target, draws, level=LEVEL)
    return found


def _prompted(draws: int, replications: int, seeds: int) -> tuple[dict[str, float], Found]:
    """Random prompts of fair tokens, a test sequence and `draws` draws after each."""
    target = _automaton_target()
    base = target.base
    assert isinstance(base, Automaton)
    share = _state_share(base)
    reach = {int(base.begin(prompts_of([p]))[1]): p for p in ([1, 1], [1], [1, 2], [2])}
    x = enumerate_points(target.space, prompts_of([reach[state] for state in sorted(reach)]))
    log_score = target.log_score(x).view(len(reach), -1)
    log_z_of = torch.logsumexp(log_score, -1)
    log_p = log_score - log_z_of[:, None]
    surprise, lengths = -(log_p.exp() * log_p).sum(-1), (log_p.exp() * x.lengths.view(log_p.shape)).sum(-1)
    truth = {"log Z": float(share @ log_z_of), "cross-entropy": float(share @ surprise / (share @ lengths))}
    found: Found = {"mean log Z": [], "perplexity": []}
    points = enumerate_points(target.space)
    for seed in range(seeds):
        for number in range(replications):
            rng = Seeded(seed, "coverage", "prompted", number)
            prompts = Sequences(
                rng.categorical(torch.zeros(PROMPTS, 3), PROMPT_LENGTH) + 1,
                torch.full((PROMPTS,), PROMPT_LENGTH),
                torch.full((PROMPTS,), PROMPT_LENGTH),
            )
            state = base.begin(prompts)[1]
            pick = points.rows(rng.categorical(log_p[state])[:, 0])
            test = Sequences(torch.cat([prompts.tokens, pick.tokens], 1), prompts.start, prompts.start + pick.stop)
            drawn = Importance()(target, prompts, draws, rng=rng)
            found["mean log Z"].append(log_z(drawn, prompts="sample", level=LEVEL))
            found["perplexity"].append(cross_entropy(target, test, draws=drawn, level=LEVEL)["token"])
    return truth, found


def _state_share(base: Automaton) -> Tensor:
    """How likely each state is after a prompt of fair tokens, the end symbol left out."""
    share = torch.zeros(len(base.move), dtype=torch.float64)
    share[0] = 1.0
    for _ in range(PROMPT_LENGTH):
        share = torch.zeros_like(share).index_add(0, base.move[:, 1:].reshape(-1), (share / 3).repeat_interleave(3))
    return share


def tally(process: str, draws: int, truth: dict[str, float], found: Found) -> list[dict[str, Any]]:
    """A row for each quantity: how often its interval held the truth, with the Wilson interval of that rate."""
    from scipy.stats import binomtest

    verdicts = found.get("verdict", [])
    rows = []
    for quantity, estimates in found.items():
        if quantity == "verdict":
            continue
        exact = truth[quantity] if quantity in truth else truth[_truth_of(quantity)]
        intervals = [value for value in estimates if isinstance(value, Estimate)]
        hits = sum(value.covers(exact) for value in intervals)
        wilson = binomtest(hits, len(intervals)).proportion_ci(LEVEL, method="wilson")
        row = {"process": process, "quantity": quantity, "draws": draws, "replications": len(intervals)}
        row |= {"exact": exact, "coverage": hits / len(intervals), "low": float(wilson.low), "high": float(wilson.high)}
        row["width"] = sum(value.high - value.low for value in intervals) / len(intervals)
        row["warned"] = sum(word != "good" for word in verdicts) / len(verdicts) if verdicts else None
        rows.append(row)
    return rows


def _truth_of(quantity: str) -> str:
    known = {"log Z, guaranteed": "log Z", "mean log Z": "log Z", "perplexity": "cross-entropy"}
    return known.get(quantity, quantity)
