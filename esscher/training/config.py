"""The settings of a training run, without torch: what a YAML file and dotted flags name, and a run folder remembers.

`TrainRun` is the whole of `esscher train`. `to_dict` and `from_dict` are inverse to each other, and
`from_dict` refuses a key that it does not know. A value that makes no sense is an error when the settings are
made, before anything is read or computed.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal

from esscher.bases.config import PIXELS, BaseConfig
from esscher.bases.config import from_dict as base_from_dict
from esscher.training.data_config import DataConfig, LengthConfig, TokenizerConfig, check_choice
from esscher.training.image_config import DIGITS, ImageConfig
from esscher.training.objective_config import ANY_ORDER, ObjectiveConfig

__all__ = [
    "BaseChoice",
    "DataConfig",
    "ImageConfig",
    "LengthConfig",
    "ObjectiveConfig",
    "TokenizerConfig",
    "TrainRun",
    "TrainingConfig",
]

MAY_CHANGE = ("tracker", "sharded", "recompute")  # settings that a resumed run may have otherwise
INTERVALS = ("evaluate_every", "save_every", "log_every")


@dataclass(frozen=True)
class Pace:
    """How one player of a game learns where it is not as the others do."""

    rate: float = 1.0
    """Its learning rate over the run's."""
    momentum: float = 0.9
    """Share of the earlier gradients in the next one: Adam's first beta, or that of sgd."""
    memory: float = 0.999
    """The same of their squares: Adam's second beta."""
    shares: Mapping[str, float] | None = None
    """Shares of that rate by the beginning of a weight's name, the longest that fits; 1 where none does."""

    def __post_init__(self) -> None:
        if not self.rate > 0 or not 0 <= self.momentum < 1 or not 0 <= self.memory < 1:
            raise ValueError(f"A rate is more than 0, momentum and memory lie in [0, 1); not {self}.")

    def share(self, name: str) -> float:
        """The share of a weight."""
        shares = self.shares or {}
        return shares.get(max((one for one in shares if name.startswith(one)), key=len, default=""), 1.0)


