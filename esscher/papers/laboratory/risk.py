"""Do the intervals of `esscher risk` cover? Automata with exact probabilities near 1e-3, 1e-6 and 1e-9, many replications each.

    motif      two states, varying lengths: the text contains a motif; the score is the longest beginning of it so far
    count      two states, 40 tokens: one token comes at least so often; the score is how often it came
    prompts    three states after six prompts, varying lengths: the mean over the prompts that a token comes at least so often

A replication is a whole call with its own direct draws, rounds of a twist, and weighted draws or runs. Rows are kept in
batches, so that an interrupted study goes on. Beside the calls that know an automaton of the event, others know its score
alone, and split (`SCORE_ALONE` replications each).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of
from esscher.estimators.rare_events import direct_probability
from esscher.exact import acceptors
from esscher.exact.acceptors import Acceptor
from esscher.exact.automaton import Automaton, intersect, path_states
from esscher.exact.dynamic_programming import log_partition
from esscher.papers.laboratory.coverage import single_thread
from esscher.papers.study import Row, StudyContext
from esscher.reports.document import Section, Table
from esscher.workflow.risk import Risk, estimate_risk

TRUTHS = (1e-3, 1e-6, 1e-9)
BUDGET = {1e-3: 20_000, 1e-6: 20_000, 1e-9: 40_000}  # sequences' worth of tokens
REPLICATIONS = {"smoke": 5, "small": 400, "paper": 1000}
SCORE_ALONE = {"smoke": 5, "small": 100, "paper": 1000}
BATCH = 5  # replications of a row
MOTIF = [3, 1, 3, 3, 2] * 10
PROMPTS = [[1], [2], [3], [1, 2], [3, 3], [2, 3, 1]]
AUTOMATON, SCORE = "an automaton of the event", "a score alone"
PAPER = [{"quantity": "coverage", "value": 0.95, "note": "the stated rate; no published study of this kind gives one"}]


@dataclass(frozen=True)
class Process:
    """A base, an acceptor of texts with the event, whose states count the way to it, prompts, and the exact probability."""

    name: str
    base: Automaton
    acceptor: Acceptor
    prompts: Sequences
    truth: float

    @property
    def threshold(self) -> float:
        return float(len(self.acceptor.next_state) - 1)

    def scores(self, x: Sequences) -> Tensor:
        """The highest state of the acceptor after each token."""
        point = Sequences(x.tokens, x.start, x.stop)
        states = path_states(point, torch.zeros_like(x.start), self.acceptor.next_state)[:, 1:].cummax(1).values.double()
        width = int(x.lengths.max())
        column = (x.start[:, None] + torch.arange(width)).clamp(max=states.shape[1] - 1)
        return states.gather(1, column)

    def estimate(self, draws: int, seed: int, acceptor: Acceptor | None) -> Risk:
        """One replication."""
        rng = SeededRng(seed, "risk", self.name, str(self.threshold))
        return estimate_risk(
            self.base,
            self.prompts,
            self.scores,
            self.threshold,
            draws=draws,
            acceptor=acceptor,
            rng=rng,
            runs_at_once=2**10,
        )


def counting(token: int, times: int, vocab_size: int) -> Acceptor:
    """The strings in which a token comes at least so often."""
    next_state = torch.arange(times + 1)[:, None].repeat(1, vocab_size)
    next_state[:, token] = (torch.arange(times + 1) + 1).clamp(max=times)
    return Acceptor(next_state, torch.arange(times + 1) == times)


def exact_probability(base: Automaton, acceptor: Acceptor, prompts: Sequences) -> float:
    """The mean over the prompts of the probability that a point is accepted; prompts are not read by the acceptor."""
    weights = acceptor.to_weighted_automaton(base.space)
    stay = torch.arange(len(acceptor.next_state))[:, None].expand_as(acceptor.next_state)
    return float(log_partition(intersect(base, replace(weights, prompt_next_state=stay)), prompts).exp().mean())


def _automaton(emission: list[list[float]], next_state: list[list[int]], space: Space) -> Automaton:
    return Automaton(torch.tensor(emission, dtype=torch.float64).log(), torch.tensor(next_state), space)


def motif(size: int) -> Process:
    """A motif of so many tokens in a text of at most 60 that ends with probability 0.02."""
    base = _automaton([[0.02, 0.38, 0.3, 0.3], [0.02, 0.28, 0.25, 0.45]], [[0, 0, 1, 1], [0, 0, 0, 1]], Space(4, 60, eos=0))
    acceptor = acceptors.contains(MOTIF[:size], 4)
    return Process("motif", base, acceptor, empty_prompts(1), exact_probability(base, acceptor, empty_prompts(1)))


def count(times: int) -> Process:
    """Token 1 at least so often among 40 tokens of two states."""
    base = _automaton([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]], [[0, 1, 0], [0, 1, 1]], Space(3, 40))
    acceptor = counting(1, times, 3)
    return Process("count", base, acceptor, empty_prompts(1), exact_probability(base, acceptor, empty_prompts(1)))


def after_prompts(times: int) -> Process:
    """Token 3 at least so often after six prompts, in texts of at most 50 tokens that end at different rates."""
    emission = [[0.05, 0.5, 0.3, 0.15], [0.02, 0.38, 0.4, 0.2], [0.03, 0.27, 0.3, 0.4]]
    base = _automaton(emission, [[0, 0, 1, 2], [0, 0, 1, 1], [0, 1, 0, 2]], Space(4, 50, eos=0))
    acceptor, prompts = counting(3, times, 4), prompts_of(PROMPTS)
    return Process("prompts", base, acceptor, prompts, exact_probability(base, acceptor, prompts))


def nearest(make: Callable[[int], Process], probability: float) -> Process:
    """The process whose exact probability is nearest to the one wanted, on a logarithmic scale."""
    before = make(3)
    for size in range(4, 50):
        after = make(size)
        if after.truth < probability:
            return min(before, after, key=lambda process: abs(math.log(process.truth / probability)))
        before = after
    raise ValueError(f"No {before.name} of up to 49 is as rare as {probability:g}. Nothing was drawn; change its base.")


def replicate(process: Process, draws: int, first: int, method: str) -> list[Row]:
    """Some replications as rows."""
    rows = []
    for seed in range(first, first + BATCH):
        result = process.estimate(draws, seed, process.acceptor if method == AUTOMATON else None)
        rows.append({
            "truth": process.truth, "probability": result.probability, "verdict": result.verdict, "reason": result.event.advice,
            "sequences": result.sequences, "levels": len(result.levels), "direct_draws": result.direct_draws,
        })  # fmt: skip
    return rows


def misses_by(row: Row) -> float:
    """The distance of the truth from the middle of the interval, in half widths, on a logarithmic scale; 0 for an upper bound
    that holds."""
    estimate, truth = row["probability"], row["truth"]
    if estimate.low <= 0:
        return 0.0 if truth <= estimate.high else math.inf
    low, high = math.log(estimate.low), math.log(estimate.high)
    return abs(math.log(truth) - (low + high) / 2) / max(1e-12, (high - low) / 2)


def _replicate_in(process: Process, draws: int, first: int, method: str, folder: Path) -> list[Row]:
    return replicate(process, draws, first, method)


def summarise(process: Process, method: str, draws: int, rows: list[Row]) -> Row:
    """Coverage with its own interval, what the verdicts said, widths and costs."""
    covered = [row["probability"].covers(row["truth"]) for row in rows]
    far = [row for row in rows if misses_by(row) > 2]
    widths = sorted(row["probability"].high / max(row["probability"].low, 1e-300) for row in rows)
    verdicts = [row["verdict"] for row in rows]
    return {
        "process": process.name, "knows": method, "truth": process.truth, "replications": len(rows),
        "coverage": direct_probability(sum(covered), len(rows)).probability,
        "mean_over_truth": sum(row["probability"].value for row in rows) / len(rows) / process.truth,
        "high_over_low": widths[len(widths) // 2], "good": verdicts.count("good"), "doubtful": verdicts.count("doubtful"),
        "unreliable": verdicts.count("unreliable"), "far_misses": len(far),
        "far_misses_unwarned": sum(row["verdict"] == "good" for row in far), "budget": draws,
        "most_sequences": max(row["sequences"] for row in rows),
        "direct_draws": sorted(row["direct_draws"] for row in rows)[len(rows) // 2],
    }  # fmt: skip


def run(context: StudyContext) -> dict[str, Any]:
    """The rate at which the intervals covered, by process and probability."""
    table: list[Row] = []
    with single_thread():
        for method, study, replications in ((AUTOMATON, "twist", REPLICATIONS), (SCORE, "risk", SCORE_ALONE)):
            for truth, make in product((1e-6, 1e-3, 1e-9), (motif, count, after_prompts)):
                process, rows = nearest(make, truth), list[Row]()
                for first in range(0, replications[context.scale], BATCH):
                    make_rows = partial(_replicate_in, process, BUDGET[truth], first, method)
                    rows += context.row(study, f"{process.name}-{truth:g}-{first:04d}", 0, make_rows)
                table.append(summarise(process, method, BUDGET[truth], rows))
    about = "Intervals of `esscher risk` at 95 % on automata with exact probabilities."
    sections = [Section("Coverage", "Each replication has its own draws, rounds and runs.", [Table("Coverage", table)])]
    return context.publish("Rare events", about, sections, {"rows": table, "paper": PAPER})
