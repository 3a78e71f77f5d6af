"""Breaking the softmax bottleneck (Yang et al., 2018): one softmax, mixtures of contexts and of softmaxes, equally large.
Characters are the control: their distributions have no rank that a softmax could lack."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from esscher.core.storage import read_tensors, write_tensors
from esscher.data.config import DataConfig, TokenizerConfig
from esscher.estimators.log_prob_rank import singular_curve
from esscher.hub import load_base
from esscher.networks.recurrent_config import AwdLstmConfig, LstmConfig
from esscher.papers.sources import DATA, PENN_TREEBANK, missing_message, wikitext
from esscher.papers.streams import (
    EvaluationMode,
    StreamStudy,
    over_seeds,
    save_over_seeds,
    stream_rows,
    stream_run,
    stream_sections,
    with_perplexity,
)
from esscher.papers.study import Row, Rows, StudyContext, cached_json, table_rows
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import cumulative_distribution
from esscher.training.config import DynamicConfig, TrainingConfig
from esscher.workflow.analyse_bases import measure_rank
from esscher.workflow.config.train import TrainRun
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
RANK, SINGULAR = "rank.json", "singular.safetensors"
LARGE = "singular values above 1e-4 of the largest"
MEANING = (
    "The rank of the matrix of next-token log-probabilities, contexts by tokens, is the number of its singular values above "
    "the round-off of float64. One softmax over vectors as wide as the model's cannot exceed the bound, whatever it learns."
)
SOFTMAX, MOC, MOS = "softmax", "MoC", "MoS"
TUNED = "fine-tuned"
SWEEP = {2: 96, 4: 87, 16: 54}  # components other than 8, and the width that keeps the number of parameters
FIXED_SWEEP = (1, 2, 4, 8, 16)  # components, at one width
BOOKS = DataConfig(str(DATA / "gutenberg"), unit="document", split="position", held_out=0.02)
LETTERS = DataConfig(str(DATA / "text8-10M/text8.10M.gz"), split="raw", held_out=0.01)
LSTM = LstmConfig(width=64, layers=1, embedding=64, tied=True)
TRAINING = TrainingConfig(
    steps=3_000, batch_size=20, optimizer="adam", learning_rate=0.01, schedule="cosine", warmup_steps=200, max_grad_norm=0.25,
    evaluate_every=1_000,
)  # fmt: skip
PUBLISHED = TrainingConfig(
    batch_size=12, optimizer="sgd", learning_rate=20.0, weight_decay=1.2e-6, max_grad_norm=0.25, swa_patience=5
)


def run(context: StudyContext) -> dict[str, Any]:
    """All heads on every text of the scale."""
    studies, missing = bottleneck_studies(context.scale)
    rows = stream_rows(context, studies)
    save_over_seeds(over_seeds(rows), context.out / "softmax_bottleneck.png")
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


def bottleneck_studies(scale: str) -> tuple[list[StreamStudy], list[str]]:
    """The studies of a scale, and a message for each text that was not found."""
    if scale == "smoke":
        return [_smoke()], []
    if scale == "paper":
        return [_penn_treebank(), _wikitext()], []
    studies, missing = [], []
    for data, makers in ((BOOKS, (_words, _sweep, _fixed_sweep)), (LETTERS, (_characters,))):
        if Path(data.source).exists():
            studies += [make() for make in makers]
        else:
            missing.append(missing_message(data.source))
    return studies, missing


def _heads(run: TrainRun, softmax: Mapping[str, Any], mixture: Mapping[str, Any]) -> dict[str, TrainRun]:
    """The run with each head; sizes are chosen so that all networks have about as many parameters."""
    changes = {SOFTMAX: softmax, MOC: {"output": "moc", **mixture}, MOS: {"output": "mos", **mixture}}
    return {name: replace(run, base=replace(run.base, **change)) for name, change in changes.items()}


def _words() -> StreamStudy:
    """The 2,000 most frequent words of books: a softmax over vectors of width 64, mixtures over vectors of width 48."""
    run = stream_run(BOOKS, TokenizerConfig("word", 2_000), LSTM, TRAINING, segment=35)
    models = _heads(run, {"width": 64, "embedding": 64}, {"width": 73, "embedding": 48, "components": 8})
    dynamic = [EvaluationMode(dynamic=DynamicConfig("mos", decay=0.02, batches=300))]
    return StreamStudy(
        name="words of books", models=models, baseline=SOFTMAX, evaluation_modes={SOFTMAX: dynamic, MOS: dynamic},
        test_limit=20_000,
    )  # fmt: skip


def _sweep() -> StreamStudy:
    """MoS with other numbers of components at the same number of parameters."""
    mos = _words().models[MOS]
    models = {f"MoS of {k}": replace(mos, base=replace(mos.base, components=k, width=width)) for k, width in SWEEP.items()}
    return StreamStudy(name="words, components", models=models, baseline="MoS of 2", test_limit=20_000)


def _fixed_sweep() -> StreamStudy:
    """MoS with other numbers of components and all else as it is, so that more components are also more parameters."""
    mos = _words().models[MOS]
    models = {f"MoS of {k}": replace(mos, base=replace(mos.base, components=k)) for k in FIXED_SWEEP}
    return StreamStudy(name="words, components alone", models=models, baseline="MoS of 1", test_limit=20_000)


def _characters() -> StreamStudy:
    """28 characters: every softmax here is wide enough, so a mixture has nothing to gain."""
    training = replace(TRAINING, steps=1_000, warmup_steps=50)
    run = stream_run(LETTERS, TokenizerConfig("character"), LSTM, training, segment=70)
    models = _heads(run, {"width": 128, "embedding": 128}, {"width": 123, "embedding": 48, "components": 8})
    return StreamStudy(name="characters", unit="character", models=models, baseline=SOFTMAX)


def _smoke() -> StreamStudy:
    """Tiny networks on docstrings, which every machine has; every part of the recipe runs."""
    base = AwdLstmConfig(layers=2, inner=16)
    training = TrainingConfig(steps=40, batch_size=8, learning_rate=0.01, evaluate_every=10, swa_patience=2)
    run = stream_run(DataConfig(), TokenizerConfig("word", 500), base, training, segment=16, segments="random")
    models = _heads(run, {"width": 14}, {"width": 12, "embedding": 12, "components": 3})
    models[f"{MOS}, {TUNED}"] = _second_stage(run, MOS, TrainingConfig(steps=10, batch_size=8, swa_start=0.0))
    dynamic = {MOS: [EvaluationMode(dynamic=DynamicConfig("mos", batches=5, columns=20))]}
    return StreamStudy(name="docstrings", models=models, baseline=SOFTMAX, evaluation_modes=dynamic, test_limit=1_000)


def _second_stage(run: TrainRun, start: str, training: TrainingConfig) -> TrainRun:
    """Training that goes on from the weights of the model `start`."""
    return TrainRun("", data=run.data, length=run.length, training=training, start=start)


def _published(name: str, models: dict[str, TrainRun], tuned_rate: float, dynamic: DynamicConfig) -> StreamStudy:
    """A softmax and MoS, MoC like MoS, and second stages, which average weights until evaluations stop improving."""
    mos = models[MOS]
    models = {SOFTMAX: models[SOFTMAX], MOC: replace(mos, base=replace(mos.base, output="moc", floor=0.0)), MOS: mos}
    tuned = {}
    for model, run in models.items():
        rate = run.training.learning_rate if model == SOFTMAX else tuned_rate
        training = replace(run.training, swa_start=0.0, swa_patience=None, patience=5, learning_rate=rate)
        tuned[f"{model}, {TUNED}"] = _second_stage(run, model, training)
    modes = {f"{MOS}, {TUNED}": [EvaluationMode(dynamic=dynamic)]}
    return StreamStudy(name=name, models={**models, **tuned}, baseline=SOFTMAX, evaluation_modes=modes)


def _penn_treebank() -> StreamStudy:
    words = TokenizerConfig("word", 10_000)
    softmax = replace(PUBLISHED, batch_size=20, learning_rate=30.0, epochs=500)
    awd = stream_run(PENN_TREEBANK, words, AwdLstmConfig(), softmax, segment=70, segments="random")
    mos = replace(
        awd.base, embedding=280, inner=960, width=620, between_dropout=0.225, latent_dropout=0.29, output="mos",
        components=15, floor=1e-8,
    )  # fmt: skip
    models = {SOFTMAX: awd, MOS: replace(awd, base=mos, training=replace(PUBLISHED, epochs=1_000))}
    return _published("Penn Treebank", models, 25.0, DynamicConfig("mos", learning_rate=0.002, decay=0.075, epsilon=0.001))


def _wikitext() -> StreamStudy:
    base = AwdLstmConfig(input_dropout=0.65, between_dropout=0.2)
    softmax = replace(PUBLISHED, batch_size=80, learning_rate=30.0, epochs=750)
    awd = stream_run(wikitext(2), TokenizerConfig("word", 33_278), base, softmax, segment=70, segments="random")
    mos = replace(
        base, embedding=300, inner=1_150, width=650, input_dropout=0.55, latent_dropout=0.29, output="mos",
        components=15, floor=1e-8,
    )  # fmt: skip
    many = replace(PUBLISHED, batch_size=15, gradient_accumulation_steps=3, learning_rate=15.0, epochs=1_000)
    models = {SOFTMAX: awd, MOS: replace(awd, base=mos, training=many)}
    return _published("WikiText-2", models, 20.0, DynamicConfig("mos", learning_rate=0.002, decay=0.02, epsilon=0.002))