@dataclass(frozen=True)
class TrainingConfig:
    """How to train, whatever the model and the objective.

    A step is one update; it sees `batch_size` sequences, shared by all processes, each reading its share in
    `accumulate` passes. Training lasts `steps`, or `epochs` passes over the data (neither: as many as the verb finds usual).
    """

    usual_epochs: ClassVar[int] = 10
    may_shard: ClassVar[bool] = True

    steps: int | None = None
    """Updates in all."""
    epochs: int | None = None
    """Passes over the data, instead of steps; as many as are usual if neither is given."""
    batch_size: int = 32
    """Sequences of one update, shared by all processes."""
    batch_tokens: int | None = None
    """Instead: as many sequences alike in length as have so many tokens, padding counted."""
    accumulate: int = 1
    """Passes in which each process reads its share of a batch."""
    learning_rate: float = 1e-3
    """The highest one, after the warm-up."""
    optimiser: Literal["adam", "adamw", "adagrad", "sgd"] = "adamw"
    """Which optimiser."""
    weight_decay: float = 0.0
    """On matrices only; on vectors (biases, norms) never."""
    clip: float | None = 1.0
    """Longest gradient; longer ones are shortened to it."""
    schedule: Literal["constant", "cosine", "linear", "exponential", "inverse-sqrt"] = "constant"
    """How the learning rate goes on after the warm-up."""
    hold: float | None = None
    """Share of the run after the warm-up for which the learning rate stays the highest before it falls."""
    lowest: float | None = None
    """Share of the highest learning rate below which it never falls; where an exponential one ends (0.01 if not given)."""
    warmup: int = 0
    """Updates over which the learning rate rises."""
    label_smoothing: float = 0.0
    """Share of each target spread over the vocabulary."""
    average: float | None = None
    """Share of the run after which the weights of all updates are averaged; the average is evaluated and kept."""
    average_after: int | None = None
    """Instead: average once an evaluation is worse than the best before the last so many (NT-ASGD, published with 5)."""
    evaluate_every: int | None = None
    """Steps between evaluations; once an epoch if not given."""
    patience: int | None = None
    """Evaluations without a new best before stopping; never if not given."""
    keep_best: bool = True
    """End with the weights of the best evaluation instead of the last ones."""
    save_every: int | None = None
    """Steps between checkpoints; at every evaluation if not given."""
    log_every: int = 20
    """Updates between two entries of the history."""
    seed: int = 0
    """One seed for everything random in the run."""
    sharded: bool = False
    """Share out the weights of the base among the processes, layer by layer, instead of a copy for each."""
    recompute: bool = False
    """Keep of each layer only what came in, and compute the rest anew for the gradient: less memory, more time."""
    device: Literal["auto", "cpu"] = "auto"
    """Where to train; auto takes an accelerator if there is one."""
    tracker: Literal["tensorboard", "trackio", "wandb", "mlflow"] | None = None
    """Also log to this tracker."""

    def __post_init__(self) -> None:
        check_choice("optimiser", self.optimiser, ("adam", "adamw", "adagrad", "sgd"))
        check_choice("schedule", self.schedule, ("constant", "cosine", "linear", "exponential", "inverse-sqrt"))
        check_choice("device", self.device, ("auto", "cpu"))
        check_choice("tracker", self.tracker, ("tensorboard", "trackio", "wandb", "mlflow", None))
        if self.steps is not None and self.epochs is not None:
            raise ValueError(f"Training lasts either steps = {self.steps} or epochs = {self.epochs}; give one of them.")
        counts = ("steps", "epochs", "batch_size", "batch_tokens", "accumulate", "patience", "average_after", *INTERVALS)
        for name in ("learning_rate", "clip", *counts):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} is more than 0, not {value}.")
        for name in ("weight_decay", "warmup"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is at least 0, not {getattr(self, name)}.")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing lies in [0, 1), not {self.label_smoothing}.")
        for name in ("average", "hold", "lowest"):
            share, of = getattr(self, name), "highest learning rate" if name == "lowest" else "run"
            if share is not None and not 0 <= share < 1:
                raise ValueError(f"{name} is a share of the {of} in [0, 1), not {share}.")
        if self.schedule == "exponential" and self.lowest == 0:
            raise ValueError("An exponential schedule never comes to 0; give a lowest share of the learning rate above it.")
        if self.average is not None and self.average_after is not None:
            raise ValueError(
                f"Averaging begins after a share of the run, average = {self.average}, or when evaluations stop to get better, "
                f"average_after = {self.average_after}; give one of them."
            )
        if self.sharded and not self.may_shard:
            raise ValueError("Only the base of train and tilt is shared out. Nothing was done; leave sharded out.")
        if self.sharded and self.batch_tokens is not None and self.accumulate > 1:
            raise ValueError(
                f"Processes that share out weights make equally many passes, and batches of batch_tokens = "
                f"{self.batch_tokens} may have too few sequences for accumulate = {self.accumulate} of them; give batch_size."
            )
        if self.batch_size % self.accumulate:
            raise ValueError(f"A batch of {self.batch_size} cannot be read in accumulate = {self.accumulate} equal passes.")


