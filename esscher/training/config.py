"""The settings of training and of dynamic evaluation, without torch; an invalid value is refused when they are made."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

from esscher.core.config import check_at_least, check_choices
from esscher.energies.config import TwistConfig

Schedule = Literal["constant", "cosine", "linear", "exponential", "inverse-sqrt"]
COUNT_FIELDS = ("steps", "epochs", "batch_size", "batch_tokens", "gradient_accumulation_steps", "patience", "swa_patience")
INTERVAL_FIELDS = ("evaluate_every", "save_every", "log_every")
MIN_ROUND_DRAWS = 64  # sequences that a round of learning a twist draws at least


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of the optimizer of one of several modules."""

    lr_scale: float = 1.0
    """Factor of the run's learning rate."""
    momentum: float = 0.9
    """The first beta of Adam, or the momentum of sgd."""
    beta2: float = 0.999
    """The second beta of Adam."""
    lr_scale_by_prefix: Mapping[str, float] | None = None
    """Further factors by the beginning of a weight's name; the longest that fits counts, and 1 if none does."""

    def __post_init__(self) -> None:
        if not self.lr_scale > 0 or not 0 <= self.momentum < 1 or not 0 <= self.beta2 < 1:
            raise ValueError(f"lr_scale is more than 0, momentum and beta2 lie in [0, 1); not {self}.")

    def lr_scale_of(self, name: str) -> float:
        scales = self.lr_scale_by_prefix or {}
        return scales.get(max(filter(name.startswith, scales), key=len, default=""), 1.0)


@dataclass(frozen=True)
class TrainingConfig:
    """How to train, whatever the model and the objective. A step is one update on `batch_size` sequences, divided among
    processes and read in `gradient_accumulation_steps` passes. `steps` or `epochs` end it (by default `default_epochs`)."""

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
    """Shard the weights of the base over the processes, layer by layer, instead of a copy for each."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer, and recompute the rest for the gradient: less memory, more time."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of autocast; auto is bfloat16 on a GPU that has it, else float32. Weights and optimizers are float32 always."""
    tracker: Literal["tensorboard", "trackio", "wandb", "mlflow"] | None = None
    """Also log to this tracker."""

    def __post_init__(self) -> None:
        check_choices(self)
        if self.steps is not None and self.epochs is not None:
            raise ValueError(f"Training lasts either steps = {self.steps} or epochs = {self.epochs}; give one of them.")
        for name in ("learning_rate", "max_grad_norm", *COUNT_FIELDS, *INTERVAL_FIELDS):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} is more than 0, not {value}.")
        check_at_least(self, 0, "weight_decay", "warmup_steps")
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
                f"Averaging begins after a share of the run, swa_start = {self.swa_start}, or when evaluations stop to get "
                f"better, swa_patience = {self.swa_patience}; give one of them."
            )
        if self.fsdp and not self.supports_fsdp:
            raise ValueError("Only the base of train and tilt can be sharded. Nothing was done; leave fsdp out.")
        if self.fsdp and self.batch_tokens is not None and self.gradient_accumulation_steps > 1:
            raise ValueError(
                f"With fsdp all processes make equally many passes, and batches of batch_tokens = "
                f"{self.batch_tokens} may have too few sequences for gradient_accumulation_steps = "
                f"{self.gradient_accumulation_steps} of them; give batch_size."
            )
        if self.batch_size % self.gradient_accumulation_steps:
            passes = f"gradient_accumulation_steps = {self.gradient_accumulation_steps} equal passes"
            raise ValueError(f"A batch of {self.batch_size} cannot be read in {passes}.")


def learning_rate(config: TrainingConfig, step: int, steps: int) -> float:
    """The learning rate of update `step` of `steps`, both counted from 0: warm-up, then the schedule."""
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


class Rates(NamedTuple):
    """Rates of dynamic evaluation (`esscher.training.dynamic_evaluation`)."""

    learning_rate: float
    decay: float
    epsilon: float


PUBLISHED = {"original": Rates(5e-5, 0.002, 2e-5), "mos": Rates(0.002, 0.075, 0.001), "sgd": Rates(0.1, 0.0, 0.0)}


