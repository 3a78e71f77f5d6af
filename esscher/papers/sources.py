"""Data of several recipes, in the folder `ESSCHER_DATA` or on the hub, and studies of one long text."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.networks.registry import NetworkConfig
from esscher.training.config import TrainingConfig
from esscher.training.dynamic_config import DynamicConfig
from esscher.workflow.config.train import TrainRun

DATA = Path(os.environ.get("ESSCHER_DATA", "../shared/data"))
MNIST, CIFAR = DATA / "mnist", DATA / "cifar-10"
PTB = "ptb-text-only/ptb_text_only"
PENN_TREEBANK = DataConfig(PTB, validation=f"{PTB}::validation", test=f"{PTB}::test", column="sentence")


def wikitext(size: int) -> DataConfig:
    """WikiText-2 or WikiText-103, empty lines kept."""
    name = f"Salesforce/wikitext:wikitext-{size}-v1"
    return DataConfig(name, validation=f"{name}:validation", test=f"{name}:test", empty="keep")


def local_or_hub(folder: Path, name: str) -> str:
    """The folder if it exists, else the name of the same data set on the hub."""
    return str(folder) if folder.exists() else name


def mnist() -> str:
    """Where MNIST is read from."""
    return local_or_hub(MNIST, "ylecun/mnist")


def cifar() -> str:
    """Where CIFAR-10 is read from."""
    return local_or_hub(CIFAR, "uoft-cs/cifar10")


def missing_message(source: str | Path) -> str:
    """Why the studies of this source were left out."""
    return f"{source} is not here; ESSCHER_DATA names another folder that holds it."


@dataclass(frozen=True)
class EvaluationMode:
    """How the test text is read: how far back attention looks (None: as in training), which distances are clamped, and whether
    the weights adapt to what was read (dynamic evaluation)."""

    attention_span: int | None = None
    clamp: int | None = None
    dynamic: DynamicConfig | None = None

    @property
    def name(self) -> str:
        """In words, for a table."""
        if self.dynamic is not None:
            return f"learning from it ({self.dynamic.rule})"
        clamped = "" if self.clamp is None else f", distances over {self.clamp:,} alike"
        return "as in training" if self.attention_span is None else f"{self.attention_span:,} back{clamped}"


@dataclass(frozen=True, kw_only=True)
class StreamStudy:
    """One long text and models that learn it in order; all are compared with the model `baseline`.

    The `start` of a run is the name of another model of the study, whose weights it starts from.
    """

    name: str
    models: Mapping[str, TrainRun]
    baseline: str
    unit: str = "token"  # bits are per byte, character, word or token
    evaluation_modes: Mapping[str, Sequence[EvaluationMode]] = field(default_factory=dict)
    test_limit: int | None = None  # tokens of the test text, from its start; None is all

    def names_for_seed(self, seed: int) -> tuple[str, ...]:
        """All models are trained with every seed."""
        return tuple(self.models)

    def modes_of(self, model: str) -> list[EvaluationMode]:
        """As in training, and the further modes of this model."""
        return [EvaluationMode(), *self.evaluation_modes.get(model, ())]


def stream_run(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    base: NetworkConfig,
    training: TrainingConfig,
    *,
    segment: int,
    segments: Literal["fixed", "random"] = "fixed",
) -> TrainRun:
    """A base that learns one long text in order, in segments of `segment` tokens, or of random lengths about it."""
    return TrainRun(
        "",
        data=data,
        tokenizer=tokenizer,
        length=LengthConfig(segment, stream=True, segments=segments),
        base=base,
        training=training,
    )
