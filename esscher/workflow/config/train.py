"""The settings of `esscher train`, without torch; a value that makes no sense is an error before anything is read."""

from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from esscher.data.config import DIGITS, DataConfig, ImageConfig, LengthConfig, TokenizerConfig
from esscher.networks.registry import NETWORKS
from esscher.networks.transformer_config import DeqConfig
from esscher.objectives.config import OBJECTIVES
from esscher.training.config import TrainingConfig
from esscher.workflow.config.load import DeviceConfig

ANY_ORDER = ("permutation-lm", "masked-lm")  # objectives of a network that predicts in any order


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """What decides the sequences that training sees."""

    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    length: LengthConfig = field(default_factory=LengthConfig)
    images: ImageConfig = field(default_factory=ImageConfig)


@dataclass(frozen=True, kw_only=True)
class DataRun(DataSettings):
    """The splits that training would see, with the sizes of their sequences."""

    examples: int = 3
    """How many sequences to show."""
    seed: int = 0
    """Seed of a motif process."""

    def as_train_run(self) -> "TrainRun":
        """A training run on these data."""
        settings = {entry.name: getattr(self, entry.name) for entry in fields(DataSettings)}
        return TrainRun("", training=TrainingConfig(seed=self.seed), **settings)


@dataclass(frozen=True)
class TrainRun(DeviceConfig, DataSettings):
    """Every setting may also be in the YAML file of --config; flags override it. With `start`, base, weights and tokenizer come
    from a folder, and their settings are left out here, except whether a DEQ-Transformer continues as tied layers or as their
    fixed point (`base.kind` deq, `base.unrolled`)."""

    out: str
    """Folder of the run and of the model."""
    base: Annotated[Any, NETWORKS] = field(default_factory=NETWORKS.default)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    objective: Annotated[Any, OBJECTIVES] = field(default_factory=OBJECTIVES.default)
    start: str | None = None
    """Folder of a base that was trained here, to go on from: its weights, settings and tokenizer are taken."""
    resume: bool = False
    """Go on from the last checkpoint in `out`, to the same weights."""

    def __post_init__(self) -> None:
        unchanged = (NETWORKS.default(), DeqConfig(unrolled=getattr(self.base, "unrolled", 0)))
        if self.start is not None and (self.base not in unchanged or self.tokenizer != TokenizerConfig()):
            raise ValueError(
                f"Training that starts from {self.start} has its base and its tokenizer; leave the settings of base and "
                f"tokenizer out. Nothing was trained."
            )
        if self.reads_images and (self.tokenizer != TokenizerConfig() or self.length != LengthConfig()):
            raise ValueError("Images have no tokenizer, and one length. Nothing was trained; leave both out.")
        objective, network = OBJECTIVES.kind_of(self.objective), NETWORKS.kind_of(self.base)
        if objective in ANY_ORDER and self.start is None and network != "xlnet":
            raise ValueError(
                f"The objective {objective} is for a base that predicts in any order, xlnet, not {network}. "
                f"Nothing was trained; set base.kind = xlnet, or choose another objective."
            )
        if objective not in ANY_ORDER and (self.length.window is not None or self.length.bidirectional):
            raise ValueError(
                f"window and bidirectional are for the objectives {' and '.join(ANY_ORDER)}, not for {objective}. "
                f"Nothing was trained; leave them out."
            )

    @property
    def reads_images(self) -> bool:
        """Whether the data are images: the embedded ones, with settings of images, or for a network of images."""
        return self.data.source == DIGITS or self.images != ImageConfig() or self.base.modality == "image"

    @property
    def tokenizer_config(self) -> TokenizerConfig:
        """The tokenizer of the settings, or that of the folder to start from."""
        return self.tokenizer if self.start is None else TokenizerConfig(f"{self.start}/")
