"""Settings of the objectives that a base can be trained with, without torch: one dataclass a kind, listed in `OBJECTIVES`.
`prepare(context)` makes the objective of a run, `validation_objective()` the one that judges held-out data."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from esscher.core.config import Kind, Registry, check_at_least, check_choices

Prepared = Callable[..., Any]
"""An `esscher.core.objective.Objective`, whose module imports torch."""


@runtime_checkable
class TextTokenizer(Protocol):
    """What an objective needs of a tokenizer (`esscher.data.tokenizers.Tokenizer`)."""

    @property
    def name(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    def decode(self, points: Sequence[Sequence[int]]) -> list[str]: ...


@dataclass(frozen=True)
class RunContext:
    """What an objective needs to know of the run that it is trained in."""

    steps: Callable[[int], int] = lambda epochs: epochs  # the updates of so many epochs
    label_smoothing: float = 0.0
    tokenizer: TextTokenizer | None = None  # None where the data are no text
    block: int | None = None  # tokens of a block, where windows of a stream have several
    bidirectional: bool = False  # whether the second half of the rows is reversed


@runtime_checkable
class ObjectiveConfig(Protocol):
    """The settings of a kind of objective."""

    def prepare(self, context: RunContext) -> Prepared:
        """The objective of a run."""
        ...

    def validation_objective(self) -> Prepared:
        """The objective that held-out data are judged by: likelihood, unless the kind has another."""
        return LikelihoodConfig().prepare(RunContext())


@dataclass(frozen=True)
class LikelihoodConfig(ObjectiveConfig):
    """Maximum likelihood, from left to right."""

    def prepare(self, context: RunContext) -> Prepared:
        from esscher.objectives.likelihood import Likelihood

        return Likelihood(context.label_smoothing)


@dataclass(frozen=True)
class EForcingConfig(ObjectiveConfig):
    """Likelihood plus an energy on the model's own prefixes (`esscher.objectives.exposure_bias.EForcing`)."""

    weight: float = 0.3
    """Weight of the energy at the first position."""
    decay: float = 0.9
    """Factor of the weight from one position to the next."""
    inner: Literal["exact", "sampled"] = "exact"
    """Next token of a draw: its exact expectation, or the one that was drawn."""
    max_weight: float | None = None
    """Largest weight of a draw, in multiples of the mean weight."""
    counts: Literal["again", "once"] = "again"
    """Whether a token of the data counts again at every later position, as published, or once."""
    negatives: int | None = None
    """Most tokens of a draw; by default as many as the data have."""
    draws: int = 1
    """Draws after each row of the data; all of an update share one mean weight."""
    after_epochs: int | None = None
    """Epochs of plain likelihood before the energy is added."""
    after_steps: int | None = None
    """Updates of plain likelihood before the energy is added."""

    def __post_init__(self) -> None:
        check_choices(self)
        _check_begin(self)
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError(f"weight is at least 0, not {self.weight}.")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay lies in (0, 1], not {self.decay}.")
        check_at_least(self, 1, "max_weight", "negatives", "draws")

    def prepare(self, context: RunContext) -> Prepared:
        from esscher.objectives.exposure_bias import EForcing

        return EForcing(self, context.label_smoothing, _first_step(self, context))


@dataclass(frozen=True)
class ScheduledSamplingConfig(ObjectiveConfig):
    """Likelihood after prefixes with some of the model's own tokens (`esscher.objectives.exposure_bias.ScheduledSampling`)."""

    share: float = 0.25
    """Share of own tokens in a prefix, once it has risen."""
    form: Literal["passes", "steps"] = "passes"
    """Own tokens are drawn in one more pass, given the data before them; or step by step, given own tokens too."""
    ramp_epochs: int = 1
    """Epochs over which the share rises linearly from 0."""
    after_epochs: int | None = None
    """Epochs of plain likelihood before the share rises."""
    after_steps: int | None = None
    """Updates of plain likelihood before the share rises."""

    def __post_init__(self) -> None:
        check_choices(self)
        _check_begin(self)
        if not 0 <= self.share <= 1:
            raise ValueError(f"share lies in [0, 1], not {self.share}.")
        check_at_least(self, 1, "ramp_epochs")

    def prepare(self, context: RunContext) -> Prepared:
        from esscher.objectives.exposure_bias import ScheduledSampling

        begin = _first_step(self, context)
        return ScheduledSampling(self, context.label_smoothing, begin, context.steps(self.ramp_epochs))


@dataclass(frozen=True)
class PermutationLMConfig(ObjectiveConfig):
    """Likelihood of an xlnet in random factorization orders (`esscher.objectives.permutation_lm.PermutationLM`)."""

    one_in: float = 6.0
    """One token in so many is predicted (K)."""
    spans: Literal["words", "pieces", "none"] = "words"
    """Targets are spans of words, as published; of pieces, as in the released program; or single tokens."""
    max_span_length: int = 5
    """Most words or pieces of a span."""
    order: Literal["random", "left-to-right"] = "random"
    """Order of the positions; left-to-right is a control that predicts as many tokens, each given those before it."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "one_in", "max_span_length")

    def prepare(self, context: RunContext) -> Prepared:
        from esscher.objectives.permutation_lm import PermutationLM, word_boundaries

        words = None if context.tokenizer is None else word_boundaries(context.tokenizer)
        return PermutationLM(self, words, context.block, context.bidirectional)

    def validation_objective(self) -> Prepared:
        return PermutationLMConfig(self.one_in, "none", order=self.order).prepare(RunContext())


@dataclass(frozen=True)
class MaskedLMConfig(ObjectiveConfig):
    """Likelihood of tokens that are masked in the input of an xlnet (`esscher.objectives.permutation_lm.MaskedLM`)."""

    mask_probability: float = 0.15
    """Share of the tokens that are masked."""

    def __post_init__(self) -> None:
        if not 0 < self.mask_probability <= 1:
            raise ValueError(f"mask_probability lies in (0, 1], not {self.mask_probability}.")

    def prepare(self, context: RunContext) -> Prepared:
        from esscher.objectives.permutation_lm import MaskedLM

        return MaskedLM(self, context.bidirectional)

    def validation_objective(self) -> Prepared:
        return self.prepare(RunContext())


def _first_step(config: EForcingConfig | ScheduledSamplingConfig, context: RunContext) -> int:
    """The update at which an objective other than likelihood begins."""
    return context.steps(config.after_epochs) if config.after_epochs else config.after_steps or 0


def _check_begin(config: EForcingConfig | ScheduledSamplingConfig) -> None:
    if config.after_epochs is not None and config.after_steps is not None:
        raise ValueError(f"Give after_epochs = {config.after_epochs} or after_steps = {config.after_steps}, not both.")
    check_at_least(config, 0, "after_epochs", "after_steps")


OBJECTIVES = Registry(
    "objective",
    "likelihood",
    {
        "likelihood": Kind("esscher.objectives.config:LikelihoodConfig"),
        "eforcing": Kind("esscher.objectives.config:EForcingConfig"),
        "scheduled-sampling": Kind("esscher.objectives.config:ScheduledSamplingConfig"),
        "permutation-lm": Kind("esscher.objectives.config:PermutationLMConfig"),
        "masked-lm": Kind("esscher.objectives.config:MaskedLMConfig"),
    },
)
