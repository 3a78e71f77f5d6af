"""The settings of `esscher finetune`, without torch: the task, labelled data, the head on a network, how it learns."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from esscher.data.examples import USUAL, Columns, Task
from esscher.energies.labeller_config import Summary
from esscher.settings.data import check_choices, check_held_out
from esscher.settings.training import Schedule, TrainingConfig


@dataclass(frozen=True)
class LabelledDataConfig:
    """Where labelled texts come from, and the names of their columns; those not given are the usual ones of the task."""

    source: str
    """A csv, tsv, jsonl, parquet or SQuAD file, or a Hugging Face name."""
    validation: str | None = None
    """A source of its own to choose the best weights by."""
    test: str | None = None
    """A source of its own to judge by."""
    held_out: float = 0.1
    """Share of the examples for validation, and as much for test, where these have no source."""
    text: str | None = None
    """The column of the text; of choices the article, of answers the passage, of rankings the query."""
    second: str | None = None
    """The column of a second text; of choices and answers the question, of rankings the document."""
    label: str | None = None
    """The column of what is right."""
    options: str | None = None
    """Of choices: the column with the list of them, or several columns with commas between."""
    group: str | None = None
    """The column that tells which examples belong together: they are never parted, and are one replicate of the intervals."""

    def __post_init__(self) -> None:
        check_held_out(self.validation, self.test, self.held_out)

    def columns(self, task: Task) -> Columns:
        """The names of the columns."""
        names = ("text", "second", "label", "options", "group")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(USUAL[task], **given)


@dataclass(frozen=True)
class HeadConfig:
    """What stands above the pretrained network."""

    pooling: Summary | None = None
    """Which vector stands for a text: the last symbol's (of an xlnet, its summary), the first's (of an encoder), or all."""
    dropout: float = 0.1
    """Share of the values before the scores dropped in training."""
    frozen: bool | None = None
    """The network does not learn, only the head; so it is in ranking, unless told otherwise."""
    answer: int | None = None
    """Most tokens of an answer; as many as the longest to learn from if not given."""


@dataclass(frozen=True)
class FinetuneTraining(TrainingConfig):
    """How it learns, unless told otherwise."""

    usual_epochs: ClassVar[int] = 5
    may_shard: ClassVar[bool] = False
    learning_rate: float = 3e-4
    schedule: Schedule = "linear"
    warmup: int = 20


@dataclass(frozen=True)
class FinetuneRun:
    """The whole of `esscher finetune`, the pretrained model apart."""

    out: str
    """Folder of the run and of the fine-tuned model."""
    data: LabelledDataConfig
    task: Task = "classify"
    """classify or regress texts or pairs, choose among several, extract answers from passages, or rank documents."""
    longest: int = 128
    """Tokens of a row, symbols included; longer passages are read in windows, other texts cut."""
    encoder: bool = False
    """The model is an encoder of Hugging Face, not a base."""
    both_sides: bool | None = None
    """Whether a text is read from both sides; where the network can, if not given."""
    layer_rate: float = 1.0
    """Learning rate of each layer over that of the layer above it."""
    head: HeadConfig = field(default_factory=HeadConfig)
    training: FinetuneTraining = field(default_factory=FinetuneTraining)

    def __post_init__(self) -> None:
        check_choices(self)
        if not 0 < self.layer_rate <= 1:
            raise ValueError(f"layer_rate lies in (0, 1], not {self.layer_rate}.")
        if self.longest < 8:
            raise ValueError(f"A row has at least 8 tokens, not {self.longest}.")