def learning_rate(config: TrainingConfig, step: int, steps: int) -> float:
    """The learning rate of update `step` of `steps`, both counted from 0: a rise over `warmup` updates, then the schedule."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    share = (step - config.warmup) / max(1, steps - config.warmup)
    if config.hold is not None:
        share = max(0.0, share - config.hold) / (1 - config.hold)
    factor = {
        "constant": 1.0,
        "linear": 1 - share,
        "cosine": (1 + math.cos(math.pi * share)) / 2,
        "exponential": (0.01 if config.lowest is None else config.lowest) ** share,
        "inverse-sqrt": math.sqrt(max(1, config.warmup) / max(1, config.warmup, step + 1)),
    }
    return config.learning_rate * max(factor[config.schedule], config.lowest or 0.0)


@dataclass(frozen=True)
class BaseChoice:
    """The base: its kind, and those settings of the kind that shall not have their default (None)."""

    kind: Literal[
        "lstm", "gru", "awd-lstm", "enas", "trellisnet", "transformer", "transformer-xl", "deq", "xlnet",
        "encoder-decoder", "attentive-lstm", "pixelcnn", "gated-pixelcnn", "pixelcnn++",
    ] = "transformer"  # fmt: skip
    """Which network; encoder-decoder and attentive-lstm read a prompt as a source, the last three are of images."""
    width: int | None = None
    """Of the hidden layers."""
    layers: int | None = None
    """How many."""
    encoder_layers: int | None = None
    """Those that read the source, of an encoder-decoder or attentive-lstm; as many as layers if not given."""
    dropout: float | None = None
    """Share of hidden values dropped in training."""
    tied: bool | None = None
    """Input and output share one matrix."""
    embedding: int | None = None
    """Width of the input vectors of lstm and gru, one-hot input if not given; of others, the width if not given."""
    heads: int | None = None
    """Attention heads of a transformer, transformer-xl, deq or xlnet."""
    feedforward: int | None = None
    """Width between the two matrices of a feed-forward part."""
    positions: Literal["rotary", "learned"] | None = None
    """How a transformer knows positions."""
    max_positions: int | None = None
    """Longest sequence of a transformer, prompt and point together."""
    head_width: int | None = None
    """Width of a head of a transformer-xl, deq or xlnet, if not its share of the width; so are all settings up to eps."""
    attention_dropout: float | None = None
    """Share of attention, or of a kernel's taps, dropped in training."""
    memory: int | None = None
    """Earlier positions that a layer remembers while it learns from a stream."""
    reach: int | None = None
    """How far back a position attends when scoring and drawing; as far as the memory if not given."""
    clamp: int | None = None
    """Largest distance that is told apart when scoring and drawing."""
    same_length: bool | None = None
    """Attend no further than the memory in training too."""
    norm: Literal["post", "pre"] | None = None
    """Norm after each sum, or before each part."""
    untied: bool | None = None
    """The two biases of the relative score belong to each layer."""
    variational: bool | None = None
    """Drop the same of all positions."""
    mixers: tuple[Literal["full", "local", "lightconv", "dynamicconv"], ...] | None = None
    """What each layer mixes positions by; the last stands for all further layers."""
    spans: tuple[int, ...] | None = None
    """Chunk or kernel size of each layer; the last stands for all further layers."""
    activation: Literal["relu", "gelu", "gelu-tanh"] | None = None
    """What stands within the feed-forward parts of a transformer-xl or xlnet."""
    eps: float | None = None
    """Added to the variances of their norms."""
    inner: int | None = None
    """Width of all layers of an awd-lstm but the last; units of a trellisnet's levels beside its output."""
    input_dropout: float | None = None
    """Share of the input vectors dropped in training."""
    between_dropout: float | None = None
    """Share of what passes between layers dropped in training."""
    word_dropout: float | None = None
    """Share of the vocabulary dropped from the input in training."""
    weight_dropout: float | None = None
    """Share of the weights by which layers read their own past dropped in training."""
    hidden_dropout: float | None = None
    """Share of what is read of hidden vectors by an enas cell's nodes, or by a trellisnet's levels, dropped in training."""
    arc: tuple[int, ...] | None = None
    """An enas cell: the function of node 0, then for each further node the one it reads and its function."""
    alpha: float | None = None
    """Weight of the penalty of large outputs."""
    beta: float | None = None
    """Weight of the penalty of changing outputs."""
    dilations: tuple[int, ...] | None = None
    """How far back the levels of a trellisnet look, over and over again."""
    auxiliary: float | None = None
    """Weight of the likelihood by each level of a trellisnet that auxiliary-every divides."""
    auxiliary_every: int | None = None
    """Which levels of a trellisnet are so weighed."""
    unrolled: int | None = None
    """Tied layers of a deq instead of their fixed point, as in pretraining; 0 is the fixed point."""
    mixed: int | None = None
    """Iterates of a deq that are mixed; so are all settings up to jacobian-share."""
    tolerance: float | None = None
    """Relative change at which the fixed point of a training pass, and its gradient, have settled."""
    iterations: int | None = None
    """Most iterations of a training pass."""
    adjoint_iterations: int | None = None
    """Most iterations of its gradient."""
    exact_tolerance: float | None = None
    """Relative change at which scores and draws have settled."""
    exact_iterations: int | None = None
    """Most iterations of a score or of a step."""
    jacobian: float | None = None
    """Weight of the mean square of the layer's derivatives at the fixed point."""
    jacobian_share: float | None = None
    """Share of the training passes in which it is measured."""
    image: tuple[int, int, int] | None = None
    """Rows, columns and channels of the images of a pixelcnn; found in the data, and so are the classes."""
    classes: int | None = None
    """Classes of images that are told apart."""
    first: int | None = None
    """Side of the first convolution of a pixelcnn or gated-pixelcnn."""
    kernel: int | None = None
    """Side of all others."""
    scales: int | None = None
    """Sizes of the image that a pixelcnn++ works at, each half of the one before."""
    mixtures: int | None = None
    """Logistics that a pixelcnn++ mixes."""
    output: Literal["softmax", "softmaxes", "contexts"] | None = None
    """Of any network: a softmax, a mixture of softmaxes (MoS) or of contexts (MoC)."""
    components: int | None = None
    """Components of a mixture."""
    latent: int | None = None
    """Width of a mixture's contexts; that of the tied vectors, or of the hidden ones, if not given."""
    latent_dropout: float | None = None
    """Share of a mixture's contexts dropped in training."""
    floor: float | None = None
    """Added to each probability of a mixture of softmaxes; the released code has 1e-8."""
    least_prior: float | None = None
    """Components whose prior is lower are left out."""
    cutoffs: tuple[int, ...] | None = None
    """Where the clusters of an adaptive input and softmax begin."""
    shrink: int | None = None
    """How much narrower each cluster is than the one before."""
    tied_projections: Literal["none", "tails", "all"] | None = None
    """Which projections of an adaptive softmax are those of the input."""

    def __post_init__(self) -> None:
        self.resolve()

    def resolve(self) -> BaseConfig:
        """The whole config of that kind; a setting that the kind does not have is an error."""
        return base_from_dict({key: value for key, value in asdict(self).items() if value is not None})


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


