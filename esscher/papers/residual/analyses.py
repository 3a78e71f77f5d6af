"""Analyses of one residual energy, as in section 5 of Bakhtin et al. (2021): the paper's bounds of the perplexity beside our
intervals as the draws grow, perplexity by step with the exact last one, histograms of energies, unique n-grams, next tokens,
and how often a new classifier tells draws from text.

Every part is kept in a file of its own with its figure, so that a run that was stopped goes on. Left out: human preference,
which needs people (`esscher compare`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import unique_prompts
from esscher.data.splits import random_rows
from esscher.energies.config import EnergyConfig
from esscher.estimators.per_position import per_position
from esscher.estimators.perplexity import (
    SequenceScores,
    Units,
    as_perplexity,
    bounded_cross_entropy,
    score_sequences,
    tilted_cross_entropy,
)
from esscher.hub.packaged_models import resolve_model_folder
from esscher.papers.laboratory.coverage import single_thread
from esscher.papers.residual.recipe import STUDIES, ResidualStudy
from esscher.papers.sources import missing_message
from esscher.papers.study import Row, StudyContext, cached_json, table_rows
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import (
    BASE,
    TILTED,
    TRUTH,
    estimate_bars,
    estimate_lines,
    interval_bands,
    intervals,
    step_histograms,
)
from esscher.samplers.importance import Importance
from esscher.training.made_with import target_digests
from esscher.training.resumable import ResumableByPrompts
from esscher.workflow.analyse import analyse_discriminate, analyse_energies, analyse_next_token, analyse_ngrams
from esscher.workflow.config.analyse import (
    ClassifierTraining,
    DiscriminateConfig,
    EnergiesConfig,
    NextTokenConfig,
    NgramsConfig,
)
from esscher.workflow.config.tilt import TiltRun
from esscher.workflow.model import Model, load
from esscher.workflow.tilt import energy_data, tilt_model
from esscher.workflow.train import train_base

MOST_BLOCKS = 32  # disjoint blocks of draws of one size, on each of which bounds and interval are computed
PAPER = table_rows(
    ("what", "base", "joint"),
    ("accuracy of a new discriminator", "0.899", "0.829"),
    ("draws it takes for text", "0.178", "0.318"),
)
"""The discriminator of the paper on draws of the base and of BiT-Med; its figures have no legible numbers."""


@dataclass(frozen=True, kw_only=True)
class AnalysesScale:
    """Which energy is analysed, and by how much. `sizes` are draws after each prompt; the last one is the reference."""

    studies: str  # the scale of `recipe.STUDIES` that has the study
    study: str
    energy: str
    updates: int  # of the energy
    final_draws: int  # when the energy is trained, to report its log Z
    prompts: int
    sizes: tuple[int, ...]
    steps: tuple[int, int]  # sequences, and draws after each of their prefixes, for the perplexity by step
    energies: EnergiesConfig
    next_token: NextTokenConfig
    discriminate: DiscriminateConfig


SCALES = {
    "smoke": AnalysesScale(
        studies="smoke", study="docstrings", energy="UniT", updates=40, final_draws=64, prompts=3, sizes=(16, 64), steps=(3, 4),
        energies=EnergiesConfig(sequences=20, draws=4), next_token=NextTokenConfig(prompt="", top=3, draws=8),
        discriminate=DiscriminateConfig(
            sequences=40, draws=4, classifier=EnergyConfig("bidirectional"), training=ClassifierTraining(steps=4)
        ),
    ),
    "small": AnalysesScale(
        studies="plateau", study="tinystories, to the plateau", energy="BiT*", updates=100, final_draws=512, prompts=2,
        sizes=(16, 64, 256, 1024, 4096), steps=(12, 8),
        energies=EnergiesConfig(sequences=100, draws=16), next_token=NextTokenConfig(
            prompt="Once upon a time, there was a little girl named Lily. She loved to play in the", top=8, draws=64
        ),
        discriminate=DiscriminateConfig(
            sequences=600, draws=8, classifier=EnergyConfig(encoder="minilm", window=20, dropout=0.0),
            training=ClassifierTraining(steps=100, learning_rate=1e-4),
        ),
    ),
}  # fmt: skip


def run(context: StudyContext) -> dict[str, Any]:
    """Train the energy unless it is there, and make every analysis; `context.seeds` is not used."""
    scale = SCALES[context.scale]
    with single_thread():
        study, missing = _study(context, scale)
        if study is None:
            raise FileNotFoundError(f"There is nothing to analyse. Nothing was done. {' '.join(missing)}")
        model = _tilted_model(context, study, scale)
        parts = dict(_parts(context.out, model, scale))
    about = f"The energy {scale.energy} on {scale.study}, after {model.prompt_tokens} tokens of prompt."
    sections = [
        Section(name, "", [Picture(part["figure"], ""), Table("Numbers", part["rows"])]) for name, part in parts.items()
    ]
    tables = {"rows" if name == "bounds" else name: part["rows"] for name, part in parts.items()}
    return context.publish("Residual energies, analysed", about, sections, {**tables, "paper": PAPER}, missing)


def _study(context: StudyContext, scale: AnalysesScale) -> tuple[ResidualStudy | None, list[str]]:
    studies, missing = STUDIES[scale.studies](context.out, context.data)
    chosen = [study for study in studies if study.name == scale.study and scale.energy in study.energies]
    return (chosen[0] if chosen else None), missing or ([] if chosen else [missing_message(Path(scale.study))])


def _tilted_model(context: StudyContext, study: ResidualStudy, scale: AnalysesScale) -> Model:
    """The base of the study, tilted by its energy of seed 0 after `updates`."""
    if not isinstance(study.base, str):
        train_base(replace(study.base, resume=True))
    model = load(study.base if isinstance(study.base, str) else study.base.out, **vars(study.chunking))
    energy, training = study.energies[scale.energy]
    settings = TiltRun(
        energy, out=str(context.out / "energy"), data=study.data, training=replace(training, steps=scale.updates), resume=True,
        contrast=replace(study.contrast, draws=scale.final_draws),
    )  # fmt: skip
    return tilt_model(model, settings).model


def _parts(out: Path, model: Model, scale: AnalysesScale) -> Iterator[tuple[str, Row]]:
    """Each analysis by name: its rows, and its figure, which is saved."""
    makers: dict[str, tuple[Callable[[], Any], Callable[[Any], tuple[list[Row], Any]]]] = {
        "bounds": (partial(_bounds, out, model, scale), _show_bounds),
        "energies": (partial(_energies, model, scale.energies), _show_energies),
        "ngrams": (partial(_ngrams, model, scale.energies), _show_ngrams),
        "next": (partial(_next, model, scale.next_token), _show_next),
        "steps": (partial(_steps, out, model, scale), _show_steps),
        "discriminate": (partial(_discriminate, model, scale.discriminate), _show_discriminate),
    }
    for name, (make, show) in makers.items():
        rows, figure = show(cached_json(out / f"{name}.json", make))
        figure.savefig(out / f"residual_{name}.png", dpi=160)
        yield name, {"rows": rows, "figure": figure}


def _bounds(out: Path, model: Model, scale: AnalysesScale) -> list[Row]:
    """For each number of draws: the paper's bounds and our interval on the first block, and over disjoint blocks how wide they
    are and how often they hold the value by all draws."""
    splits = model.training_splits(energy_data(model))
    x = random_rows(splits.test, scale.prompts, rng=SeededRng(0, "sequences"))
    prompts, _ = unique_prompts(x)
    sampler = ResumableByPrompts(Importance(), out / "draws")
    score = score_sequences(model.target, x, sampler(model.target, prompts, scale.sizes[-1], rng=SeededRng(0, "draws")))
    units: Units = {"token": x.lengths}
    reference = _interval(score, units).value
    rows = []
    for size in scale.sizes:
        blocks = [_block(score, first, size) for first in range(0, scale.sizes[-1], size)][:MOST_BLOCKS]
        ours, theirs = [_interval(block, units) for block in blocks], [_paper_bounds(block, units) for block in blocks]
        row: Row = {"draws": size, "blocks": len(blocks), "ours": ours[0], "bounds": theirs[0]}
        for name, each in (("ours", ours), ("bounds", theirs)):
            row[f"{name}: holds the reference"] = sum(one.low <= reference <= one.high for one in each) / len(each)
            row[f"{name}: width"] = sum(one.high - one.low for one in each) / len(each)
        rows.append(row)
    return rows


def _block(score: SequenceScores, first: int, size: int) -> SequenceScores:
    return replace(score, drawn=score.drawn[:, first : first + size], runs=1)


def _interval(score: SequenceScores, units: Units) -> Estimate:
    return as_perplexity(tilted_cross_entropy(score, units, test="fixed", confidence=0.95))["token"]


def _paper_bounds(score: SequenceScores, units: Units) -> Estimate:
    return as_perplexity(bounded_cross_entropy(score, units))["token"]


def _show_bounds(rows: list[Row]) -> tuple[list[Row], Any]:
    sizes = [row["draws"] for row in rows]
    lines = {"our interval": (TILTED, sizes, [row["ours"] for row in rows]),
             "the paper's bounds": (TRUTH, sizes, [row["bounds"] for row in rows])}  # fmt: skip
    figure = interval_bands(lines, x="draws after each prompt", y="perplexity per token")
    figure.axes[0].set_xscale("log", base=2)
    return rows, figure


def _energies(model: Model, settings: EnergiesConfig) -> Row:
    result = analyse_energies(model, settings).result
    histogram = {"edges": list(result.histogram.edges), "shares": {k: list(v) for k, v in result.histogram.shares.items()}}
    means = [{"energies of": name, "mean": mean, "distance to text": result.distance.get(name)}
             for name, mean in result.mean.items()]  # fmt: skip
    return {"histogram": histogram, "rows": means}


def _show_energies(kept: Row) -> tuple[list[Row], Any]:
    return kept["rows"], step_histograms(kept["histogram"]["edges"], kept["histogram"]["shares"], label="energy (nats)")


def _ngrams(model: Model, settings: EnergiesConfig) -> list[Row]:
    result = analyse_ngrams(model, NgramsConfig(sequences=settings.sequences, draws=settings.draws, seed=settings.seed)).result
    return [{"n": row.n, **{str(name): ratio for name, ratio in row.ratio.items()}} for row in result]


def _show_ngrams(rows: list[Row]) -> tuple[list[Row], Any]:
    lines = {name: [row[name] for row in rows] for name in ("data", "base", "joint")}
    return rows, estimate_lines([row["n"] for row in rows], lines, x="n", y="ratio of unique n-grams")


def _next(model: Model, settings: NextTokenConfig) -> list[Row]:
    rows = analyse_next_token(model, settings).report.tables["next_tokens"]
    return [{"token": row["text"], "base": row["base"], "joint": row["joint"]} for row in rows]


def _show_next(rows: list[Row]) -> tuple[list[Row], Any]:
    series = {name: [row[name] for row in rows] for name in ("base", "joint")}
    return rows, estimate_bars([row["token"] for row in rows], series, label="probability of the next token")


def _steps(out: Path, model: Model, scale: AnalysesScale) -> list[Row]:
    """Perplexities by step; the last one is a sum over the vocabulary."""
    sequences, draws = scale.steps
    x = random_rows(model.training_splits(energy_data(model)).test, sequences, rng=SeededRng(0, "steps"))
    made_with = target_digests(model.target)  # not of its continuations, of which there is one for each position
    sampler = ResumableByPrompts(Importance(), out / "positions", made_with=made_with)
    positions = per_position(model.target, x, sampler, draws, rng=SeededRng(0, "positions"))
    return [
        {"step": each.position, "sequences": each.sequences, "base": _perplexity(each.base), "joint": _perplexity(each.tilted),
         "saved": each.reduction}
        for each in positions
    ]  # fmt: skip


def _perplexity(nats: Estimate) -> Estimate:
    return nats.map(lambda value: math.exp(min(value, 700.0)))


def _show_steps(rows: list[Row]) -> tuple[list[Row], Any]:
    steps = [row["step"] for row in rows]
    lines = {"base": (BASE, steps, [row["base"] for row in rows]), "joint": (TILTED, steps, [row["joint"] for row in rows])}
    return rows, interval_bands(lines, x="step", y="perplexity of the token")


def _discriminate(model: Model, settings: DiscriminateConfig) -> list[Row]:
    if settings.classifier.encoder:
        folder = str(resolve_model_folder(settings.classifier.encoder))
        settings = replace(settings, classifier=replace(settings.classifier, encoder=folder))
    result = analyse_discriminate(model, settings).result
    return [
        {"draws of": name, "accuracy": accuracy, "taken for text": result.false_positives[name]}
        for name, accuracy in result.accuracy.items()
    ]


def _show_discriminate(rows: list[Row]) -> tuple[list[Row], Any]:
    accuracies = {f"{row['draws of']} draws": row["accuracy"] for row in rows}
    return rows, intervals(accuracies, label="accuracy of a new classifier", truth=0.5, truth_label="indistinguishable")
