"""How to train, whatever the model and the objective, without torch.

A value that makes no sense is an error when the settings are made, before anything is read or computed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from esscher.core.config import check_choices

Schedule = Literal["constant", "cosine", "linear", "exponential", "inverse-sqrt"]
INTERVAL_FIELDS = ("evaluate_every", "save_every", "log_every")


@dataclass(frozen=True)
class OptimizerConfig:
    """How one player of a game learns where it is not as the others do."""

    lr_scale: float = 1.0
    """Its learning rate over the run's."""
    momentum: float = 0.9
    """Share of the earlier gradients in the next one: Adam's first beta, or that of sgd."""
    beta2: float = 0.999
    """The same of their squares: Adam's second beta."""
    lr_scale_by_prefix: Mapping[str, float] | None = None
    """Shares of that rate by the beginning of a weight's name, the longest that fits; 1 where none does."""

    def __post_init__(self) -> None:
        if not self.lr_scale > 0 or not 0 <= self.momentum < 1 or not 0 <= self.beta2 < 1:
            raise ValueError(f"A rate is more than 0, momentum and memory lie in [0, 1); not {self}.")

    def lr_scale_of(self, name: str) -> float:
        """The share of a weight."""
        lr_scale_by_prefix = self.lr_scale_by_prefix or {}
        return lr_scale_by_prefix.get(
            max((one for one in lr_scale_by_prefix if name.startswith(one)), key=len, default=""), 1.0
        )


@dataclass(frozen=True)
class TrainingConfig:
    """How to train, whatever the model and the objective.

    A step is one update; it sees `batch_size` sequences, shared by all processes, each reading its share in
    `accumulate` passes. Training lasts `steps`, or `epochs` passes over the data (neither: as many as the verb finds usual).
    """

    default_epochs: ClassVar[int] = 10
    supports_fsdp: ClassVar[bool] = True

    steps: int | None = None
    """Updates in all."""
    epochs: int | None = None
    """Passes over the data, instead of steps; as many as are usual if neither is given."""
    batch_size: int = 32
    """Sequences of one update, shared by all processes."""
    batch_tokens: int | None = None
    """Instead: as many sequences alike in length as have so many tokens, padding counted."""
    gradient_accumulation_steps: int = 1
    """Passes in which each process reads its share of a batch."""
    learning_rate: float = 1e-3
    """The highest one, after the warm-up."""
    optimizer: Literal["adam", "adamw", "adagrad", "sgd"] = "adamw"
    """Which optimizer."""
    weight_decay: float = 0.0
    """On matrices only; on vectors (biases, norms) never."""
    max_grad_norm: float | None = 1.0
    """Longest gradient; longer ones are shortened to it."""
    schedule: Schedule = "constant"
    """How the learning rate goes on after the warm-up."""
    stable_ratio: float | None = None
    """Share of the run after the warm-up for which the learning rate stays the highest before it falls."""
    min_lr_ratio: float | None = None
    """Share of the highest learning rate below which it never falls; where an exponential one ends (0.01 if not given)."""
    warmup_steps: int = 0
    """Updates over which the learning rate rises."""
    label_smoothing: float = 0.0
    """Share of each target spread over the vocabulary."""
    swa_start: float | None = None
    """Share of the run after which the weights of all updates are averaged; the average is evaluated and kept."""
    swa_patience: int | None = None
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
    seed: int = field(default=0, metadata={"flag": "--seed"})
    """One seed for everything random in the run."""
    fsdp: bool = False
    """Share out the weights of the base among the processes, layer by layer, instead of a copy for each."""
    gradient_checkpointing: bool = False
    """Keep of each layer only what came in, and compute the rest anew for the gradient: less memory, more time."""
    device: Literal["auto", "cpu"] = "auto"
    """Where to train; auto takes an accelerator if there is one."""
    tracker: Literal["tensorboard", "trackio", "wandb", "mlflow"] | None = None
    """Also log to this tracker."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.steps is not None and self.epochs is not None:
            raise ValueError(f"Training lasts either steps = {self.steps} or epochs = {self.epochs}; give one of them.")
        counts = (
            "steps",
            "epochs",
            "batch_size",
            "batch_tokens",
            "gradient_accumulation_steps",
            "patience",
            "swa_patience",
            *INTERVAL_FIELDS,
        )
        for name in ("learning_rate", "max_grad_norm", *counts):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} is more than 0, not {value}.")
        for name in ("weight_decay", "warmup_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is at least 0, not {getattr(self, name)}.")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing lies in [0, 1), not {self.label_smoothing}.")
        for name in ("swa_start", "stable_ratio", "min_lr_ratio"):
            share, of = getattr(self, name), "highest learning rate" if name == "min_lr_ratio" else "run"
            if share is not None and not 0 <= share < 1:
                raise ValueError(f"{name} is a share of the {of} in [0, 1), not {share}.")
        if self.schedule == "exponential" and self.min_lr_ratio == 0:
            raise ValueError("An exponential schedule never comes to 0; give a lowest share of the learning rate above it.")
        if self.swa_start is not None and self.swa_patience is not None:
            raise ValueError(
                f"Averaging begins after a share of the run, swa_start = {self.swa_start}, or when evaluations stop to "
                "get better, "
                f"swa_patience = {self.swa_patience}; give one of them."
            )
        if self.fsdp and not self.supports_fsdp:
            raise ValueError("Only the base of train and tilt is shared out. Nothing was done; leave sharded out.")
        if self.fsdp and self.batch_tokens is not None and self.gradient_accumulation_steps > 1:
            raise ValueError(
                f"Processes that share out weights make equally many passes, and batches of batch_tokens = "
                f"{self.batch_tokens} may have too few sequences for gradient_accumulation_steps = "
                f"{self.gradient_accumulation_steps} of them; give batch_size."
            )
        if self.batch_size % self.gradient_accumulation_steps:
            raise ValueError(
                f"A batch of {self.batch_size} cannot be read in gradient_accumulation_steps = "
                f"{self.gradient_accumulation_steps} equal passes."
            )


def learning_rate(config: TrainingConfig, step: int, steps: int) -> float:
    """The learning rate of update `step` of `steps`, both counted from 0: a rise over `warmup` updates, then the schedule."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    share = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    if config.stable_ratio is not None:
        share = max(0.0, share - config.stable_ratio) / (1 - config.stable_ratio)
    factor = {
        "constant": 1.0,
        "linear": 1 - share,
        "cosine": (1 + math.cos(math.pi * share)) / 2,
        "exponential": (0.01 if config.min_lr_ratio is None else config.min_lr_ratio) ** share,
        "inverse-sqrt": math.sqrt(max(1, config.warmup_steps) / max(1, config.warmup_steps, step + 1)),
    }
    return config.learning_rate * max(factor[config.schedule], config.min_lr_ratio or 0.0)