@dataclass(frozen=True)
class DynamicConfig:
    """How the weights learn from a text while it is read; by default the rates are those published with the rule."""

    rule: Literal["original", "mos", "sgd"] = "original"
    """The rule of Krause et al. (2018), that of mixtures of softmaxes (Yang et al. 2018), or plain gradient descent."""
    learning_rate: float | None = None
    """Of one update: 5e-5 (original), 0.002 (mos), 0.1 (sgd)."""
    decay: float | None = None
    """How fast weights return to those of the given model: 0.002 (original), 0.075 (mos), 0 (sgd)."""
    epsilon: float | None = None
    """Added to the typical gradient of a weight: 2e-5 (original), 0.001 (mos)."""
    segment: int = 5
    """Tokens of a stream between two updates."""
    text: str | None = None
    """Text on which typical gradients are collected; by default the training text of the model."""
    columns: int = 100
    """Columns of that text, or sequences, that make one gradient."""
    batches: int | None = None
    """Gradients at most; by default as many as the text has."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "segment", "columns", "batches", note=" Nothing was measured.")
        for name in ("learning_rate", "decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} is at least 0, not {value}. Nothing was measured.")
        if self.rule == "sgd" and (self.epsilon is not None or self.rates.decay > 1):
            raise ValueError(
                f"Of sgd all weights have one rate: it has no epsilon, and a decay of at most 1; got epsilon = {self.epsilon}, "
                f"decay = {self.rates.decay}. Nothing was measured."
            )
        if self.rule != "sgd" and not 0 < self.rates.epsilon < math.inf:
            raise ValueError(f"epsilon is more than 0, not {self.epsilon}. Nothing was measured.")

    @property
    def rates(self) -> Rates:
        """The rates of the settings, or else the published ones."""
        rates = zip((self.learning_rate, self.decay, self.epsilon), PUBLISHED[self.rule], strict=True)
        return Rates(*(published if rate is None else rate for rate, published in rates))

    def __str__(self) -> str:
        rates = self.rates
        rest = "" if self.rule == "sgd" else f", epsilon {rates.epsilon:g}"
        return f"{self.rule}: learning rate {rates.learning_rate:g}, decay {rates.decay:g}{rest}"


@dataclass(frozen=True)
class DistilConfig:
    """How the student learns the teacher.

    auto: reweighted, or importance where the models do not give whole next-token distributions.
    reweighted: weighted draws of the base, learnt with a control variate that keeps a student near its base, so that only the
    tilt is learnt, not the noise of the draws. importance: the same draws, each learnt as often as its weight says.
    plain: draws of the teacher by rejection from the base. cyclical: in stages, the student of each being the proposal of
    the next. policy-gradient: the student's own draws, and the gradient of a divergence.
    """

    method: Literal["auto", "importance", "reweighted", "plain", "cyclical", "policy-gradient"] = "auto"
    """auto, importance, reweighted, plain, cyclical or policy-gradient."""
    draws: int = 20_000
    """Sequences to learn from, except for reweighted, which learns from all candidates, and policy-gradient."""
    candidates: int = 40_000
    """Sequences to draw in all, except for plain, which draws until enough were accepted."""
    stages: int = 3
    """Stages of the cyclical method."""
    divergence: Literal["kl", "reverse-kl", "total-variation", "jensen-shannon"] = "kl"
    """What policy-gradient lowers: kl (teacher to student), reverse-kl, total-variation, jensen-shannon."""
    draws_per_step: int = 512
    """Draws of one update of policy-gradient."""
    log_bound: float | None = None
    """A bound on -E(x) for the plain method; by default the largest of a first sample, and the error is estimated."""
    evaluation_draws: int = 4_000
    """Draws of the student to measure its distance by."""
    prompts: int = 500
    """Prompts from the energy's training data, for a model of chunks; draws and candidates are shared among them."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "draws", "candidates", "stages", "evaluation_draws", "prompts")
        check_at_least(self, 2, "draws_per_step", note=" The baseline of a draw is the mean of the others.")


@dataclass(frozen=True)
class TwistTraining(TrainingConfig):
    """How a twist is trained, in each round."""

    default_epochs: ClassVar[int] = 60
    supports_fsdp: ClassVar[bool] = False
    batch_size: int = 256
    learning_rate: float = 3e-3
    evaluate_every: int | None = 20
    patience: int | None = 6


@dataclass(frozen=True)
class TwistLearningConfig:
    """How a twist is learnt: the first round draws from the base, each further one from the proposal of the round before; every
    round trains on the draws of all."""

    draws: int = field(default=8_192, metadata={"flag": "--twist"})
    """Sequences to draw in all rounds."""
    rounds: int = 4
    """Rounds of drawing and training."""
    evaluation_draws: int = 2_000
    """Fresh sequences, of the base and of the twist, to measure in the end what the twist saves."""
    prompts: int = 256
    """Prompts from the energy's training data, for a model of chunks; the draws are shared among them."""
    network: TwistConfig = field(default_factory=TwistConfig)
    training: TwistTraining = field(default_factory=TwistTraining)

    def __post_init__(self) -> None:
        check_at_least(self, 1, "rounds", "prompts")
        check_at_least(self, 2, "evaluation_draws")
        if self.draws < MIN_ROUND_DRAWS * self.rounds:
            raise ValueError(
                f"A round of learning a twist needs {MIN_ROUND_DRAWS} sequences, so {self.rounds} rounds need "
                f"{MIN_ROUND_DRAWS * self.rounds}, and draws is {self.draws}. Nothing was drawn; raise draws, or lower rounds."
            )
