"""Settings of the recipe on the softmax bottleneck at each scale: texts of words and characters, heads of equal size."""

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
SWEEP = {2: 96, 4: 87, 16: 54}  # components other than 8, and the width that keeps the number of parameters
BOOKS = DataConfig(str(DATA / "gutenberg"), unit="document", split="position", held_out=0.02)
LETTERS = DataConfig(str(DATA / "text8-10M/text8.10M.gz"), split="raw", held_out=0.01)
LSTM = LstmConfig(width=64, layers=1, embedding=64, tied=True)
TRAINING = TrainingConfig(
    steps=3_000, batch_size=20, optimizer="adam", learning_rate=0.01, schedule="cosine", warmup_steps=200, max_grad_norm=0.25,
    evaluate_every=1_000,
)  # fmt: skip


def bottleneck_studies(scale: str) -> tuple[list[StreamStudy], list[str]]:
    """The studies of a scale, and a message for each text that was not found."""
    if scale == "smoke":
        return [_smoke()], []
    if scale == "paper":
        return [_penn_treebank(), _wikitext()], []
    studies, missing = [], []
    for data, makers in ((BOOKS, (_words, _sweep)), (LETTERS, (_characters,))):
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


PUBLISHED = TrainingConfig(
    batch_size=12, optimizer="sgd", learning_rate=20.0, weight_decay=1.2e-6, max_grad_norm=0.25, swa_patience=5,
)  # fmt: skip


def _second_stage(run: TrainRun, start: str, training: TrainingConfig) -> TrainRun:
    """Training that goes on from the weights of the model `start`."""
    return TrainRun("", data=run.data, length=run.length, training=training, start=start)


def _published(name: str, models: dict[str, TrainRun], rates: dict[str, float], dynamic: DynamicConfig) -> StreamStudy:
    """The models, then their second stages, which average weights from the first update until evaluations stop improving."""
    tuned = {}
    for model, run in models.items():
        training = replace(run.training, swa_start=0.0, swa_patience=None, patience=5, learning_rate=rates[model])
        tuned[f"{model}, {TUNED}"] = _second_stage(run, model, training)
    modes = {f"{MOS}, {TUNED}": [EvaluationMode(dynamic=dynamic)]}
    return StreamStudy(name=name, models={**models, **tuned}, baseline=SOFTMAX, evaluation_modes=modes)


def _penn_treebank() -> StreamStudy:
    words = TokenizerConfig("word", 10_000)
    awd = stream_run(PENN_TREEBANK, words, AwdLstmConfig(), PUBLISHED, segment=70, segments="random")
    mos = replace(
        awd.base, embedding=280, inner=960, width=620, between_dropout=0.225, latent_dropout=0.29, output="mos",
        components=15, floor=1e-8,
    )  # fmt: skip
    models = {
        SOFTMAX: replace(awd, training=replace(PUBLISHED, batch_size=20, learning_rate=30.0, epochs=500)),
        MOC: replace(awd, base=replace(mos, output="moc", floor=0.0), training=replace(PUBLISHED, epochs=1_000)),
        MOS: replace(awd, base=mos, training=replace(PUBLISHED, epochs=1_000)),
    }
    dynamic = DynamicConfig("mos", learning_rate=0.002, decay=0.075, epsilon=0.001)
    return _published("Penn Treebank", models, {SOFTMAX: 30.0, MOC: 25.0, MOS: 25.0}, dynamic)


def _wikitext() -> StreamStudy:
    base = AwdLstmConfig(input_dropout=0.65, between_dropout=0.2)
    awd = stream_run(wikitext(2), TokenizerConfig("word", 33_278), base, PUBLISHED, segment=70, segments="random")
    mos = replace(
        base, embedding=300, inner=1_150, width=650, input_dropout=0.55, latent_dropout=0.29, output="mos",
        components=15, floor=1e-8,
    )  # fmt: skip
    many = replace(PUBLISHED, batch_size=15, gradient_accumulation_steps=3, learning_rate=15.0, epochs=1_000)
    models = {
        SOFTMAX: replace(awd, training=replace(PUBLISHED, batch_size=80, learning_rate=30.0, epochs=750)),
        MOC: replace(awd, base=replace(mos, output="moc", floor=0.0), training=many),
        MOS: replace(awd, base=mos, training=many),
    }
    dynamic = DynamicConfig("mos", learning_rate=0.002, decay=0.02, epsilon=0.002)
    return _published("WikiText-2", models, {SOFTMAX: 30.0, MOC: 20.0, MOS: 20.0}, dynamic)
