"""How often confidence intervals cover exact values: every estimator that states a rate, over many replications.

    ending      a three-state automaton with end symbol and an energy for each token: enumerated
    motif       fair bits and an energy unless a motif occurs, so only two weights: enumerated
    heavy       independent symbols and an additive energy: log-weights nearly normal with deviation 1.5, closed form
    prompted    the automaton of `ending` after random prompts, each with its own draws: enumerated from every state

A replication draws everything that the estimate depends on anew: the draws, and a test set from the target if there is one.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, product
from typing import Any

import torch
from torch import Tensor

from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of
from esscher.core.target import Tilted
from esscher.estimators.expectations import divergences, moments, per_prompt
from esscher.estimators.log_z import betting_log_z, log_z
from esscher.estimators.perplexity import cross_entropy
from esscher.estimators.reliability import reliability
from esscher.exact.automaton import Automaton
from esscher.exact.enumeration import enumerate_points, tabulate
from esscher.papers.study import Row, StudyContext
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Importance

CONFIDENCE = 0.95
TEST_SEQUENCES = 200
PROMPTS, PROMPT_LENGTH, PROMPTED_DRAWS = 80, 12, 32
ROWS_AT_ONCE = 200_000
REPLICATIONS = {"smoke": 500, "small": 1000, "paper": 5000}
DRAWS = {"smoke": (200,), "small": (200, 1000, 5000), "paper": (200, 1000, 5000)}
PAPER = [{"quantity": "all", "coverage": CONFIDENCE, "note": "the stated rate; the residual paper's bounds state none"}]


@dataclass(frozen=True)
class Process:
    """A target, its exact values, bounds of its log-weights, and a sampler of exact test sequences."""

    name: str
    target: Tilted
    truth: dict[str, float]
    sequences: Callable[[int, Rng], Sequences]
    bounds: tuple[float, float]


def run(context: StudyContext) -> dict[str, Any]:
    """The rate at which each interval covered, with its own Wilson interval, and how often the verdict warned."""
    replications, rows = REPLICATIONS[context.scale], []
    with single_thread():
        for draws, make in product(DRAWS[context.scale], (ending, motif, heavy)):
            process = make()
            estimates = _unprompted(process, draws, replications, context.seeds)
            rows += coverage_table(process.name, draws, process.truth, estimates)
        truth, estimates = _prompted(PROMPTED_DRAWS, replications, context.seeds)
    rows += coverage_table("prompted", PROMPTED_DRAWS, truth, estimates)
    result = {"rows": rows, "paper": PAPER}
    (context.out / "coverage.json").write_text(json.dumps(result, indent=1))
    return result


@contextmanager
def single_thread() -> Iterator[None]:
    """Run torch on one thread, which is fastest for tensors of a few hundred numbers."""
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
    """Fair bits of length 12, with an energy of two nats unless the motif 1011 occurs."""
    space = Space(2, 12)
    base = Automaton(torch.full((1, 2), math.log(0.5), dtype=torch.float64), torch.zeros(1, 2, dtype=torch.long), space)

    def lacking(x: Sequences) -> Tensor:
        windows = x.tokens.unfold(1, 4, 1) == torch.tensor([1, 0, 1, 1])
        return 2.0 * (~windows.all(-1).any(-1)).double()

    return _enumerated("motif", Tilted(base, lacking))


def heavy() -> Process:
    """24 independent symbols out of five, with an energy for each symbol: the tilted model has independent symbols too."""
    length, symbols = 24, torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1], dtype=torch.float64)
    log_tilt = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0], dtype=torch.float64)
    log_tilt = 1.5 * log_tilt / ((symbols * log_tilt**2).sum() * length).sqrt()
    log_p = torch.log_softmax(symbols.log() + log_tilt, -1)
    base, tilted = (
        Automaton(emission[None], torch.zeros(1, 5, dtype=torch.long), Space(5, length)) for emission in (symbols.log(), log_p)
    )
    truth = {
        "log Z": length * float(torch.logsumexp(symbols.log() + log_tilt, -1)),
        "cross-entropy": float((log_p.exp() * -log_p).sum()),
        "moment": length * float(log_p.exp()[-1]),
    }

    def sequences(count: int, rng: Rng) -> Sequences:
        return draw(tilted, empty_prompts(1), count, rng=rng)[0]

    bounds = length * float(log_tilt.min()), length * float(log_tilt.max())
    return Process("heavy", Tilted(base, lambda x: -log_tilt[x.tokens].sum(-1)), truth, sequences, bounds)


def _automaton_target() -> Tilted:
    log_emission = torch.tensor([[0.1, 0.5, 0.2, 0.2], [0.3, 0.1, 0.4, 0.2], [0.2, 0.3, 0.1, 0.4]], dtype=torch.float64).log()
    next_state = torch.tensor([[0, 1, 2, 0], [0, 2, 0, 1], [0, 0, 1, 2]])
    cost = torch.tensor([0.0, 0.5, -0.4, 0.2], dtype=torch.float64)
    return Tilted(
        Automaton(log_emission, next_state, Space(4, 6, eos=0)), lambda x: torch.where(x.counted, cost[x.tokens], 0.0).sum(-1)
    )


def _enumerated(name: str, target: Tilted) -> Process:
    table = tabulate(target)
    x, log_a, log_w, log_p = table.x, table.log_base[0], table.log_weight[0], table.log_prob[0]
    p, a, mixture = log_p.exp(), log_a.exp(), torch.logaddexp(log_p, log_a) - math.log(2)
    truth = {
        "log Z": float(table.log_z),
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
    """How often the largest token of these sequences occurs."""
    return (x.counted & (x.tokens == int(x.tokens.max()))).sum(-1).double()


EstimatesByName = dict[str, list[Estimate | str]]


def _unprompted(process: Process, draws: int, replications: int, seeds: int) -> EstimatesByName:
    """Estimates of all replications; the draws of many are made at once, as if after many prompts."""
    estimates: EstimatesByName = {}
    together, numbers = max(1, ROWS_AT_ONCE // draws), count()
    for seed, first in product(range(seeds), range(0, replications, together)):
        rng = SeededRng(seed, "coverage", process.name, draws, first)
        prompts = empty_prompts(min(together, replications - first))
        for drawn in per_prompt(Importance()(process.target, prompts, draws, rng=rng)):
            test = process.sequences(TEST_SEQUENCES, rng.stream("test", next(numbers)))
            for name, value in _estimates(process, drawn, test).items():
                estimates.setdefault(name, []).append(value)
    return estimates


def _estimates(process: Process, draws: Draws, test: Sequences) -> dict[str, Estimate | str]:
    low, high = process.bounds
    estimates: dict[str, Estimate | str] = {
        "log Z": log_z(draws, confidence=CONFIDENCE),
        "log Z, guaranteed": betting_log_z(draws, low=low, high=high, confidence=CONFIDENCE)[0],
        "perplexity": cross_entropy(process.target, test, draws=draws, confidence=CONFIDENCE)["token"],
        "moment": moments(draws, _feature(draws.x).view(1, -1, 1), confidence=CONFIDENCE)[0],
        "verdict": reliability(draws)[0].verdict,
    }
    return estimates | (divergences(process.target, draws, confidence=CONFIDENCE) if "kl" in process.truth else {})


def _prompted(draws: int, replications: int, seeds: int) -> tuple[dict[str, float], EstimatesByName]:
    """Exact values and estimates for prompts of uniform tokens, with one test sequence and `draws` draws after each."""
    target = _automaton_target()
    base = target.base
    assert isinstance(base, Automaton)
    prompt_of = {int(base.begin(prompts_of([prompt]))[1]): prompt for prompt in ([1, 1], [1], [1, 2], [2])}
    table, share = tabulate(target, prompts_of([prompt_of[state] for state in sorted(prompt_of)])), _state_share(base)
    log_p, lengths = table.log_prob, table.x.lengths.view(table.log_prob.shape)
    surprise, length = -(log_p.exp() * log_p).sum(-1), (log_p.exp() * lengths).sum(-1)
    truth = {"log Z": float(share @ table.log_z), "cross-entropy": float(share @ surprise / (share @ length))}
    estimates: EstimatesByName = {"mean log Z": [], "perplexity": []}
    points = enumerate_points(target.space)
    for seed, number in product(range(seeds), range(replications)):
        rng = SeededRng(seed, "coverage", "prompted", number)
        tokens, end = rng.categorical(torch.zeros(PROMPTS, 3), PROMPT_LENGTH) + 1, torch.full((PROMPTS,), PROMPT_LENGTH)
        prompts = Sequences(tokens, end, end)
        pick = points.rows(rng.categorical(log_p[base.begin(prompts)[1]])[:, 0])
        test = Sequences(torch.cat([prompts.tokens, pick.tokens], 1), prompts.start, prompts.start + pick.stop)
        drawn = Importance()(target, prompts, draws, rng=rng)
        estimates["mean log Z"].append(log_z(drawn, prompts="sample", confidence=CONFIDENCE))
        estimates["perplexity"].append(cross_entropy(target, test, draws=drawn, confidence=CONFIDENCE)["token"])
    return truth, estimates


def _state_share(base: Automaton) -> Tensor:
    """The probability of each state after a prompt of uniform tokens other than the end symbol."""
    share = torch.zeros(len(base.next_state), dtype=torch.float64)
    share[0] = 1.0
    for _ in range(PROMPT_LENGTH):
        share = torch.zeros_like(share).index_add(0, base.next_state[:, 1:].reshape(-1), (share / 3).repeat_interleave(3))
    return share


TRUTH_OF = {"log Z, guaranteed": "log Z", "mean log Z": "log Z", "perplexity": "cross-entropy"}


def coverage_table(process: str, draws: int, truth: dict[str, float], estimates: EstimatesByName) -> list[Row]:
    """A row for each quantity: how often its interval covered the exact value, with the Wilson interval of that rate."""
    from scipy.stats import binomtest

    verdicts, rows = estimates.get("verdict", []), []
    for quantity, values in estimates.items():
        if quantity == "verdict":
            continue
        exact = truth[quantity] if quantity in truth else truth[TRUTH_OF[quantity]]
        intervals = [value for value in values if isinstance(value, Estimate)]
        n, hits = len(intervals), sum(value.covers(exact) for value in intervals)
        wilson = binomtest(hits, n).proportion_ci(CONFIDENCE, method="wilson")
        rows.append(
            {
                "process": process, "quantity": quantity, "draws": draws, "replications": n, "exact": exact,
                "coverage": hits / n, "low": float(wilson.low), "high": float(wilson.high),
                "width": sum(value.high - value.low for value in intervals) / n,
                "warned": sum(word != "good" for word in verdicts) / len(verdicts) if verdicts else None,
            }
        )  # fmt: skip
    return rows
