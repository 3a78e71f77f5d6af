"""What the recipes on XLNet study, by scale: how one network is pretrained on one text, and which tasks it then learns.

`small` takes about 150 minutes of one core for all rows and three seeds. An update of pretraining took 0.29 s (denoising 0.25,
from left to right 0.45), so 900 take 4 to 7 minutes; tasks of a row take 4 minutes, an energy 2. These are 13 networks that
are pretrained, 16 rows of tasks, 6 energies and their base.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from esscher.recipes.sources import DATA, not_here
from esscher.recipes.xlnet_data import PARTS, write_books, write_docstrings
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig, LengthConfig, TokenizerConfig
from esscher.settings.finetune import FinetuneRun, FinetuneTraining, LabelledDataConfig
from esscher.settings.objective import ObjectiveConfig
from esscher.settings.tilt import ContrastConfig, ContrastTraining, EnergyChoice, TiltRun
from esscher.settings.train import TrainRun
from esscher.settings.training import TrainingConfig

PERMUTED, DENOISING, CAUSAL, NOTHING = "permutation LM", "denoising", "causal LM", "no pretraining"
LOCAL = "Local-XLNet"
MAIN = (PERMUTED, DENOISING, CAUSAL, NOTHING)
STARTS = (PERMUTED, NOTHING)  # of energies
BOOKS, XQUAD = DATA / "gutenberg", DATA / "xquad/xquad.en.json"


@dataclass(frozen=True)
class EnergyStudy:
    """A base, and an energy on it that begins as a pretrained network, or as one of the same shape that learnt nothing."""

    base: TrainRun
    tilt: TiltRun


@dataclass(frozen=True)
class XLNetStudy:
    """A text, ways to pretrain one network on it, and tasks. The first seed is that of all ways, the others of `repeated`."""

    name: str
    pretrained: Mapping[str, TrainRun]
    tasks: Mapping[str, FinetuneRun]
    repeated: tuple[str, ...] = MAIN
    energies: EnergyStudy | None = None

    def of_seed(self, seed: int) -> tuple[str, ...]:
        """The ways that are run with a seed."""
        return tuple(name for name in self.pretrained if not seed or name in self.repeated)


def xlnet_studies(scale: str, out: Path) -> tuple[list[XLNetStudy], list[str]]:
    """The studies of a scale, and what is left out because its data are not here."""
    if scale == "smoke":
        return [_smoke(out)], []
    if scale == "paper":
        return [_published()], []
    missing = [place for place in (BOOKS, XQUAD) if not place.exists()]
    if missing:
        return [], [not_here(one) for one in missing]
    return [small_study(out)], []


def local_studies(scale: str, out: Path) -> tuple[list[XLNetStudy], list[str]]:
    """Full attention beside local attention, pretrained and fine-tuned alike."""
    studies, left_out = xlnet_studies(scale, out)
    span = {"smoke": 8, "small": 16, "paper": 64}[scale]
    return [_with_local(study, span) for study in studies], left_out


def _with_local(study: XLNetStudy, span: int) -> XLNetStudy:
    full = study.pretrained[PERMUTED]
    local = replace(full, base=replace(full.base, mixers=("local",), spans=(span,)))
    return replace(study, pretrained={PERMUTED: full, LOCAL: local}, repeated=(PERMUTED, LOCAL), energies=None)


def small_study(out: Path) -> XLNetStudy:
    """Books and docstrings, 3 layers of width 96; authors of unseen passages, and answers within passages."""
    files = out / "data"
    write_books(BOOKS, files, labelled=40, judged=60, vocabulary=2_000)
    base = BaseChoice("xlnet", width=96, layers=3, heads=4, feedforward=384, dropout=0.1, memory=64)
    training = TrainingConfig(
        steps=900, batch_size=16, learning_rate=1e-3, schedule="linear", warmup=100, evaluate_every=450, save_every=150,
        weight_decay=0.01,
    )  # fmt: skip
    tuning = FinetuneTraining(epochs=10, batch_size=16, learning_rate=5e-4, weight_decay=0.01, save_every=50)
    data = LabelledDataConfig(
        str(files / "authors-train.jsonl"), str(files / "authors-validation.jsonl"), str(files / "authors-test.jsonl"),
        group="place",
    )  # fmt: skip
    tasks = {
        "authors": FinetuneRun("", data, longest=80, layer_rate=0.8, training=tuning),
        "xquad": FinetuneRun(
            "", LabelledDataConfig(str(XQUAD), held_out=0.2), "extract", longest=128, layer_rate=0.8,
            training=replace(tuning, epochs=3),
        ),
    }  # fmt: skip
    pretrained = _ways(_pretraining(files, base, training, segment=64, window=128))
    return XLNetStudy("books", pretrained, tasks, energies=_energies(files, steps=600, energy_steps=200, draws=4_096))


def _pretraining(files: Path, base: BaseChoice, training: TrainingConfig, *, segment: int, window: int) -> TrainRun:
    """The permutation LM with everything that is published of it."""
    length = LengthConfig(segment, stream=True, window=window, both_ways=True)
    return TrainRun(
        "", _text(files), TokenizerConfig(f"{files / 'tokenizer'}/"), length, base, training, ObjectiveConfig("permuted")
    )


def _text(files: Path) -> DataConfig:
    train, validation, test = (str(files / f"{part}.txt") for part in PARTS)
    return DataConfig(train, validation, test, unit="document")


def _ways(run: TrainRun) -> dict[str, TrainRun]:
    """The controls on the same network, and the permutation LM without one of its parts each."""
    one_text = replace(run.length, window=None, both_ways=False)
    causal_length = replace(one_text, tokens=run.length.window or run.length.tokens)
    return {
        PERMUTED: run,
        DENOISING: replace(run, objective=ObjectiveConfig("denoising")),
        CAUSAL: replace(run, objective=ObjectiveConfig(), length=causal_length),
        NOTHING: run,
        "K = 7": replace(run, objective=ObjectiveConfig("permuted", one_in=7.0)),
        "without memory": replace(run, base=replace(run.base, memory=0)),
        "without spans": replace(run, objective=ObjectiveConfig("permuted", spans="none")),
        "without both directions": replace(run, length=replace(run.length, both_ways=False)),
    }


def _energies(files: Path, *, steps: int, energy_steps: int, draws: int) -> EnergyStudy:
    """A base of one LSTM on chunks, whose continuations an energy tells from the text's."""
    tokens = 40
    base = TrainRun(
        "", _text(files), TokenizerConfig(f"{files / 'tokenizer'}/"), LengthConfig(tokens, chunks=True, given=tokens // 2),
        BaseChoice("lstm", width=256, layers=1, embedding=128),
        TrainingConfig(steps=steps, batch_size=32, learning_rate=3e-3, schedule="linear", evaluate_every=steps // 2),
    )  # fmt: skip
    contrast = ContrastConfig(draws=draws, sequences=energy_steps * 32, held_out=128)
    training = ContrastTraining(steps=energy_steps, evaluate_every=max(1, energy_steps // 4), warmup=energy_steps // 10)
    return EnergyStudy(base, TiltRun("", energy=EnergyChoice(pooling="mean"), contrast=contrast, training=training))


def _smoke(out: Path) -> XLNetStudy:
    """Docstrings, which every machine has, and a network that learns little."""
    files = out / "data"
    write_docstrings(files, labelled=60, vocabulary=400)
    base = BaseChoice("xlnet", width=16, layers=1, heads=2, feedforward=32, memory=8)
    training = TrainingConfig(steps=4, batch_size=4, learning_rate=5e-3, evaluate_every=4)
    tuning = FinetuneTraining(steps=4, batch_size=8, evaluate_every=4)
    tasks = {
        "orders": FinetuneRun("", LabelledDataConfig(str(files / "orders.jsonl"), held_out=0.2), longest=32, training=tuning),
        "words": FinetuneRun(
            "", LabelledDataConfig(str(files / "words.jsonl"), held_out=0.2), "extract", longest=32, training=tuning
        ),
    }  # fmt: skip
    pretrained = _ways(_pretraining(files, base, training, segment=8, window=20))
    energies = _energies(files, steps=4, energy_steps=4, draws=128)
    small = replace(energies.base, base=BaseChoice("lstm", width=16, layers=1), length=LengthConfig(16, chunks=True, given=8))
    return XLNetStudy("docstrings", pretrained, tasks, energies=replace(energies, base=small))


def _published() -> XLNetStudy:
    """The ablation's size, 12 layers of width 768, on Wikipedia and books; RACE, SQuAD 2.0, MNLI and SST-2 by their names."""
    base = BaseChoice(
        "xlnet", width=768, layers=12, heads=12, feedforward=3_072, dropout=0.1, attention_dropout=0.1, memory=384,
        activation="gelu-tanh",
    )  # fmt: skip
    training = TrainingConfig(
        steps=500_000, batch_size=256, optimiser="adamw", learning_rate=4e-4, schedule="linear", lowest=0.001, warmup=40_000,
        weight_decay=0.01, evaluate_every=10_000,
    )  # fmt: skip
    data = DataConfig("wikimedia/wikipedia:20231101.en", held_out=0.001)
    length = LengthConfig(256, stream=True, window=512, both_ways=True)
    run = TrainRun(
        "", data, TokenizerConfig("bpe", 32_000), length, base, training, ObjectiveConfig("permuted", spans="pieces")
    )
    tuning = FinetuneTraining(epochs=3, batch_size=32, learning_rate=3e-5, weight_decay=0.01, warmup=1_000)
    return XLNetStudy("Wikipedia", _ways(run), {name: _glue(name, tuning) for name in ("RACE", "SQuAD 2.0", "MNLI", "SST-2")})


def _glue(name: str, training: FinetuneTraining) -> FinetuneRun:
    """A task as it is named on the hub; where test labels are not published, the validation data stand for both."""
    where: dict[str, tuple[str, str, Literal["classify", "choose", "extract"], dict[str, Any]]] = {
        "RACE": ("ehovy/race:all", "test", "choose", {}),
        "SQuAD 2.0": ("rajpurkar/squad_v2", "validation", "extract", {}),
        "MNLI": ("nyu-mll/multi_nli", "validation_matched", "classify", {"text": "premise", "second": "hypothesis"}),
        "SST-2": ("stanfordnlp/sst2", "validation", "classify", {"text": "sentence"}),
    }
    place, split, task, columns = where[name]
    place = place if ":" in place else f"{place}:"
    held_out = f"{place}:{split}"
    data = LabelledDataConfig(place.removesuffix(":"), held_out, held_out, **columns)
    return FinetuneRun("", data, task, longest=512, layer_rate=0.75, training=training)
