"""E-Forcing where the truth is known: does it generalise better than likelihood, and at which number of strings?

Binary strings are drawn from a motif process and from a hidden Markov model. An LSTM and a Transformer learn from 50 to 2,000
of them by every objective of `tree_training`, and the divergences from the truth are computed exactly over all strings
(`prefix_tree`): the only randomness left is that of the strings, of the initial weights, and of the objective. A seed has
the same strings and initial weights for all objectives, so effects are differences within a seed.

Settings are chosen by the loss on validation strings alone, with other strings and initial weights than those that are
compared, and are kept before any divergence is computed: first the learning rate of likelihood, which all objectives get, then
the strength of each objective and its beginning, at once or after half the updates that likelihood takes to its lowest
validation loss. Left out: the decay of E-Forcing's weights, which is fixed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences
from esscher.core.storage import write_file
from esscher.exact.languages import motif_process
from esscher.papers.eforcing.laboratory_tables import averages, chosen, count_verdicts, effects, panels
from esscher.papers.eforcing.prefix_tree import NETWORKS, divergences
from esscher.papers.eforcing.tree_training import LIKELIHOOD, METHODS, Method, Setting, Trained, TrainingPlan, TreeData, train
from esscher.papers.laboratory.coverage import single_thread
from esscher.papers.study import ROW_FILE, Row, Rows, StudyContext, cached_json, table_rows
from esscher.reports.document import Picture, Section, Table

SYMBOLS = 2
MOTIF, MIXTURE = "10110", 0.9
STAY, EMISSION = 0.3, (0.9, 0.9, 0.1, 0.1)  # a cycle of hidden states: the probability to stay, and of a 1 in each
PROCESSES = ("motif", "hidden Markov")
STRENGTHS = {
    "likelihood": (0.0,),
    "label smoothing": (0.01, 0.03, 0.1, 0.2),
    "scheduled sampling": (0.05, 0.1, 0.25, 0.5),
    "E-Forcing": (0.03, 0.1, 0.3, 1.0),
}
LEARNING_RATES = (0.003, 0.01, 0.03)
SELECTION = 1000  # the first seed of those that settings are chosen with
MOST_DRAWS = 128  # negatives of an update: as many as there are strings, up to the published batch (4,096 tokens at 32 each)
PAPER = table_rows(
    ("claim of the paper", "its evidence"),
    (
        "improves autoregressive models",
        "perplexity of WikiText-103 30.56 to 29.94 (Transformer), 24.20 to 23.90 (Transformer-XL)",
    ),
    ("prevents overfitting", "the test loss of translation does not rise late in training (figure 1)"),
    ("alleviates exposure bias", "true words are likelier after own words than by the baseline in more than 50 % (table 4)"),
)


@dataclass(frozen=True, kw_only=True)
class LaboratoryScale:
    """The settings that differ between scales; `sizes` are numbers of strings, the first ones made with all seeds first."""

    length: int
    width: int
    sizes: tuple[int, ...]
    first_sizes: int
    seeds: int
    block: int  # seeds that are trained side by side
    selection_seeds: int
    updates: int
    patience: int
    validation: int  # strings


SCALES = {
    "smoke": LaboratoryScale(
        length=6, width=4, sizes=(20,), first_sizes=1, seeds=2, block=2, selection_seeds=1, updates=6, patience=3,
        validation=50,
    ),
    "small": LaboratoryScale(
        length=10, width=16, sizes=(50, 200, 2000, 100, 500), first_sizes=3, seeds=10, block=5, selection_seeds=2, updates=400,
        patience=60, validation=500,
    ),
    "paper": LaboratoryScale(
        length=12, width=32, sizes=(50, 200, 2000, 100, 500, 1000), first_sizes=3, seeds=10, block=5, selection_seeds=4,
        updates=1000, patience=100, validation=500,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Condition:
    """A process, a network and a number of strings at a scale."""

    network: str
    process: str
    size: int
    scale: LaboratoryScale

    @property
    def study(self) -> str:
        return f"{self.process}, {self.network}"

    def plan(self, learning_rate: float) -> TrainingPlan:
        return TrainingPlan(learning_rate, self.scale.updates, self.scale.patience, min(self.size, MOST_DRAWS))

    def train(self, method: Method, runs: Sequence[tuple[int, Setting]], learning_rate: float) -> Trained:
        """One network for each seed and setting, all at once."""
        seeds, scale = [seed for seed, _ in runs], self.scale
        strings = torch.stack([draw_strings(self.process, scale, seed) for seed in seeds])
        data = TreeData(
            strings[:, scale.validation : scale.validation + self.size], strings[:, : scale.validation], SYMBOLS, scale.length
        )
        network = NETWORKS[self.network](SYMBOLS, scale.length, scale.width, seeds)
        rng = SeededRng(seeds[0], "training", self.study, self.size, str(method))
        return train(network, data, method, [setting for _, setting in runs], self.plan(learning_rate), rng=rng)


@cache
def truth_of(process: str, length: int) -> Float[Tensor, "K"]:
    """The probability of every string of a process, in lexicographic order."""
    count = SYMBOLS**length
    tokens = torch.arange(count)[:, None] // SYMBOLS ** torch.arange(length - 1, -1, -1) % SYMBOLS
    if process == "motif":
        ended = torch.nn.functional.pad(tokens, (0, 1), value=SYMBOLS)
        x = Sequences(ended, torch.zeros(count, dtype=torch.long), torch.full((count,), length + 1))
        return motif_process(MOTIF, length, mixture=MIXTURE).base.log_probs(x).sum(-1).exp()
    states = len(EMISSION)
    one, forward = torch.tensor(EMISSION, dtype=torch.float64), torch.full((count, states), 1 / states, dtype=torch.float64)
    for token in tokens.unbind(1):
        shown = forward * torch.where(token[:, None] == 1, one, 1 - one)
        forward = STAY * shown + (1 - STAY) * shown.roll(1, -1)
    return forward.sum(-1)


def draw_strings(process: str, scale: LaboratoryScale, seed: int) -> Tensor:
    """The strings of a seed by number: first those to validate with, then those to learn from, of which a size is the first."""
    log_truth = truth_of(process, scale.length).log()[None]
    return SeededRng(seed, "strings", process).categorical(log_truth, scale.validation + max(scale.sizes))[0]


def run(context: StudyContext) -> dict[str, Any]:
    """All rows, `seeds` times as many as the scale has; settings and rows are kept, so that a stopped study goes on."""
    with single_thread():
        for number, (condition, block) in enumerate(order := blocks(SCALES[context.scale], context.seeds)):
            current_progress().say(f"{number} of {len(order)}: {condition.study}, {condition.size} strings, block {block}.")
            for method in METHODS:
                context.row(condition.study, _name(condition, method), block, partial(_rows, context, condition, method, block))
    return summarise(context)


def blocks(scale: LaboratoryScale, times: int = 1) -> list[tuple[Condition, int]]:
    """The conditions and blocks of seeds in the order in which they are made: the first sizes before the others, and there
    the first seeds of all conditions before the others."""
    numbers = range(-(-scale.seeds * times // scale.block))
    first, later = scale.sizes[: scale.first_sizes], scale.sizes[scale.first_sizes :]
    order = [*product(numbers, NETWORKS, PROCESSES, first)]
    order += [(block, network, process, size) for network, process, size, block in product(NETWORKS, PROCESSES, later, numbers)]
    return [(Condition(network, process, size, scale), block) for block, network, process, size in order]


def _name(condition: Condition, what: Method | str) -> str:
    return f"{condition.size} strings, {what}"


def _rows(context: StudyContext, condition: Condition, method: Method, block: int, run_dir: Path) -> list[Row]:
    """A row for each seed of a block, with the settings that were chosen before."""
    scale = condition.scale
    rate, setting = _learning_rate(context, condition), _setting(context, condition, method)
    seeds = range(block * scale.block, min((block + 1) * scale.block, scale.seeds * context.seeds))
    trained = condition.train(method, [(seed, Setting(**setting)) for seed in seeds], rate["learning rate"])
    exact = divergences(truth_of(condition.process, scale.length), trained.scores)
    values = {name: each.tolist() for name, each in vars(exact).items()}
    values |= {"validation": trained.validation.tolist(), "update": trained.update.tolist()}
    about = {"process": condition.process, "network": condition.network, "strings": condition.size, "method": str(method)}
    return [
        {**about, "seed": seed, **setting, "learning rate": rate["learning rate"]}
        | {name: each[k] for name, each in values.items()}
        for k, seed in enumerate(seeds)
    ]


def _learning_rate(context: StudyContext, condition: Condition) -> Row:
    """The learning rate with which likelihood has the lowest validation loss, and the mean update at which it has it."""

    def choose(run_dir: Path) -> Row:
        tried = []
        for rate in LEARNING_RATES:
            trained = condition.train(LIKELIHOOD, [(seed, Setting()) for seed in _selection(condition)], rate)
            update = round(float(trained.update.double().mean()))
            tried.append({"learning rate": rate, "validation": float(trained.validation.mean()), "update": update})
        return {**min(tried, key=lambda row: row["validation"]), "tried": tried}

    row: Row = context.row(condition.study, _name(condition, "learning rate"), 0, choose)
    return row


def _setting(context: StudyContext, condition: Condition, method: Method) -> Row:
    """The setting with which an objective has the lowest mean validation loss."""
    rate = _learning_rate(context, condition)

    def choose(run_dir: Path) -> Row:
        begins = (0, rate["update"] // 2) if method.kind in ("E-Forcing", "scheduled sampling") else (0,)
        settings = [Setting(*each) for each in product(STRENGTHS[method.kind], dict.fromkeys(begins))]
        runs = [(seed, setting) for setting in settings for seed in _selection(condition)]
        validation = condition.train(method, runs, rate["learning rate"]).validation.view(len(settings), -1).mean(-1).tolist()
        tried = [{**vars(setting), "validation": loss} for setting, loss in zip(settings, validation, strict=True)]
        return {**vars(settings[validation.index(min(validation))]), "tried": tried}

    row: Row = context.row(condition.study, _name(condition, f"setting of {method}"), 0, choose)
    return {name: row[name] for name in ("strength", "begin")}


def _selection(condition: Condition) -> range:
    return range(SELECTION, SELECTION + condition.scale.selection_seeds)


def kept_rows(context: StudyContext) -> list[Row]:
    """The rows that have been made, in the order of `blocks`."""
    rows: list[Row] = []
    for condition, block in blocks(SCALES[context.scale], context.seeds):
        for method in METHODS:
            file = context.run_dir(condition.study, _name(condition, method), block) / ROW_FILE
            rows += cached_json(file, list) if file.exists() else []
    return rows


def summarise(context: StudyContext) -> dict[str, Any]:
    """The tables, report and figure of the rows that have been made."""
    scale, rows = SCALES[context.scale], kept_rows(context)
    effect_rows, average_rows = effects(rows), averages(rows)
    verdicts = count_verdicts(effect_rows)
    figure = panels(rows)
    figure.savefig(context.out / "eforcing_laboratory.png", dpi=160)
    missing = sum(len(METHODS) for _ in blocks(scale, context.seeds)) - len(_blocks_made(rows, scale))
    note = [f"{missing} rows of {scale.block} seeds are not made yet: run the recipe again."] if missing else []
    result = {"effects": effect_rows, "averages": average_rows, "verdicts": verdicts, "chosen": chosen(rows)}
    text = json.dumps({**result, "missing": missing, "rows": rows}, indent=1, default=Estimate.to_dict)
    write_file(context.out / "laboratory.json", text.encode())
    about = "Small networks learn strings of a known process; all divergences from it are exact."
    saved = "Per cent of likelihood's divergence that an objective saves, seed by seed; a verdict needs an interval without 0."
    sections = [
        Section(
            "Effects",
            saved,
            [
                Picture(figure, FIGURE),
                Table("Averages", average_rows, AVERAGES),
                Table("Verdicts", verdicts),
                Table("Effects", effect_rows),
            ],
        ),
        Section("Settings", "Chosen on validation strings of other seeds.", [Table("Settings", result["chosen"])]),
    ]
    tables = {"averages": average_rows, "verdicts": verdicts, "rows": effect_rows, "settings": result["chosen"], "paper": PAPER}
    return context.publish("E-Forcing in the laboratory", about, sections, tables, note)


FIGURE = (
    "Means over seeds with 95 % intervals, cut at the edges; dashed lines are E-Forcing with draws of the network as "
    "negatives, dotted ones the published estimator."
)
AVERAGES = "Geometric means over conditions within a seed, then means over seeds; the last column is of the model's own energy."


def _blocks_made(rows: Rows, scale: LaboratoryScale) -> set[tuple[Any, ...]]:
    keys = ("network", "process", "strings", "method")
    return {(*(row[key] for key in keys), row["seed"] // scale.block) for row in rows}