PARTS: dict[str, type] = {
    "data": DataConfig,
    "tokenizer": TokenizerConfig,
    "length": LengthConfig,
    "base": BaseChoice,
    "training": TrainingConfig,
    "objective": ObjectiveConfig,
    "images": ImageConfig,
}


def to_dict(run: TrainRun) -> dict[str, Any]:
    """The settings as plain nested values."""
    return asdict(run)


def from_dict(values: Mapping[str, Any]) -> TrainRun:
    """The settings of nested plain values; keys left out take their defaults, unknown ones are an error."""
    _known(TrainRun, values, "")
    parts = {}
    for name, kind in PARTS.items():
        given = values.get(name, {})
        _known(kind, given, f"{name}.")
        parts[name] = kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})
    return TrainRun(out=values["out"], start=values.get("start"), **parts)


def changed_key(old: Any, new: Any, prefix: str = "") -> tuple[str, Any, Any] | None:
    """The first setting that differs between two nested settings and may not: its dotted key, the old and the new value."""
    old, new = (asdict(value) if is_dataclass(value) and not isinstance(value, type) else value for value in (old, new))
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return None if old == new else (prefix.removesuffix("."), old, new)
    for key in [*old, *(key for key in new if key not in old)]:
        if key in MAY_CHANGE:
            continue
        found = changed_key(old.get(key), new.get(key), f"{prefix}{key}.")
        if found is not None:
            return found
    return None


def refuse_change(what: str, old: Any, new: Any) -> None:
    """What was started with some settings is resumed with the same: an error names the first that differs."""
    changed = changed_key(old, new)
    if changed is not None:
        key, before, now = changed
        raise ValueError(
            f"{what} was started with {key} = {before!r}, and is resumed with {key} = {now!r}: it would not be the same run. "
            f"Nothing was trained or changed; give the old value back, or start a new run in another folder."
        )


def _known(kind: type, values: Mapping[str, Any], prefix: str) -> None:
    names = [one.name for one in fields(kind)]
    for key in values:
        if key not in names:
            raise ValueError(f"Unknown key {prefix}{key!r}; the known keys are {', '.join(prefix + name for name in names)}.")
