"""The settings of `esscher finetune` and `esscher predict`, without torch."""

from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

from esscher.core.config import check_choices
from esscher.data.config import HeldOutConfig
from esscher.data.examples import DEFAULT_COLUMNS, ColumnConfig, ColumnNames, TaskKind
from esscher.energies.config import TaskPooling
from esscher.training.config import Schedule, TrainingConfig
from esscher.workflow.config.load import DeviceConfig


@dataclass(frozen=True)
class LabelledDataConfig(ColumnConfig, HeldOutConfig):
    """Labelled texts, and the names of their columns."""

    source: str = field(metadata={"flag": "--data"})
    """A csv, tsv, jsonl, parquet or SQuAD file, or a Hugging Face name."""
    held_out: float = field(default=0.1, kw_only=True)
    """Share of the examples for validation, and as much for the test, where these have no source."""

    def columns(self, task: TaskKind) -> ColumnNames:
        """The names of all columns of the task."""
        names = {column.name: getattr(self, column.name) for column in fields(ColumnConfig)}
        return replace(DEFAULT_COLUMNS[task], **{column: name for column, name in names.items() if name is not None})


@dataclass(frozen=True)
class HeadConfig:
    """The head on the pretrained network."""

    pooling: TaskPooling | None = None
    """Vector that stands for a text: of the last symbol (an xlnet's summary), of the first (an encoder's), or the mean of
    all."""
    dropout: float = 0.1
    """Dropout rate of the values before the scores."""
    frozen: bool | None = None
    """Train the head only, not the network; by default so in ranking."""
    answer: int | None = None
    """Most tokens of an answer; by default as many as the longest of the training data has."""


@dataclass(frozen=True)
class FinetuneTraining(TrainingConfig):
    """How to train, with the usual defaults of fine-tuning."""

    default_epochs: ClassVar[int] = 5
    supports_fsdp: ClassVar[bool] = False
    learning_rate: float = 3e-4
    schedule: Schedule = "linear"
    warmup_steps: int = 20


@dataclass(frozen=True)
class FinetuneRun(DeviceConfig):
    """Train a new head with the network, or alone if the network is frozen, and measure it on test data."""

    model: str
    """Folder of a base, or with `encoder` of an encoder of Hugging Face."""
    out: str = field(kw_only=True)
    """Folder of the run and of the fine-tuned model."""
    data: LabelledDataConfig = field(kw_only=True)
    task: TaskKind = field(default="classify", kw_only=True)
    """classify or regress texts or pairs, choose among several, extract answers from passages, or rank documents."""
    longest: int = field(default=128, kw_only=True)
    """Tokens of a row, symbols included; longer passages are read in windows, other texts are cut."""
    encoder: bool = field(default=False, kw_only=True)
    """The model is an encoder of Hugging Face, not a base."""
    bidirectional: bool | None = field(default=None, kw_only=True)
    """Whether a text is read in both directions; by default where the network can."""
    layer_rate: float = field(default=1.0, kw_only=True)
    """Learning rate of each layer over that of the layer above it."""
    head: HeadConfig = field(default_factory=HeadConfig, kw_only=True)
    training: FinetuneTraining = field(default_factory=FinetuneTraining, kw_only=True)
    resume: bool = field(default=False, kw_only=True)
    """Go on from the last checkpoint in `out`, to the same weights."""

    def __post_init__(self) -> None:
        check_choices(self)
        if not 0 < self.layer_rate <= 1:
            raise ValueError(f"layer_rate lies in (0, 1], not {self.layer_rate}.")
        if self.longest < 8:
            raise ValueError(f"A row has at least 8 tokens, not {self.longest}.")


@dataclass(frozen=True)
class PredictConfig(DeviceConfig):
    """One prediction for each text, in order; for data with labels also how good they are."""

    model: str
    """Folder of a fine-tuned model."""
    texts: tuple[str, ...] = ()
    """Texts, where the task reads one text a row; otherwise name `data`."""
    data: str | None = field(default=None, kw_only=True)
    """File with the columns that the model was trained on, or lines of text (.txt)."""
    out: str | None = field(default=None, kw_only=True)
    """File for the predictions, one JSON object a line."""

    def __post_init__(self) -> None:
        if (self.data is None) == (not self.texts):
            raise ValueError("Give texts, or a file as data. Nothing was predicted.")
