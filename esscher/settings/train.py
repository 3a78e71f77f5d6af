"""The settings of a training run, without torch: what a YAML file and dotted flags name, and a run folder remembers.

`TrainRun` is the whole of `esscher train`. `to_dict` and `from_dict` are inverse to each other, and
`from_dict` refuses a key that it does not know. A value that makes no sense is an error when the settings are
made, before anything is read or computed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

from esscher.bases.config import PIXELS
from esscher.settings.base import BaseChoice
from esscher.settings.data import DataConfig, LengthConfig, TokenizerConfig
from esscher.settings.images import DIGITS, ImageConfig
from esscher.settings.objective import ANY_ORDER, ObjectiveConfig
from esscher.settings.training import TrainingConfig


@dataclass(frozen=True)
class TrainRun:
    """The whole of `esscher train`: what, on what, how, and where to put it.

    With `start` the base, its weights and its tokenizer are those of a folder, and nothing is said of them here, but whether a
    DEQ-Transformer goes on as tied layers or as their fixed point (`base.kind` deq, `base.unrolled`).
    """

    out: str
    """Folder of the run and of the model."""
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    length: LengthConfig = field(default_factory=LengthConfig)
    base: BaseChoice = field(default_factory=BaseChoice)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    images: ImageConfig = field(default_factory=ImageConfig)
    start: str | None = None
    """Folder of a base that was trained here, to go on from: its weights, settings and tokenizer are taken."""

    def __post_init__(self) -> None:
        goes_on = self.base == BaseChoice() or self.base == BaseChoice("deq", unrolled=self.base.unrolled)
        if self.start is not None and not (goes_on and self.tokenizer == TokenizerConfig()):
            raise ValueError(
                f"Training that starts from {self.start} has its base and its tokenizer; leave the settings of base and "
                f"tokenizer out. Nothing was trained."
            )
        if self.of_images and (self.tokenizer != TokenizerConfig() or self.length != LengthConfig()):
            raise ValueError("Images have no tokenizer, and one length. Nothing was trained; leave both out.")
        any_order = self.objective.kind in ANY_ORDER
        if any_order and self.start is None and self.base.kind != "xlnet":
            raise ValueError(
                f"The objective {self.objective.kind} is for a base that predicts in any order, xlnet, not {self.base.kind}. "
                f"Nothing was trained; set base.kind = xlnet, or choose another objective."
            )
        if not any_order and (self.length.window is not None or self.length.both_ways):
            raise ValueError(
                f"window and both_ways are for the objectives {' and '.join(ANY_ORDER)}, not for {self.objective.kind}. "
                f"Nothing was trained; leave them out."
            )

    @property
    def of_images(self) -> bool:
        """Whether the data are images: the embedded ones, with settings of images, or for a base of images."""
        return self.data.source == DIGITS or self.images != ImageConfig() or self.base.kind in PIXELS

    @property
    def vocabulary(self) -> TokenizerConfig:
        """How text becomes tokens, as told or as in the folder to start from."""
        return self.tokenizer if self.start is None else TokenizerConfig(f"{self.start}/")


def to_dict(run: TrainRun) -> dict[str, Any]:
    """The settings as plain nested values."""
    return asdict(run)


def from_dict(values: Mapping[str, Any]) -> TrainRun:
    """The settings of nested plain values; keys left out take their defaults, unknown ones are an error."""
    _known(TrainRun, values, "")
    parts: dict[str, Any] = {}
    for one in fields(TrainRun):
        if isinstance(one.type, type) and is_dataclass(one.type):
            given = values.get(one.name, {})
            _known(one.type, given, f"{one.name}.")
            kept = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
            parts[one.name] = one.type(**kept)
    return TrainRun(out=values["out"], start=values.get("start"), **parts)


def _known(kind: type, values: Mapping[str, Any], prefix: str) -> None:
    names = [one.name for one in fields(kind)]
    for key in values:
        if key not in names:
            raise ValueError(f"Unknown key {prefix}{key!r}; the known keys are {', '.join(prefix + name for name in names)}.")
