"""Breaking the softmax bottleneck (Yang et al., 2018): one softmax, mixtures of contexts and of softmaxes, equally large.
Characters are the control: their distributions have no rank that a softmax could lack. `bottleneck.json` keeps what is made."""

from collections.abc import Sequence
from typing import Any

from esscher.core.storage import read_tensors, write_tensors
from esscher.estimators.log_prob_rank import singular_curve
from esscher.hub import load_base
from esscher.papers.softmax_bottleneck.claims import DIVERGENCE, LARGE, RANK, claims_of
from esscher.papers.softmax_bottleneck.studies import SOFTMAX, bottleneck_studies
from esscher.papers.stream_effects import BITS, effects, keep, levels
from esscher.papers.streams import (
    StreamStudy,
    over_seeds,
    rows_by_model,
    save_over_seeds,
    stream_sections,
    with_perplexity,
)
from esscher.papers.study import Row, Rows, StudyContext, cached_json, table_rows
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import cumulative_distribution
from esscher.workflow.analyse_bases import measure_rank
from esscher.workflow.processors import prepare_stream_data

PAPER = table_rows(
    ("text", "model", "rank", "perplexity"),
    ("Penn Treebank", "softmax (AWD-LSTM), 24M", 400, "58.8"),
    ("Penn Treebank", "MoC, 22M", 280, "-"),
    ("Penn Treebank", "MoS of 15, 22M", 9_981, "55.97; fine-tuned 54.44; learning from it 47.69"),
    ("Penn Treebank", "MoS of 3, 5, 10, 20", "6,467, 8,930, 9,973, 9,981", "58.62, 57.36, 56.33, 56.17"),
    ("WikiText-2", "softmax (AWD-LSTM), 33M", "-", "65.8"),
    ("WikiText-2", "MoS of 15, 35M", "-", "61.45 fine-tuned; learning from it 40.68"),
)
RESULTS, RANK_FILE, SINGULAR = "bottleneck.json", "rank.json", "singular.safetensors"
MEANING = (
    "The rank of the matrix of next-token log-probabilities, contexts by tokens, is the number of its singular values above "
    "the round-off of float64. One softmax over vectors as wide as the model's cannot exceed the bound, whatever it learns."
)


def run(context: StudyContext) -> dict[str, Any]:
    """All heads on every text of the scale."""
    studies, missing = bottleneck_studies(context.scale)
    rows: list[Row] = []
    ranks: list[Row] = []
    keep_results(context, studies, rows, ranks)
    for study, model, seed, of_model in rows_by_model(context, studies):
        rows += of_model
        ranks.append(rank_row(context, study, model, seed))
        keep_results(context, studies, rows, ranks)
    over, shown = with_perplexity(over_seeds(rows)), with_perplexity(rows)
    about = "Networks of one size with different heads learn one long text in order, and are measured on the rest of it."
    found = effects(claims_of(context.scale), [*rows, *ranks])
    claims = Section("Claims", "What is better, in bits where no column is named.", [Table("Effects over seeds", found)])
    sections = [claims, *stream_sections(shown), *(_rank_section(context, study, ranks) for study in studies)]
    tables = {"rows": shown, "over seeds": over, "ranks": ranks, "effects": found, "paper": PAPER}
    return context.publish("The softmax bottleneck", about, sections, tables, missing)


def keep_results(context: StudyContext, studies: Sequence[StreamStudy], rows: Rows, ranks: Rows) -> None:
    """Write what is made so far to `bottleneck.json`: levels, ranks and effects, over seeds where there are two; and the figure
    of the studies that have a softmax."""
    planned = sum(len(context.names(study)) for study in studies)
    tables = {
        "levels": levels(rows, (BITS,)),
        "ranks": levels(ranks, (RANK, LARGE, DIVERGENCE)),
        "effects": effects(claims_of(context.scale), [*rows, *ranks]),
        "rows": rows,
    }
    keep(context.out / RESULTS, planned - len(ranks), tables)
    with_softmax = {study.name for study in studies if study.baseline == SOFTMAX}
    save_over_seeds([row for row in over_seeds(rows) if row["text"] in with_softmax], context.out / "softmax_bottleneck.png")


def rank_row(context: StudyContext, study: StreamStudy, model: str, seed: int) -> Row:
    """The rank of a model, and the mean divergence (KL) of its next tokens after two different contexts of the test text; the
    singular values stay in the run folder."""
    contexts, length = (100, 16) if context.scale == "smoke" else (2_500, 64)
    run_dir = context.run_dir(study.name, model, seed)

    def measure() -> Row:
        tokens = prepare_stream_data(next(iter(study.models.values()))).test.tokens
        spectrum, bound = measure_rank(load_base(run_dir)[0], tokens, contexts, length)
        write_tensors(run_dir / SINGULAR, {"singular": spectrum.singular})
        sizes = {"softmax_at_most": bound, "contexts": spectrum.contexts, "tokens": spectrum.vocab_size}
        return {**sizes, RANK: spectrum.rank, DIVERGENCE: spectrum.divergence}

    row = cached_json(run_dir / RANK_FILE, measure)
    singular = read_tensors(run_dir / SINGULAR)["singular"]
    large = int((singular > 1e-4 * singular[0]).sum())
    return {"text": study.name, "model": model, "seed": seed, **row, LARGE: large}


def _rank_section(context: StudyContext, study: StreamStudy, ranks: Rows) -> Section:
    """The ranks of a study, and the singular values of seed 0."""
    curves = {
        model: singular_curve(read_tensors(context.run_dir(study.name, model) / SINGULAR)["singular"]) for model in study.models
    }
    figure = cumulative_distribution(curves, x="singular value over the largest", y="share not above it")
    table = Table("Ranks", [row for row in ranks if row["text"] == study.name])
    return Section(f"{study.name}: ranks", MEANING, [table, Picture(figure, "Seed 0.")])
