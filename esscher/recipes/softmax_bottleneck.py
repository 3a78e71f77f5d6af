"""Breaking the softmax bottleneck (Yang et al., 2018): one softmax, mixtures of contexts and of softmaxes, equally large.

Every model learns one long text in order, in as many steps. What is asked: how well it predicts the rest of the text, with its
weights at rest and learning from what it reads; and of which rank its next-token distributions are. Characters are the
inverse experiment: their distributions have no rank that a softmax could lack.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from esscher.estimators.rank import singular_curve
from esscher.hub import load_base
from esscher.recipes.bottleneck_studies import bottleneck_studies
from esscher.recipes.report_parts import published
from esscher.recipes.rows import kept, place_of
from esscher.recipes.stream_report import stream_sections
from esscher.recipes.stream_rows import over_seeds, run_studies, with_perplexity
from esscher.recipes.stream_studies import StreamStudy
from esscher.reports.document import Picture, Section, Table, write_report
from esscher.reports.plots import cumulative
from esscher.settings.rank import RankSettings
from esscher.storage import read_tensors, write_tensors
from esscher.verbs.rank import rank_of
from esscher.verbs.training_streams import prepare_streams

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


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """All models of this scale's texts, with every seed."""
    studies, left_out = bottleneck_studies(scale)
    rows = run_studies(studies, out, seeds)
    ranks = [one for study in studies for one in study_ranks(study, out / study.name, seeds, scale)]
    over = with_perplexity(over_seeds(rows))
    rows = with_perplexity(rows)
    _report(out, studies, rows, ranks)
    return {
        "rows": rows,
        "over seeds": over,
        "ranks": ranks,
        "paper": PAPER,
        "left out": [{"left out": one} for one in left_out],
    }


def study_ranks(study: StreamStudy, folder: Path, seeds: int, scale: str) -> list[dict[str, Any]]:
    """The rank of every model of a study, from its folder if it is known."""
    settings = RankSettings(contexts=100, length=16) if scale == "smoke" else RankSettings(contexts=2_500)

    @cache
    def text() -> Tensor:  # the same for all models of a study
        return prepare_streams(next(iter(study.models.values()))).test.tokens

    return [
        {"text": study.name, "model": model, "seed": seed, **_rank(place_of(folder, model, seed), text, settings)}
        for seed in range(seeds)
        for model in study.models
    ]


def _rank(place: Path, text: Callable[[], Tensor], settings: RankSettings) -> dict[str, Any]:
    def find() -> dict[str, Any]:
        base, _ = load_base(place)
        found = rank_of(base, text(), settings)
        write_tensors(place / SINGULAR, {"singular": found.spread.singular})
        sizes = {"softmax_at_most": found.softmax_bound, "contexts": found.spread.contexts, "tokens": found.spread.vocab_size}
        return {**sizes, "rank": found.spread.rank, "divergence": found.spread.divergence}

    told = kept(place / RANK, find)
    singular = read_tensors(place / SINGULAR)["singular"]
    return {**told, LARGE: int((singular > 1e-4 * singular[0]).sum())}


def _report(
    out: Path, studies: Sequence[StreamStudy], rows: Sequence[Mapping[str, Any]], ranks: Sequence[Mapping[str, Any]]
) -> None:
    sections = stream_sections(rows)
    for study in studies:
        places = {model: place_of(out / study.name, model, 0) for model in study.models}
        curves = {model: singular_curve(read_tensors(place / SINGULAR)["singular"]) for model, place in places.items()}
        picture = Picture(cumulative(curves, x="singular value over the largest", y="share not above it"), "Seed 0.")
        own = Table("Ranks", [row for row in ranks if row["text"] == study.name])
        sections.append(Section(f"{study.name}: ranks", MEANING, [own, picture]))
    write_report(
        out / "report.html",
        "The softmax bottleneck",
        "Networks of one size with different heads learn one long text in order, and are measured on the rest of it.",
        [*sections, published(PAPER)],
    )
