"""What independence costs (thesis, 4.2.6, "New York"): small networks learn strings of a known process as a permutation LM and
by denoising, and the divergence of their distribution of a span, given the rest of the string, is exact over all strings.

    KL = E[log p(span | rest) - log q(span | rest)]          over all strings and all places of the span

For denoising, whose q is a product, KL = E[sum of H(x_t | rest) - H(span | rest)] + E[sum of KL(p(x_t | rest) || q(x_t |
rest))]: a part that no training removes, known from the process (`independence`), and what was not learnt. Both objectives
predict as many tokens of the same strings in as many updates, as many of each string as the span has. `filled` is the KL of
the denoising network where it fills one blank after the other. Letters: K strings of length T over V symbols, in lexicographic
order.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.bases.hidden_markov import HiddenMarkov
from esscher.bases.network import NetworkBase, build_base
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space
from esscher.core.storage import write_file
from esscher.core.target import Tilted
from esscher.exact.enumeration import enumerate_points
from esscher.networks.transformer_config import XLNetConfig
from esscher.objectives.config import MaskedLMConfig, PermutationLMConfig
from esscher.objectives.permutation_lm import MaskedLM, PermutationLM
from esscher.papers.study import ROW_FILE, Row, Rows, StudyContext, means_over_seeds, table_rows, verdict_of
from esscher.papers.xlnet.span_scores import DENOISING, PERMUTED, SpanScore, filled_spans, independent_spans, permuted_spans
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import BASE, TILTED, TRUTH, estimate_bars, figure_from_file, save_figure
from esscher.training.config import TrainingConfig
from esscher.training.trainer import Trainer

FILLED, FLOOR = "denoising, filled", "independence"
PHRASES = {(0,): 0.3, (1, 2): 0.25, (3, 4): 0.25, (1, 4, 3): 0.2}  # probability of each phrase after any other
STAY, EMISSION = 0.2, 0.85  # a cycle of as many hidden states as symbols: the probability to stay, and of the symbol of a state
ROWS_AT_ONCE, PICTURE = 4_096, "xlnet_spans.png"
COLOURS = {PERMUTED: TRUTH, DENOISING: TILTED, FILLED: "#d9a441", FLOOR: BASE}


@dataclass(frozen=True, kw_only=True)
class SpanScale:
    """The settings that differ between scales."""

    length: int
    strings: int
    steps: int
    spans: tuple[int, ...]
    network: XLNetConfig
    batch_size: int = 64


SCALES = {
    "smoke": SpanScale(
        length=4, strings=64, steps=3, spans=(2,), network=XLNetConfig(width=8, layers=1, heads=2, feedforward=16, memory=0)
    ),
    "small": SpanScale(
        length=6, strings=10_000, steps=800, spans=(2, 3, 4), batch_size=32,
        network=XLNetConfig(width=32, layers=2, heads=4, feedforward=64, memory=0),
    ),
    "paper": SpanScale(
        length=8, strings=200_000, steps=20_000, spans=(2, 3, 4),
        network=XLNetConfig(width=128, layers=4, heads=4, feedforward=256, memory=0),
    ),
}  # fmt: skip
PAPER = table_rows(
    ("claim of the thesis", "its evidence"),
    ("permutation captures the dependency of tokens that are predicted together (New, York)", "an example, 4.2.6"),
    ("it learns more from the same text than denoising", "the ablation of Table 4.6: RACE 65.0 to 66.7, SQuAD F1 79.6 to 81.0"),
)


def phrase_process(length: int) -> HiddenMarkov:
    """Phrases, one after the other; a hidden state is a place in a phrase, and strings begin and end anywhere in it."""
    places = [(phrase, place) for phrase in PHRASES for place in range(len(phrase))]
    space = Space(1 + max(max(phrase) for phrase in PHRASES), length)
    transition = torch.zeros(len(places), len(places), dtype=torch.float64)
    emission = torch.zeros(len(places), space.vocab_size, dtype=torch.float64)
    initial = torch.tensor([PHRASES[phrase] for phrase, _ in places], dtype=torch.float64)
    for row, (phrase, place) in enumerate(places):
        emission[row, phrase[place]] = 1
        for column, (other, first) in enumerate(places):
            if place + 1 < len(phrase):
                transition[row, column] = (other, first) == (phrase, place + 1)
            elif first == 0:
                transition[row, column] = PHRASES[other]
    return HiddenMarkov((initial / initial.sum()).log(), transition.log(), emission.log(), space)


def cycle_process(length: int) -> HiddenMarkov:
    """A cycle of four hidden states, each of which emits its own symbol most of the time."""
    states = 4
    same = torch.eye(states, dtype=torch.float64)
    emission = EMISSION * same + (1 - EMISSION) / (states - 1) * (1 - same)
    transition = STAY * same + (1 - STAY) * same.roll(1, 1)
    initial = torch.full((states,), 1 / states, dtype=torch.float64)
    return HiddenMarkov(initial.log(), transition.log(), emission.log(), Space(states, length))


PROCESSES: Mapping[str, Callable[[int], HiddenMarkov]] = {"phrases": phrase_process, "hidden cycle": cycle_process}


@dataclass(frozen=True)
class Truth:
    """All strings of a process that have a probability above 0, and their probabilities."""

    tokens: Int[Tensor, "K T"]
    prob: Float[Tensor, "K"]
    space: Space

    def conditional(self, hidden: list[int], shown: list[int]) -> Float[Tensor, "K"]:
        """log p(tokens at `shown` | all tokens but those at `hidden`), for each string; `hidden` has all of `shown`."""
        place = self.space.vocab_size ** torch.arange(self.tokens.shape[1])
        place[hidden] = 0
        given = self._mass(place)
        place[shown] = self.space.vocab_size ** torch.tensor(shown)
        return (self._mass(place) / given).log()

    def _mass(self, place: Int[Tensor, "T"]) -> Float[Tensor, "K"]:
        """The mass of all strings that agree with each one wherever `place` is not 0."""
        group = torch.unique((self.tokens * place).sum(1), return_inverse=True)[1]
        return torch.zeros(int(group.max()) + 1, dtype=self.prob.dtype).index_add(0, group, self.prob)[group]

    def mean(self, value: Float[Tensor, "K"]) -> float:
        return float((self.prob * value).sum())


@cache
def truth_of(process: str, length: int) -> Truth:
    """The truth of a process over strings of one length."""
    model = PROCESSES[process](length)
    points = enumerate_points(model.space)
    prob = model.log_probs(points).sum(1).exp()
    return Truth(points.tokens[prob > 0], prob[prob > 0], model.space)


def independence(truth: Truth, size: int) -> tuple[float, float]:
    """H(span | rest), and sum of H(x_t | rest) minus it: the least KL of a product; means over all places of the span."""
    entropies, floors = [], []
    for hidden in span_places(truth, size):
        joint = truth.conditional(hidden, hidden)
        single = torch.stack([truth.conditional(hidden, [position]) for position in hidden]).sum(0)
        entropies.append(-truth.mean(joint))
        floors.append(truth.mean(joint - single))
    return sum(entropies) / len(entropies), sum(floors) / len(floors)


@torch.no_grad()
def span_divergence(base: NetworkBase, truth: Truth, size: int, score: SpanScore) -> float:
    """E[log p(span | rest) - log q(span | rest)], over all strings and places of the span."""
    values, was_training = [], base.training
    base.eval()
    for hidden in span_places(truth, size):
        span = torch.tensor(hidden)
        parts = [score(base, rows, span.expand(len(rows), -1)) for rows in torch.split(truth.tokens, ROWS_AT_ONCE)]
        values.append(truth.mean(truth.conditional(hidden, hidden) - torch.cat(parts)))
    base.train(was_training)
    return sum(values) / len(values)


def span_places(truth: Truth, size: int) -> list[list[int]]:
    """The positions of each span of a size."""
    return [list(range(first, first + size)) for first in range(truth.tokens.shape[1] - size + 1)]


def make_row(context: StudyContext, process: str, model: str, size: int, seed: int) -> Row:
    """The divergence of one network, unless its row exists."""

    def make(run_dir: Path) -> Row:
        scale = SCALES[context.scale]
        truth = truth_of(process, scale.length)
        base = _train(scale, truth, model, size, process=process, seed=seed, folder=run_dir)
        entropy, floor = independence(truth, size)
        row = {"process": process, "model": model, "span": size, "seed": seed, "entropy": entropy, "independence": floor}
        if model == PERMUTED:
            return {**row, "KL": span_divergence(base, truth, size, permuted_spans)}
        scores = {"KL": independent_spans, "filled": filled_spans}
        return {**row, **{name: span_divergence(base, truth, size, score) for name, score in scores.items()}}

    row: Row = context.row(process, run_name(model, size), seed, make)
    return row


def _train(scale: SpanScale, truth: Truth, model: str, size: int, *, process: str, seed: int, folder: Path) -> NetworkBase:
    """A network after its updates on the strings of a seed, with as many targets in each string as the span has."""
    chosen = SeededRng(seed, "strings", process).categorical(truth.prob.log()[None], scale.strings)[0]
    count, length = scale.strings, scale.length
    data = Sequences(truth.tokens[chosen], torch.zeros(count, dtype=torch.long), torch.full((count,), length))
    base = build_base(scale.network, truth.space, rng=SeededRng(seed, "network"))
    objective: PermutationLM | MaskedLM = MaskedLM(MaskedLMConfig(size / length))
    if model == PERMUTED:
        objective = PermutationLM(PermutationLMConfig(length / size, "none"))
    training = TrainingConfig(
        steps=scale.steps, batch_size=scale.batch_size, learning_rate=1e-2, warmup_steps=scale.steps // 15, schedule="linear",
        save_every=500, log_every=100, seed=seed,
    )  # fmt: skip
    Trainer(training)(objective, Tilted(base), data, modules=base, folder=folder, resume=True)
    return base


def run(context: StudyContext) -> dict[str, Any]:
    """All processes, seeds and spans by both objectives."""
    for name in row_names(context):
        make_row(context, *name)
    rows, effects = summarise(context)
    picture = Picture(figure_from_file(context.out / PICTURE), FIGURE)
    section = Section("Spans", ABOUT, [picture, Table("Effects", effects), Table("Rows", rows)])
    about = "Two objectives for one network, and the exact divergence of their distribution of a span given the rest."
    return context.publish("What independence costs", about, [section], {"rows": rows, "effects": effects, "paper": PAPER})


def row_names(context: StudyContext) -> list[tuple[str, str, int, int]]:
    """Process, objective, size of the span and seed of the rows, in the order in which they are made."""
    spans = SCALES[context.scale].spans
    order = product(PROCESSES, spans, range(context.seeds), (PERMUTED, DENOISING))
    return [(process, model, size, seed) for process, size, seed, model in order]


def summarise(context: StudyContext) -> tuple[list[Row], list[Row]]:
    """The rows that have been made, and their effects, also as `spans.json` and a picture."""
    names = row_names(context)
    made = [name for name in names if (context.run_dir(name[0], run_name(*name[1:3]), name[3]) / ROW_FILE).exists()]
    rows = [make_row(context, *name) for name in made]
    effects = compare(rows)
    groups = [f"{row['process']}, {row['span']}" for row in effects]
    bars = {name: [row[name] for row in effects] for name in (PERMUTED, DENOISING, FILLED, FLOOR)}
    save_figure(estimate_bars(groups, bars, label="KL, nats", colours=COLOURS), context.out / PICTURE)
    content = {"missing": len(names) - len(made), "rows": rows, "effects": effects}
    write_file(context.out / "spans.json", json.dumps(content, indent=1, default=Estimate.to_dict).encode())
    return rows, effects


def run_name(model: str, size: int) -> str:
    """The name of the run folder of an objective."""
    return f"{model}, span {size}"


ABOUT = "KL in nats a span; `saved` is the KL of denoising minus that of the permutation LM, seed by seed."
FIGURE = "KL of the distribution of a span of so many tokens from the truth; `independence` is the least of any product."


def compare(rows: Rows) -> list[Row]:
    """What permutation saves of the KL of denoising in each process and span, with an interval over seeds, and the verdict."""
    groups: dict[tuple[str, int], dict[tuple[str, int], Any]] = {}
    for row in rows:
        groups.setdefault((row["process"], row["span"]), {})[row["model"], row["seed"]] = row
    effects = []
    for (process, size), group in groups.items():
        seeds = [seed for model, seed in group if model == PERMUTED and (DENOISING, seed) in group]
        pairs = [(group[PERMUTED, seed], group[DENOISING, seed]) for seed in seeds]
        columns = {
            PERMUTED: [ours["KL"] for ours, _ in pairs],
            DENOISING: [theirs["KL"] for _, theirs in pairs],
            FILLED: [theirs["filled"] for _, theirs in pairs],
            "saved": [theirs["KL"] - ours["KL"] for ours, theirs in pairs],
            "filled minus permutation LM": [theirs["filled"] - ours["KL"] for ours, theirs in pairs],
        }
        about = {"process": process, "span": size, "seeds": len(seeds)}
        about |= {name: Estimate.exact(pairs[0][0][name], unit="nats") for name in ("entropy", FLOOR)}
        means = {name: over_seeds(values) for name, values in columns.items()}
        effects.append({**about, **means, "verdict": verdict_of(means["saved"])})
    return effects


def over_seeds(values: list[float]) -> Estimate:
    """The mean with Student's interval over seeds; with one seed its interval is unbounded."""
    if len(values) == 1:
        return Estimate(values[0], -math.inf, math.inf, 0.95, 1, "one seed", "nats", "seeds")
    mean: Estimate = means_over_seeds([{"": 0, "value": Estimate.exact(value, unit="nats")} for value in values], ("",))[0][
        "value"
    ]
    return mean
