"""What the recipe on the softmax bottleneck studies, by scale: texts of words and of characters, and heads of equal size."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from esscher.recipes.sources import DATA, PENN_TREEBANK, not_here, wikitext
from esscher.recipes.stream_studies import Look, StreamStudy
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig, LengthConfig, TokenizerConfig
from esscher.settings.dynamic import DynamicConfig
from esscher.settings.train import TrainRun
from esscher.settings.training import TrainingConfig

SOFTMAX, MOC, MOS = "softmax", "MoC", "MoS"
TUNED = "fine-tuned"
SWEEP = {2: 96, 4: 87, 16: 54}  # components beside the 8 of the comparison, and the width that keeps the size
BOOKS = DataConfig(str(DATA / "gutenberg"), unit="document", split="place", held_out=0.02)
LETTERS = DataConfig(str(DATA / "text8-10M/text8.10M.gz"), split="raw", held_out=0.01)
PLAIN = BaseChoice("lstm", width=64, layers=1, embedding=64, tied=True)
TRAINING = TrainingConfig(
    steps=3_000, batch_size=20, optimiser="adam", learning_rate=0.01, schedule="cosine", warmup=200, clip=0.25,
    evaluate_every=1_000,
)  # fmt: skip


def bottleneck_studies(scale: str) -> tuple[list[StreamStudy], list[str]]:
    """The studies of a scale, and what is left out because its text is not here."""
    if scale == "smoke":
        return [_smoke()], []
    if scale == "paper":
        return [_penn_treebank(), _wikitext()], []
    studies, left_out = [], []
    for data, make in ((BOOKS, (_words, _sweep)), (LETTERS, (_characters,))):
        if Path(data.source).exists():
            studies += [one() for one in make]
        else:
            left_out.append(not_here(data.source))
    return studies, left_out


def _heads(run: TrainRun, softmax: Mapping[str, Any], mixture: Mapping[str, Any]) -> dict[str, TrainRun]:
    """One run with each head; the sizes of both sides make the networks equally large."""
    bases = {
        SOFTMAX: replace(run.base, **softmax),
        MOC: replace(run.base, output="contexts", **mixture),
        MOS: replace(run.base, output="softmaxes", **mixture),
    }
    return {name: replace(run, base=base) for name, base in bases.items()}


def _words() -> StreamStudy:
    """The 2,000 most frequent words of books: a softmax over vectors of width 64, mixtures over some of 48."""
    run = TrainRun("", BOOKS, TokenizerConfig("word", 2_000), LengthConfig(35, stream=True), PLAIN, TRAINING)
    models = _heads(run, {"width": 64, "embedding": 64}, {"width": 73, "embedding": 48, "components": 8})
    learning = [Look(learning=DynamicConfig("mos", decay=0.02, batches=300))]
    return StreamStudy("words of books", "token", models, {SOFTMAX: learning, MOS: learning}, SOFTMAX, 20_000)


def _sweep() -> StreamStudy:
    """More or fewer components, the layer below as much narrower or wider."""
    mos = _words().models[MOS]
    models = {f"MoS of {k}": replace(mos, base=replace(mos.base, components=k, width=width)) for k, width in SWEEP.items()}
    return StreamStudy("words, components", "token", models, {}, "MoS of 2", 20_000)


def _characters() -> StreamStudy:
    """Characters, whose 28 log-probabilities no softmax here is too narrow for: nothing is to be gained."""
    training = replace(TRAINING, steps=1_000, warmup=50)
    run = TrainRun("", LETTERS, TokenizerConfig("character"), LengthConfig(70, stream=True), PLAIN, training)
    models = _heads(run, {"width": 128, "embedding": 128}, {"width": 123, "embedding": 48, "components": 8})
    return StreamStudy("characters", "character", models, {}, SOFTMAX)


def _smoke() -> StreamStudy:
    """Docstrings, which every machine has, networks that learn little, and every part of the whole."""
    base = BaseChoice("awd-lstm", layers=2, inner=16)
    training = TrainingConfig(steps=40, batch_size=8, learning_rate=0.01, evaluate_every=10, average_after=2)
    length = LengthConfig(16, stream=True, segments="random")
    run = TrainRun("", DataConfig(), TokenizerConfig("word", 500), length, base, training)
    models = _heads(run, {"width": 14}, {"width": 12, "embedding": 12, "components": 3})
    again = TrainRun("", run.data, length=length, training=TrainingConfig(steps=10, batch_size=8, average=0.0), start=MOS)
    learning = {MOS: [Look(learning=DynamicConfig("mos", batches=5, columns=20))]}
    return StreamStudy("docstrings", "token", {**models, f"{MOS}, {TUNED}": again}, learning, SOFTMAX, 1_000)


PUBLISHED = TrainingConfig(
    batch_size=12, optimiser="sgd", learning_rate=20.0, weight_decay=1.2e-6, clip=0.25, average_after=5,
)  # fmt: skip


def _tuned(models: dict[str, TrainRun], rates: dict[str, float]) -> dict[str, TrainRun]:
    """The models and their second stages: weights averaged from the first update on, until evaluations get no better."""
    found = dict(models)
    for name, run in models.items():
        training = replace(run.training, average=0.0, average_after=None, patience=5, learning_rate=rates[name])
        found[f"{name}, {TUNED}"] = TrainRun("", run.data, length=run.length, training=training, start=name)
    return found


def _penn_treebank() -> StreamStudy:
    length = LengthConfig(70, stream=True, segments="random")
    awd = TrainRun("", PENN_TREEBANK, TokenizerConfig("word", 10_000), length, BaseChoice("awd-lstm"), PUBLISHED)
    mos = replace(
        awd.base, embedding=280, inner=960, width=620, between_dropout=0.225, latent_dropout=0.29, output="softmaxes",
        components=15, floor=1e-8,
    )  # fmt: skip
    models = {
        SOFTMAX: replace(awd, training=replace(PUBLISHED, batch_size=20, learning_rate=30.0, epochs=500)),
        MOC: replace(awd, base=replace(mos, output="contexts", floor=None), training=replace(PUBLISHED, epochs=1_000)),
        MOS: replace(awd, base=mos, training=replace(PUBLISHED, epochs=1_000)),
    }
    looks = {f"{MOS}, {TUNED}": [Look(learning=DynamicConfig("mos", learning_rate=0.002, decay=0.075, epsilon=0.001))]}
    return StreamStudy("Penn Treebank", "token", _tuned(models, {SOFTMAX: 30.0, MOC: 25.0, MOS: 25.0}), looks, SOFTMAX)


def _wikitext() -> StreamStudy:
    length = LengthConfig(70, stream=True, segments="random")
    base = BaseChoice("awd-lstm", input_dropout=0.65, between_dropout=0.2)
    awd = TrainRun("", wikitext(2), TokenizerConfig("word", 33_278), length, base, PUBLISHED)
    mos = replace(
        base, embedding=300, inner=1_150, width=650, input_dropout=0.55, latent_dropout=0.29, output="softmaxes",
        components=15, floor=1e-8,
    )  # fmt: skip
    many = replace(PUBLISHED, batch_size=15, accumulate=3, learning_rate=15.0, epochs=1_000)
    models = {
        SOFTMAX: replace(awd, training=replace(PUBLISHED, batch_size=80, learning_rate=30.0, epochs=750)),
        MOC: replace(awd, base=replace(mos, output="contexts", floor=None), training=many),
        MOS: replace(awd, base=mos, training=many),
    }
    looks = {f"{MOS}, {TUNED}": [Look(learning=DynamicConfig("mos", learning_rate=0.002, decay=0.02, epsilon=0.002))]}
    return StreamStudy("WikiText-2", "token", _tuned(models, {SOFTMAX: 30.0, MOC: 20.0, MOS: 20.0}), looks, SOFTMAX)
