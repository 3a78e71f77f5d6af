"""What the recipes on E-Forcing study, by scale: texts, networks, and what they are trained to minimise.

Networks and texts are small and nothing is dropped, so that likelihood learns the text by heart within the run. The weights of
the least validation loss are kept, and training stops `PATIENCE` evaluations after it. Likelihood, smoothed or not, may take as
many epochs as E-Forcing takes time; where its least loss comes before those of E-Forcing are over, the comparison is one of
equal epochs too.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from esscher.recipes.sources import DATA, PENN_TREEBANK, not_here, wikitext
from esscher.recipes.stream_studies import WIKITEXT_XL, StreamStudy
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig, LengthConfig, TokenizerConfig
from esscher.settings.objective import ObjectiveConfig
from esscher.settings.train import TrainRun
from esscher.settings.training import TrainingConfig

PLAIN, SMOOTH, SCHEDULED, FORCED = "likelihood", "label smoothing", "scheduled sampling", "E-Forcing"
ONCE = f"{FORCED}, tokens counted once"
LAYERS = "two tied layers"
DOCSTRINGS = DataConfig().source
COST = 2.5  # of an epoch of E-Forcing, in epochs of likelihood
PATIENCE = 5
BOOK = DataConfig(str(DATA / "gutenberg/austen-persuasion.txt"), unit="document", split="place", held_out=0.1)
WIKI = DataConfig(str(DATA / "wikitext-2/valid.txt"), unit="document", split="place", held_out=0.1)
SEGMENT, TOKENS = LengthConfig(50, stream=True), TokenizerConfig("bpe", 2_000)
XL = BaseChoice("transformer-xl", width=128, layers=2, heads=4, feedforward=512, memory=50, norm="pre")
TRAINING = TrainingConfig(epochs=14, batch_size=20, learning_rate=1e-3, warmup=100, clip=0.25, patience=PATIENCE, log_every=50)
BEGIN = 3  # epochs of plain likelihood before E-Forcing and scheduled sampling
FORCING = ObjectiveConfig("eforcing", after_epochs=BEGIN, weight=0.03)  # chosen among `SWEPT` by the validation text
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
    """The studies of a scale, and what is left out because its text is not here."""
    if scale == "smoke":
        return [_smoke()], []
    if scale == "paper":
        return [_published()], []
    run = TrainRun("", BOOK, TOKENS, SEGMENT, XL, TRAINING)
    shorter = replace(run, data=WIKI, training=replace(TRAINING, epochs=11))
    docstrings = replace(run, data=DataConfig(), training=replace(TRAINING, epochs=9))
    made = [
        _swept("a book, settings", run),
        _compared("a book", run),
        _compared("WikiText-2, validation text", shorter),
        _compared("docstrings", docstrings),
    ]
    sources = [study.models[PLAIN].data.source for study in made]
    here = [study for study, source in zip(made, sources, strict=True) if source == DOCSTRINGS or Path(source).exists()]
    absent = sorted({source for source in sources if source != DOCSTRINGS and not Path(source).exists()})
    return here, [not_here(source) for source in absent]


def backbone_studies(scale: str) -> tuple[list[StreamStudy], list[str]]:
    """Every backbone with likelihood and with E-Forcing; at small scale each token counted once, as `SWEPT` says is better."""
    text, run, forcing, bases, most = _ablation(scale)
    forced = ONCE if forcing.counts == "once" else FORCED
    if scale == "small" and not Path(run.data.source).exists():
        return [], [not_here(run.data.source)]
    studies = []
    for name, base in bases.items():
        plain = replace(run, base=base)
        if scale == "small" and name in FASTER:
            plain = replace(plain, training=replace(run.training, learning_rate=FASTER[name]))
        models = {PLAIN: plain, forced: replace(plain, objective=forcing)}
        models = _from_layers(plain) if scale == "small" and name == "DEQ" else models
        studies.append(StreamStudy(f"{text}, {name}", "token", models, {}, PLAIN, most))
    return studies, []


def _from_layers(run: TrainRun) -> dict[str, TrainRun]:
    """Fixed points that go on from two tied layers, as published: from new weights, and with the penalty on the Jacobian, they
    learn no more than how often each token occurs."""
    layers = replace(run, base=replace(run.base, unrolled=2), training=replace(run.training, epochs=BEGIN))
    rest = replace(run.training, epochs=(run.training.epochs or BEGIN + 1) - BEGIN)
    solved = replace(run, start=LAYERS, base=BaseChoice("deq", unrolled=0), tokenizer=TokenizerConfig(), training=rest)
    now = {PLAIN: run.objective, ONCE: replace(FORCING_ONCE, after_epochs=0)}
    return {LAYERS: layers, **{name: replace(solved, objective=objective) for name, objective in now.items()}}


def _ablation(scale: str) -> tuple[str, TrainRun, ObjectiveConfig, Mapping[str, BaseChoice], int | None]:
    """A text, how to train on it, when E-Forcing begins, the backbones, and how much of the test text is read."""
    if scale == "smoke":
        training = TrainingConfig(steps=8, batch_size=8, evaluate_every=4, learning_rate=3e-3, log_every=4)
        run = TrainRun("", DataConfig(), TokenizerConfig("bpe", 1_000), replace(SEGMENT, tokens=12), XL, training)
        return "docstrings", run, ObjectiveConfig("eforcing", after_steps=4), SMALLEST, 1_000
    if scale == "small":
        return "a book", TrainRun("", BOOK, TOKENS, SEGMENT, XL, replace(TRAINING, epochs=10)), FORCING_ONCE, BACKBONES, None
    training = TrainingConfig(epochs=100, batch_size=20, learning_rate=1e-3, clip=0.25, patience=20)
    run = TrainRun("", PENN_TREEBANK, TokenizerConfig("word", 10_000), replace(SEGMENT, tokens=70), XL, training)
    return "Penn Treebank", run, ObjectiveConfig("eforcing", after_epochs=15, negatives=50), PUBLISHED, None


BACKBONES: Mapping[str, BaseChoice] = {
    "GRU": BaseChoice("gru", width=150, layers=1, embedding=150, tied=True),
    "LSTM": BaseChoice("lstm", width=140, layers=1, embedding=140, tied=True),
    "ENAS": BaseChoice("enas", width=96, dropout=0.0, input_dropout=0.0, hidden_dropout=0.0, word_dropout=0.0),
    "TrellisNet": BaseChoice(
        "trellisnet", width=64, inner=104, layers=8, dropout=0.0, input_dropout=0.0, hidden_dropout=0.0, word_dropout=0.0,
        weight_dropout=0.0, auxiliary_every=4,
    ),
    "DEQ": BaseChoice(
        "deq", width=96, heads=4, feedforward=800, memory=50, dropout=0.0, exact_tolerance=1e-3, exact_iterations=30,
    ),
    "Transformer": replace(XL, width=96, feedforward=384, memory=0),
    "Transformer-XL": replace(XL, width=96, feedforward=384),
}  # fmt: skip
# Rates: the first three by the validation text, the last like them.
FASTER = {"GRU": 4e-3, "LSTM": 4e-3, "ENAS": 4e-3, "TrellisNet": 4e-3}
PUBLISHED: Mapping[str, BaseChoice] = {
    "GRU": BaseChoice("gru", width=650, layers=2, embedding=650, tied=True, dropout=0.5),
    "LSTM": BaseChoice("lstm", width=650, layers=2, embedding=650, tied=True, dropout=0.5),
    "ENAS": BaseChoice("enas"),
    "TrellisNet": BaseChoice("trellisnet"),
    "DEQ": BaseChoice("deq", width=380, heads=10, feedforward=9_000, memory=70, dropout=0.3),
    "Transformer-XL": BaseChoice(
        "transformer-xl", width=380, layers=16, heads=10, feedforward=900, memory=70, dropout=0.3, variational=True
    ),
}
SMALLEST: Mapping[str, BaseChoice] = {
    "GRU": BaseChoice("gru", width=12, layers=1, embedding=12),
    "ENAS": BaseChoice("enas", width=8),
    "TrellisNet": BaseChoice("trellisnet", width=8, inner=8, layers=3, auxiliary_every=2),
    "DEQ": BaseChoice("deq", width=8, heads=2, feedforward=16, memory=12, unrolled=2),
}


def _objectives(run: TrainRun, forcing: ObjectiveConfig) -> dict[str, TrainRun]:
    """One network and text with every objective."""
    scheduled = ObjectiveConfig("scheduled-sampling", forcing.after_epochs, forcing.after_steps)
    return {
        PLAIN: run,
        SMOOTH: replace(run, training=replace(run.training, label_smoothing=0.1)),
        SCHEDULED: replace(run, objective=scheduled),
        FORCED: replace(run, objective=forcing),
        ONCE: replace(run, objective=replace(forcing, weight=FORCING_ONCE.weight, counts="once")),
    }


def _compared(name: str, run: TrainRun) -> StreamStudy:
    """Every objective, those that are likelihood for as long as E-Forcing takes."""
    models = _objectives(run, FORCING)
    epochs = round(BEGIN + COST * ((run.training.epochs or 1) - BEGIN))
    longer = {one: replace(models[one], training=replace(models[one].training, epochs=epochs)) for one in (PLAIN, SMOOTH)}
    return StreamStudy(name, "token", {**models, **longer}, {}, PLAIN)


def _swept(name: str, run: TrainRun) -> StreamStudy:
    """E-Forcing that begins elsewhere, or is stronger or weaker; to be chosen by the validation text."""
    models = {PLAIN: run, **{what: replace(run, objective=objective) for what, objective in SWEPT.items()}}
    return StreamStudy(name, "token", models, {}, PLAIN)


def _smoke() -> StreamStudy:
    base = BaseChoice("transformer-xl", width=12, layers=1, heads=2, feedforward=24, memory=12)
    training = TrainingConfig(steps=24, batch_size=8, evaluate_every=8, learning_rate=3e-3, log_every=8)
    run = TrainRun("", DataConfig(), TokenizerConfig("bpe", 300), replace(SEGMENT, tokens=12), base, training)
    return StreamStudy("docstrings", "token", _objectives(run, ObjectiveConfig("eforcing", after_steps=8)), {}, PLAIN, 2_000)


def _published() -> StreamStudy:
    """WikiText-103 with Transformer-XL, negatives of 50 tokens, E-Forcing from the tenth epoch on."""
    training = TrainingConfig(
        epochs=100, batch_size=28, optimiser="adam", learning_rate=2.5e-4, schedule="cosine", clip=0.25, patience=20,
    )  # fmt: skip
    words = TokenizerConfig("word", 267_735)
    run = TrainRun("", wikitext(103), words, replace(SEGMENT, tokens=150), WIKITEXT_XL, training)
    return StreamStudy("WikiText-103", "token", _objectives(run, replace(FORCING, after_epochs=10, negatives=50)), {}, PLAIN)
