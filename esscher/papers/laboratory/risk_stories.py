"""Rare events of a pretrained model, stories260K with 128 tokens: `esscher risk` beside direct draws and a ladder of tilts with
multistate reweighting, at equal tokens.

    cat       texts that start with a phrase, near 1e-4
    boy       texts that start with another, near 1e-6
    wizard    texts that contain a word, anywhere, near 1e-4
    dogs      texts with many dogs, near 1e-4: what makes one likely is what came before

The truth of the first two is exact: all ways to write the phrase in tokens are enumerated, and what is left out is bounded.
That of the others is the share among direct draws, with its interval.

The baseline has the parts of transition paths with MBAR (arXiv 2602.06791), not its code or settings: densities
a(x) exp(lambda s(x)) of a score s, moves that draw a suffix again, and multistate reweighting. Instead of one long chain a
density, particles are annealed through them (`esscher.samplers.ladder`); the largest lambda is chosen with the true
probability, which favours the baseline.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, empty_prompts, sequences
from esscher.core.target import Tilted
from esscher.energies.events import Event, make_event
from esscher.estimators.mbar import ladder_mbar
from esscher.estimators.rare_events import direct_probability
from esscher.papers.laboratory.coverage import single_thread
from esscher.papers.sources import DATA, missing_message
from esscher.papers.study import Row, StudyContext
from esscher.reports.document import Section, Table
from esscher.samplers.ancestral import draw
from esscher.samplers.ladder import Ladder
from esscher.workflow.model import Model, load
from esscher.workflow.risk import estimate_risk

FOLDER, LENGTH = DATA / "stories260K", 128
START = "Once upon a time, there was a "
EVENTS = {
    "cat": f"starts-with:{START}cat named Lily",
    "boy": f"starts-with:{START}boy who loved to play with his dog",
    "wizard": "contains: wizard",
    "dogs": "count:dog>=8",
}
EXACT = ("cat", "boy")
BUDGET = {"smoke": 400, "small": 4000, "paper": 20_000}  # sequences' worth of tokens
REPLICATIONS = {"smoke": 1, "small": 6, "paper": 40}
BASELINES = {"smoke": 1, "small": 3, "paper": 40}  # replications of the ladder
TRUTH_DRAWS = {"smoke": 400, "small": 120_000, "paper": 10**6}
TRUTH_BATCH = 20_000
LEAST = 1e-12  # probability of a beginning below which it is left out
RUNGS, MOVES, CHAINS = 11, 2, 4  # of the baseline
STEEPNESS = 1.5  # the largest lambda lifts the event by 1 / probability to this power
PAPER = [{"quantity": "relative error", "note": "no published table is compared"}]


@dataclass(frozen=True)
class Text:
    """The model and the strings of its tokens."""

    model: Model
    pieces: list[str]

    @classmethod
    def load(cls) -> "Text":
        model = load(FOLDER, max_length=LENGTH)
        decode = model.decode()
        assert decode is not None
        (first,) = model.data.encode_prompts(["a"])
        tokens = range(model.base.space.vocab_size)
        both, alone = decode([[*first, token] for token in tokens]), decode([first])[0]
        pieces = ["" if model.base.space.eos == token else text[len(alone) :] for token, text in zip(tokens, both, strict=True)]
        return cls(model, pieces)

    def event(self, name: str) -> Event:
        return make_event(EVENTS[name], self.model.decode(), LENGTH)


@torch.no_grad()
def start_probability(logits_of: Callable[[Sequences], Tensor], pieces: Sequence[str], phrase: str) -> tuple[float, float]:
    """The probability that a text starts with the phrase, over all ways to write it in tokens, and what was left out at most.
    The decoder drops one space at the start."""
    total, left_out = 0.0, 0.0
    paths = [(list[int](), 1.0, " " + phrase), (list[int](), 1.0, phrase)]
    while paths:
        new = []
        points = [[*path, 0] for path, _, _ in paths]
        logits = logits_of(sequences(points))[:, len(points[0]) - 1]
        for (path, weight, rest), row in zip(paths, logits.double().softmax(-1).tolist(), strict=True):
            for token, piece in enumerate(pieces):
                if piece and piece.startswith(rest):
                    total += weight * row[token]
                elif piece and rest.startswith(piece):
                    new.append(([*path, token], weight * row[token], rest[len(piece) :]))
        left_out += sum(weight for _, weight, _ in new if weight < LEAST)
        paths = [path for path in new if path[1] >= LEAST]
    return total, left_out


def by_risk(text: Text, name: str, draws: int, seed: int, folder: Path) -> list[Row]:
    """One call of `esscher risk`."""
    event, base, rng = text.event(name), text.model.base, SeededRng(seed, "stories", name)
    risk = estimate_risk(
        base, empty_prompts(1), event.scores, event.threshold, draws=draws, acceptor=event.acceptor(base.space), rng=rng,
        runs_at_once=12,
    )  # fmt: skip
    return [{
        "value": risk.probability.value, "probability": risk.probability, "verdict": risk.verdict, "reason": risk.event.advice,
        "tokens": risk.tokens, "sequences": risk.sequences, "levels": len(risk.levels), "led_by": risk.twist,
    }]  # fmt: skip


def by_mbar(text: Text, name: str, draws: int, truth: float, seed: int, folder: Path) -> list[Row]:
    """The baseline: rungs evenly spaced in lambda, pooled for the base."""
    event, base, rng = text.event(name), text.model.base, SeededRng(seed, "mbar", name)

    def whole(x: Sequences) -> Tensor:
        return event.score(x).double()

    first, _ = draw(base, empty_prompts(1), 64, rng=rng.stream("first"))
    largest = STEEPNESS * math.log(1 / truth) / (event.threshold - float(whole(first).mean()))
    rungs = torch.zeros(RUNGS, 5, dtype=torch.float64)
    rungs[:, 0] = torch.linspace(0, 1, RUNGS)
    particles = max(2, round((draws - 64) / (CHAINS * (1 + (RUNGS - 1) * MOVES))))
    ladder = Ladder(particles, moves=MOVES)
    target = Tilted(base, lambda x: -largest * whole(x))
    runs = ladder.run(target, empty_prompts(1), CHAINS, rng=rng.stream("runs"), rungs=rungs)
    hits = torch.cat([whole(x) for x in runs.x]) >= event.threshold
    tokens = runs.tokens + int(first.lengths.sum())
    acceptance = float(runs.acceptance[1:].mean())
    value = ladder_mbar(runs).expect(hits.double(), state=0)
    return [{"value": value, "tokens": tokens, "sequences": tokens / LENGTH, "hits": int(hits.sum()), "acceptance": acceptance}]


def truth_row(context: StudyContext, text: Text, name: str) -> Row:
    """The true probability, exact or as direct draws show it."""
    row: Row = {"event": name, "what": EVENTS[name]}
    if name in EXACT:
        phrase = EVENTS[name].partition(":")[2]
        total, left_out = context.row(
            "truth", name, 0, lambda folder: start_probability(text.model.base.logits, text.pieces, phrase)
        )
        return {**row, "truth": total, "left_out_at_most": left_out, "direct": None}
    wanted = TRUTH_DRAWS[context.scale]
    batches = [min(TRUTH_BATCH, wanted - first) for first in range(0, wanted, TRUTH_BATCH)]
    hits = sum(
        context.row("truth", f"direct-{size}", number, partial(_direct_hits, text, size, number))[name]
        for number, size in enumerate(batches)
    )
    direct = direct_probability(hits, wanted).probability
    return {**row, "truth": direct.value, "left_out_at_most": None, "direct": direct}


def _direct_hits(text: Text, draws: int, number: int, folder: Path) -> dict[str, int]:
    """How many draws of the base show each event whose probability is not known exactly."""
    x, _ = draw(text.model.base, empty_prompts(1), draws, rng=SeededRng(number, "stories", "direct"))
    events = {name: text.event(name) for name in EVENTS if name not in EXACT}
    return {name: int((event.score(x) >= event.threshold).sum()) for name, event in events.items()}


def summarise(name: str, method: str, truth: float, rows: Sequence[Row], direct_truth: Estimate | None = None) -> Row:
    """The relative error over replications, beside that of direct draws with as many tokens; and how many intervals hold the
    truth, or, where direct draws are all that is known of it, have something in common with theirs."""
    gaps = [row["value"] / max(truth, 1e-300) - 1 for row in rows]
    error, spent = math.sqrt(sum(gap**2 for gap in gaps) / len(gaps)), sum(row["sequences"] for row in rows) / len(rows)
    direct = math.sqrt((1 - truth) / (max(truth, 1e-300) * spent))
    row: Row = {
        "event": name, "truth": truth, "method": method, "replications": len(rows), "sequences": spent,
        "estimates": ", ".join(f"{row['value']:.3g}" for row in rows), "relative_error": error, "direct_error": direct,
        "ratio": error / direct,
    }  # fmt: skip
    if method == "risk":
        low, high = (truth, truth) if direct_truth is None else (direct_truth.low, direct_truth.high)
        row |= {
            "covered": sum(row["probability"].low <= high and low <= row["probability"].high for row in rows),
            "verdicts": ", ".join(row["verdict"] for row in rows),
        }
    return row


def run(context: StudyContext) -> dict[str, Any]:
    """Relative errors by event and method."""
    about = "Rare events of stories260K with 128 tokens, at equal tokens."
    if not FOLDER.is_dir():
        empty: dict[str, list[Row]] = {"rows": [], "truth": [], "paper": PAPER}
        return context.publish("Rare events of a story model", about, [], empty, [missing_message(FOLDER)])
    draws = BUDGET[context.scale]
    with single_thread():
        text = Text.load()
        truths = {name: truth_row(context, text, name) for name in EVENTS}
        rows: dict[tuple[str, str], list[Row]] = {(name, method): [] for name in EVENTS for method in ("risk", "MBAR")}
        for seed, name in product(range(REPLICATIONS[context.scale]), EVENTS):
            make = partial(by_risk, text, name, draws, seed)
            rows[name, "risk"] += context.row("twist", f"{name}-{draws}", seed, make)
        for seed, name in product(range(BASELINES[context.scale]), EVENTS):
            make = partial(by_mbar, text, name, draws, max(truths[name]["truth"], 1e-6), seed)
            rows[name, "MBAR"] += context.row("mbar", f"{name}-{draws}", seed, make)
    table = [
        summarise(name, method, truths[name]["truth"], some, truths[name]["direct"]) for (name, method), some in rows.items()
    ]
    truth_table = [truths[name] for name in EVENTS]
    sections = [
        Section("Truth", "Over all ways to write a phrase in tokens, or among direct draws.", [Table("Truth", truth_table)]),
        Section("Errors", "Root mean square of the relative error over replications.", [Table("Errors", table)]),
    ]
    tables = {"rows": table, "truth": truth_table, "paper": PAPER}
    return context.publish("Rare events of a story model", about, sections, tables)
