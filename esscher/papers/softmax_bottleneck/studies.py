"""The studies of the softmax bottleneck: networks of one size with different heads, numbers of components, and AWD-LSTM with a
second stage and dynamic evaluation."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from esscher.data.config import DataConfig, TokenizerConfig
from esscher.networks.recurrent_config import AwdLstmConfig, LstmConfig
from esscher.papers.sources import DATA, PENN_TREEBANK, missing_message, wikitext
from esscher.papers.streams import EvaluationMode, StreamStudy, stream_run
from esscher.training.config import DynamicConfig, TrainingConfig
from esscher.workflow.config.train import TrainRun

SOFTMAX, MOC, MOS = "softmax", "MoC", "MoS"
TUNED = "fine-tuned"
WORDS, EQUAL_SIZE, ALONE, AWD, CHARACTERS, SMOKE = (  # studies
    "words of books", "words, components", "words, components alone", "words, AWD-LSTM", "characters", "docstrings",
)  # fmt: skip
COMPONENTS = 8  # of the mixtures of all studies but the sweeps
SWEEP = {2: 96, 4: 87, 16: 54}  # other numbers of components, and the width that keeps the number of parameters
FIXED_SWEEP = (1, 2, 4, 16)  # other numbers of components, at one width
TEST_WORDS = 20_000  # words of the test text, from its start
BOOKS = DataConfig(str(DATA / "gutenberg"), unit="document", split="position", held_out=0.02)
LETTERS = DataConfig(str(DATA / "text8-10M/text8.10M.gz"), split="raw", held_out=0.01)
LSTM = LstmConfig(width=64, layers=1, embedding=64, tied=True)
TRAINING = TrainingConfig(
    steps=3_000, batch_size=20, optimizer="adam", learning_rate=0.01, schedule="cosine", warmup_steps=200, max_grad_norm=0.25,
    evaluate_every=1_000,
)  # fmt: skip
AWD_BASE = AwdLstmConfig(  # dropout rates a quarter to a fifth of the published ones
    layers=2, inner=96, dropout=0.1, input_dropout=0.1, between_dropout=0.05, weight_dropout=0.1, word_dropout=0.02
)
AWD_TRAINING = TrainingConfig(
    steps=4_000, batch_size=20, optimizer="sgd", learning_rate=4.0, weight_decay=1.2e-6, max_grad_norm=0.25, swa_patience=5,
    evaluate_every=250,
)  # fmt: skip
AWD_TUNING = replace(AWD_TRAINING, steps=1_000, swa_start=0.0, swa_patience=None)
LEARNING = EvaluationMode(dynamic=DynamicConfig("mos", decay=0.02, batches=300))
PUBLISHED = TrainingConfig(
    batch_size=12, optimizer="sgd", learning_rate=20.0, weight_decay=1.2e-6, max_grad_norm=0.25, swa_patience=5
)


def bottleneck_studies(scale: str) -> tuple[list[StreamStudy], list[str]]:
    """The studies of a scale, and a message for each text that was not found."""
    if scale == "smoke":
        return [smoke_study()], []
    if scale == "paper":
        return [_penn_treebank(), _wikitext()], []
    studies, missing = [], []
    for data, makers in ((BOOKS, (words_study, equal_size_sweep, components_sweep, awd_study)), (LETTERS, (characters_study,))):
        if Path(data.source).exists():
            studies += [make() for make in makers]
        else:
            missing.append(missing_message(data.source))
    return studies, missing


def _heads(run: TrainRun, softmax: Mapping[str, Any], mixture: Mapping[str, Any]) -> dict[str, TrainRun]:
    """The run with each head; sizes are chosen so that all networks have about as many parameters."""
    changes = {SOFTMAX: softmax, MOC: {"output": "moc", **mixture}, MOS: {"output": "mos", **mixture}}
    return {name: replace(run, base=replace(run.base, **change)) for name, change in changes.items()}


def words_study() -> StreamStudy:
    """The 2,000 most frequent words of books: a softmax over vectors of width 64, mixtures over vectors of width 48."""
    run = stream_run(BOOKS, TokenizerConfig("word", 2_000), LSTM, TRAINING, segment=35)
    modes = {SOFTMAX: [LEARNING], MOS: [LEARNING]}
    return StreamStudy(name=WORDS, models=_word_heads(run), baseline=SOFTMAX, evaluation_modes=modes, test_limit=TEST_WORDS)


def _word_heads(run: TrainRun) -> dict[str, TrainRun]:
    return _heads(run, {"width": 64, "embedding": 64}, {"width": 73, "embedding": 48, "components": COMPONENTS})


def awd_study() -> StreamStudy:
    """AWD-LSTM with a softmax and with MoS as published but small: segments by chance, NT-ASGD; then a second stage of each,
    which averages from its start, and learning from the text at evaluation."""
    words = TokenizerConfig("word", 2_000)
    heads = _word_heads(stream_run(BOOKS, words, AWD_BASE, AWD_TRAINING, segment=35, segments="random"))
    models = {name: heads[name] for name in (SOFTMAX, MOS)}
    tuned = {f"{name}, {TUNED}": _second_stage(run, name, AWD_TUNING) for name, run in models.items()}
    return StreamStudy(
        name=AWD, models={**models, **tuned}, baseline=SOFTMAX, evaluation_modes={name: [LEARNING] for name in tuned},
        test_limit=TEST_WORDS,
    )  # fmt: skip


def equal_size_sweep() -> StreamStudy:
    """MoS with other numbers of components at the same number of parameters."""
    mos = words_study().models[MOS]
    models = {f"MoS of {k}": replace(mos, base=replace(mos.base, components=k, width=width)) for k, width in SWEEP.items()}
    return StreamStudy(name=EQUAL_SIZE, models=models, baseline="MoS of 2", test_limit=TEST_WORDS)


def components_sweep() -> StreamStudy:
    """MoS with other numbers of components and all else as it is, so that more components are also more parameters; that of
    8 is the MoS of `words_study`."""
    mos = words_study().models[MOS]
    models = {f"MoS of {k}": replace(mos, base=replace(mos.base, components=k)) for k in FIXED_SWEEP}
    return StreamStudy(name=ALONE, models=models, baseline="MoS of 1", test_limit=TEST_WORDS)


def characters_study() -> StreamStudy:
    """28 characters: every softmax here is wide enough, so a mixture has nothing to gain."""
    training = replace(TRAINING, steps=1_000, warmup_steps=50)
    run = stream_run(LETTERS, TokenizerConfig("character"), LSTM, training, segment=70)
    models = _heads(run, {"width": 128, "embedding": 128}, {"width": 123, "embedding": 48, "components": COMPONENTS})
    return StreamStudy(name=CHARACTERS, unit="character", models=models, baseline=SOFTMAX)


def smoke_study() -> StreamStudy:
    """Tiny networks on docstrings, which every machine has; every part of the recipe runs."""
    base = AwdLstmConfig(layers=2, inner=16)
    training = TrainingConfig(steps=40, batch_size=8, learning_rate=0.01, evaluate_every=10, swa_patience=2)
    run = stream_run(DataConfig(), TokenizerConfig("word", 500), base, training, segment=16, segments="random")
    models = _heads(run, {"width": 14}, {"width": 12, "embedding": 12, "components": 3})
    models["MoS of 1"] = replace(models[MOS], base=replace(models[MOS].base, components=1))
    for name in (SOFTMAX, MOS):
        models[f"{name}, {TUNED}"] = _second_stage(run, name, TrainingConfig(steps=10, batch_size=8, swa_start=0.0))
    dynamic = [EvaluationMode(dynamic=DynamicConfig("mos", batches=5, columns=20))]
    modes = dict.fromkeys((SOFTMAX, MOS, f"{SOFTMAX}, {TUNED}", f"{MOS}, {TUNED}"), dynamic)
    return StreamStudy(name=SMOKE, models=models, baseline=SOFTMAX, evaluation_modes=modes, test_limit=1_000)


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
