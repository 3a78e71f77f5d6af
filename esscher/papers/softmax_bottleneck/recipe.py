"""Breaking the softmax bottleneck (Yang et al., 2018): one softmax, mixtures of contexts and of softmaxes, equally large.

Every model learns one long text in order for as many steps. Measured are the perplexity of the rest of the text, with fixed
weights and by dynamic evaluation, and the rank of the matrix of next-token log-probabilities. Characters are the control:
their distributions have no rank that a softmax could lack.
"""

from functools import cache
from typing import Any

from torch import Tensor

from esscher.core.storage import read_tensors, write_tensors
from esscher.estimators.log_prob_rank import singular_curve
from esscher.hub import load_base
from esscher.papers.softmax_bottleneck.studies import bottleneck_studies
from esscher.papers.streams import StreamStudy, over_seeds, stream_rows, stream_sections, with_perplexity
from esscher.papers.study import Row, Rows, StudyContext, cached_json
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import cumulative_distribution
from esscher.workflow.base_analyses import measure_rank
from esscher.workflow.processors import prepare_stream_data

PAPER = [
    dict(zip(("text", "model", "rank", "perplexity"), row, strict=True))
    for row in (
        ("Penn Treebank", "softmax (AWD-LSTM), 24M", 400, "58.8"),
        ("Penn Treebank", "MoC, 22M", 280, "-"),
        ("Penn Treebank", "MoS of 15, 22M", 9_981, "55.97; fine-tuned 54.44; learning from it 47.69"),
        ("Penn Treebank", "MoS of 3, 5, 10, 20", "6,467, 8,930, 9,973, 9,981", "58.62, 57.36, 56.33, 56.17"),
        ("WikiText-2", "softmax (AWD-LSTM), 33M", "-", "65.8"),
        ("WikiText-2", "MoS of 15, 35M", "-", "61.45 fine-tuned; learning from it 40.68"),
    )
]
RANK, SINGULAR = "rank.json", "singular.safetensors"
LARGE = "singular values above 1e-4 of the largest"
MEANING = (
    "The rank of the matrix of next-token log-probabilities, contexts by tokens, is the number of its singular values above "
    "the round-off of float64. One softmax over vectors as wide as the model's cannot exceed the bound, whatever it learns."
)


def run(context: StudyContext) -> dict[str, Any]:
    """All heads on every text of the scale."""
    studies, missing = bottleneck_studies(context.scale)
    rows = stream_rows(context, studies)
    ranks = [row for study in studies for row in rank_rows(context, study)]
    over, rows = with_perplexity(over_seeds(rows)), with_perplexity(rows)
    about = "Networks of one size with different heads learn one long text in order, and are measured on the rest of it."
    sections = [*stream_sections(rows), *(_rank_section(context, study, ranks) for study in studies)]
    tables = {"rows": rows, "over seeds": over, "ranks": ranks, "paper": PAPER}
    return context.publish("The softmax bottleneck", about, sections, tables, missing)


def rank_rows(context: StudyContext, study: StreamStudy) -> list[Row]:
    """The rank of every model of a study; singular values stay in the run folder."""
    contexts, length = (100, 16) if context.scale == "smoke" else (2_500, 64)

    @cache
    def text() -> Tensor:  # the same for all models of a study
        return prepare_stream_data(next(iter(study.models.values()))).test.tokens

    def rank_row(model: str, seed: int) -> Row:
        run_dir = context.run_dir(study.name, model, seed)

        def measure() -> Row:
            spectrum, bound = measure_rank(load_base(run_dir)[0], text(), contexts, length)
            write_tensors(run_dir / SINGULAR, {"singular": spectrum.singular})
            sizes = {"softmax_at_most": bound, "contexts": spectrum.contexts, "tokens": spectrum.vocab_size}
            return {**sizes, "rank": spectrum.rank, "divergence": spectrum.divergence}

        row = cached_json(run_dir / RANK, measure)
        singular = read_tensors(run_dir / SINGULAR)["singular"]
        large = int((singular > 1e-4 * singular[0]).sum())
        return {"text": study.name, "model": model, "seed": seed, **row, LARGE: large}

    return [rank_row(model, seed) for model, seed in context.names(study)]


def _rank_section(context: StudyContext, study: StreamStudy, ranks: Rows) -> Section:
    """The ranks of a study, and the singular values of seed 0."""
    curves = {
        model: singular_curve(read_tensors(context.run_dir(study.name, model) / SINGULAR)["singular"]) for model in study.models
    }
    figure = cumulative_distribution(curves, x="singular value over the largest", y="share not above it")
    table = Table("Ranks", [row for row in ranks if row["text"] == study.name])
    return Section(f"{study.name}: ranks", MEANING, [table, Picture(figure, "Seed 0.")])
