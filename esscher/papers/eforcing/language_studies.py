"""Settings of the recipes on E-Forcing for language models at each scale: texts, networks and objectives.

Networks and texts are small and nothing is dropped, so that likelihood overfits within the run. The weights with the lowest
validation loss are kept, and training stops `PATIENCE` evaluations after it. Likelihood, smoothed or not, gets as many epochs
as E-Forcing takes time; where its lowest loss comes before E-Forcing's epochs are over, the comparison holds for equal epochs
too.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from esscher.data.config import DataConfig, TokenizerConfig
from esscher.networks.recurrent_config import EnasConfig, GruConfig, LstmConfig, TrellisNetConfig
from esscher.networks.registry import NetworkConfig
from esscher.networks.transformer_config import DeqConfig, TransformerXLConfig
from esscher.objectives.config import EForcingConfig, ScheduledSamplingConfig
from esscher.papers.sources import DATA, PENN_TREEBANK, missing_message, wikitext
from esscher.papers.streams import StreamStudy, stream_run
from esscher.papers.transformer_xl.studies import WIKITEXT_XL
from esscher.training.config import TrainingConfig
from esscher.workflow.config.train import TrainRun

PLAIN, SMOOTH, SCHEDULED, FORCED = "likelihood", "label smoothing", "scheduled sampling", "E-Forcing"
ONCE = f"{FORCED}, tokens counted once"
LAYERS = "two tied layers"
COST = 2.5  # time of an epoch of E-Forcing, in epochs of likelihood
PATIENCE = 5
BOOK = DataConfig(str(DATA / "gutenberg/austen-persuasion.txt"), unit="document", split="position", held_out=0.1)
WIKI = DataConfig(str(DATA / "wikitext-2/valid.txt"), unit="document", split="position", held_out=0.1)
SEGMENT, TOKENS = 50, TokenizerConfig("bpe", 2_000)
XL = TransformerXLConfig(width=128, layers=2, heads=4, feedforward=512, memory=50, norm="pre")
TRAINING = TrainingConfig(
    epochs=14, batch_size=20, learning_rate=1e-3, warmup_steps=100, max_grad_norm=0.25, patience=PATIENCE, log_every=50
)
BEGIN = 3  # epochs of plain likelihood before E-Forcing and scheduled sampling
FORCING = EForcingConfig(after_epochs=BEGIN, weight=0.03)  # chosen among `SWEPT` on the validation text
FORCING_ONCE = replace(FORCING, weight=0.3, counts="once")
SWEPT = {
    **{f"{FORCED}, weight {weight:g}": replace(FORCING, weight=weight) for weight in (0.03, 0.1, 0.3, 1.0)},
    **{f"{FORCED}, weight 0.1 after {start}": replace(FORCING, weight=0.1, after_epochs=start) for start in (1, 6)},
    f"{FORCED}, weight 0.3, decay 0.5": replace(FORCING, weight=0.3, decay=0.5),
    f"{FORCED}, weight 0.03, decay 1": replace(FORCING, weight=0.03, decay=1.0),
    f"{FORCED}, weight 0.1, draws of 10": replace(FORCING, weight=0.1, negatives=10),
    **{f"{ONCE}, weight {weight:g}": replace(FORCING_ONCE, weight=weight) for weight in (0.1, 0.3, 1.0)},
}


def language_studies(scale: str) -> tuple[list[StreamStudy], list[str]]:
    """The studies of a scale, and a message for each text that was not found."""
    if scale == "smoke":
        return [_smoke()], []
    if scale == "paper":
        return [_published()], []
    run = stream_run(BOOK, TOKENS, XL, TRAINING, segment=SEGMENT)
    swept = {PLAIN: run, **{name: replace(run, objective=objective) for name, objective in SWEPT.items()}}
    wiki = replace(run, data=WIKI, training=replace(TRAINING, epochs=11))
    docstrings = replace(run, data=DataConfig(), training=replace(TRAINING, epochs=9))
    studies = [
        StreamStudy(name="a book, settings", models=swept, baseline=PLAIN),
        _all_objectives("a book", run),
        _all_objectives("WikiText-2, validation text", wiki),
        _all_objectives("docstrings", docstrings),
    ]
    sources = {study.name: study.models[PLAIN].data.source for study in studies}
    absent = {source for source in sources.values() if source != DataConfig().source and not Path(source).exists()}
    return [study for study in studies if sources[study.name] not in absent], [*map(missing_message, sorted(absent))]


def backbone_studies(scale: str) -> tuple[list[StreamStudy], list[str]]:
    """Every backbone with likelihood and with E-Forcing; at `small` each token counts once, as `SWEPT` suggests."""
    text, run, forcing, bases, test_limit = _ablation(scale)
    forced = ONCE if forcing.counts == "once" else FORCED
    if scale == "small" and not Path(run.data.source).exists():
        return [], [missing_message(run.data.source)]
    studies = []
    for name, base in bases.items():
        plain = replace(run, base=base)
        if scale == "small" and name in FASTER:
            plain = replace(plain, training=replace(run.training, learning_rate=FASTER[name]))
        models = {PLAIN: plain, forced: replace(plain, objective=forcing)}
        models = _from_layers(plain) if scale == "small" and name == "DEQ" else models
        studies.append(StreamStudy(name=f"{text}, {name}", models=models, baseline=PLAIN, test_limit=test_limit))
    return studies, []


def _from_layers(run: TrainRun) -> dict[str, TrainRun]:
    """Fixed points that start from two tied layers, as published: from new weights, and with the penalty on the Jacobian, they
    learn no more than token frequencies."""
    layers = replace(run, base=replace(run.base, unrolled=2), training=replace(run.training, epochs=BEGIN))
    rest = replace(run.training, epochs=(run.training.epochs or BEGIN + 1) - BEGIN)
    solved = replace(run, start=LAYERS, base=DeqConfig(unrolled=0), tokenizer=TokenizerConfig(), training=rest)
    now = {PLAIN: run.objective, ONCE: replace(FORCING_ONCE, after_epochs=0)}
    return {LAYERS: layers, **{name: replace(solved, objective=objective) for name, objective in now.items()}}


def _ablation(scale: str) -> tuple[str, TrainRun, EForcingConfig, Mapping[str, NetworkConfig], int | None]:
    """The name of a text, the training run on it, the objective of E-Forcing, the backbones, and the limit of test tokens."""
    if scale == "smoke":
        training = TrainingConfig(steps=8, batch_size=8, evaluate_every=4, learning_rate=3e-3, log_every=4)
        run = stream_run(DataConfig(), TokenizerConfig("bpe", 1_000), XL, training, segment=12)
        return "docstrings", run, EForcingConfig(after_steps=4), SMALLEST, 1_000
    if scale == "small":
        run = stream_run(BOOK, TOKENS, XL, replace(TRAINING, epochs=10), segment=SEGMENT)
        return "a book", run, FORCING_ONCE, BACKBONES, None
    training = TrainingConfig(epochs=100, batch_size=20, learning_rate=1e-3, max_grad_norm=0.25, patience=20)
    run = stream_run(PENN_TREEBANK, TokenizerConfig("word", 10_000), XL, training, segment=70)
    return "Penn Treebank", run, EForcingConfig(after_epochs=15, negatives=50), PUBLISHED, None


BACKBONES: Mapping[str, NetworkConfig] = {
    "GRU": GruConfig(width=150, layers=1, embedding=150, tied=True),
    "LSTM": LstmConfig(width=140, layers=1, embedding=140, tied=True),
    "ENAS": EnasConfig(width=96, dropout=0.0, input_dropout=0.0, hidden_dropout=0.0, word_dropout=0.0),
    "TrellisNet": TrellisNetConfig(
        width=64, inner=104, layers=8, dropout=0.0, input_dropout=0.0, hidden_dropout=0.0, word_dropout=0.0,
        weight_dropout=0.0, auxiliary_every=4,
    ),
    "DEQ": DeqConfig(
        width=96, heads=4, feedforward=800, memory=50, dropout=0.0, exact_tolerance=1e-3, exact_iterations=30,
    ),
    "Transformer": replace(XL, width=96, feedforward=384, memory=0),
    "Transformer-XL": replace(XL, width=96, feedforward=384),
}  # fmt: skip
FASTER = dict.fromkeys(("GRU", "LSTM", "ENAS", "TrellisNet"), 4e-3)  # chosen on the validation text for the first three
PUBLISHED: Mapping[str, NetworkConfig] = {
    "GRU": GruConfig(width=650, layers=2, embedding=650, tied=True, dropout=0.5),
    "LSTM": LstmConfig(width=650, layers=2, embedding=650, tied=True, dropout=0.5),
    "ENAS": EnasConfig(),
    "TrellisNet": TrellisNetConfig(),
    "DEQ": DeqConfig(width=380, heads=10, feedforward=9_000, memory=70, dropout=0.3),
    "Transformer-XL": TransformerXLConfig(
        width=380, layers=16, heads=10, feedforward=900, memory=70, dropout=0.3, variational=True
    ),
}
SMALLEST: Mapping[str, NetworkConfig] = {
    "GRU": GruConfig(width=12, layers=1, embedding=12),
    "ENAS": EnasConfig(width=8),
    "TrellisNet": TrellisNetConfig(width=8, inner=8, layers=3, auxiliary_every=2),
    "DEQ": DeqConfig(width=8, heads=2, feedforward=16, memory=12, unrolled=2),
}


def _objectives(run: TrainRun, forcing: EForcingConfig) -> dict[str, TrainRun]:
    """One network and text with every objective."""
    scheduled = ScheduledSamplingConfig(after_epochs=forcing.after_epochs, after_steps=forcing.after_steps)
    return {
        PLAIN: run,
        SMOOTH: replace(run, training=replace(run.training, label_smoothing=0.1)),
        SCHEDULED: replace(run, objective=scheduled),
        FORCED: replace(run, objective=forcing),
        ONCE: replace(run, objective=replace(forcing, weight=FORCING_ONCE.weight, counts="once")),
    }


def _all_objectives(name: str, run: TrainRun) -> StreamStudy:
    """Every objective; likelihood and label smoothing get as many epochs as E-Forcing takes time."""
    models = _objectives(run, FORCING)
    epochs = round(BEGIN + COST * ((run.training.epochs or 1) - BEGIN))
    for model in (PLAIN, SMOOTH):
        models[model] = replace(models[model], training=replace(models[model].training, epochs=epochs))
    return StreamStudy(name=name, models=models, baseline=PLAIN)


def _smoke() -> StreamStudy:
    base = TransformerXLConfig(width=12, layers=1, heads=2, feedforward=24, memory=12)
    training = TrainingConfig(steps=24, batch_size=8, evaluate_every=8, learning_rate=3e-3, log_every=8)
    run = stream_run(DataConfig(), TokenizerConfig("bpe", 300), base, training, segment=12)
    models = _objectives(run, EForcingConfig(after_steps=8))
    return StreamStudy(name="docstrings", models=models, baseline=PLAIN, test_limit=2_000)


def _published() -> StreamStudy:
    """WikiText-103 with Transformer-XL, negatives of 50 tokens, E-Forcing from the tenth epoch on."""
    training = TrainingConfig(
        epochs=100, batch_size=28, optimizer="adam", learning_rate=2.5e-4, schedule="cosine", max_grad_norm=0.25, patience=20,
    )  # fmt: skip
    run = stream_run(wikitext(103), TokenizerConfig("word", 267_735), WIKITEXT_XL, training, segment=150)
    models = _objectives(run, replace(FORCING, after_epochs=10, negatives=50))
    return StreamStudy(name="WikiText-103", models=models, baseline=PLAIN)
