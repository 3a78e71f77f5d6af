"""The settings of dynamic evaluation, without torch: a rule with its published rates, and what its statistics are made of.

    original   Krause et al. (2018): the root of the mean square of each weight's gradient; its decay in units of the mean over
               all kinds of weights
    mos        as published with mixtures of softmaxes (Yang et al. 2018): the root of the sum of squares; decay in units of the
               sum over all kinds
    sgd        gradient descent with the same rates for every weight; it needs no statistics, and its rates were never published

Rates of one rule mean something else in another.
"""

from dataclasses import dataclass
from typing import Literal

from esscher.core.config import check_choices


@dataclass(frozen=True)
class Rates:
    """How fast weights learn, how fast they return to where they began, and what keeps steps of rare weights short."""

    learning_rate: float
    decay: float
    epsilon: float


PUBLISHED = {"original": Rates(5e-5, 0.002, 2e-5), "mos": Rates(0.002, 0.075, 0.001), "sgd": Rates(0.1, 0.0, 0.0)}


@dataclass(frozen=True)
class DynamicConfig:
    """How the weights learn from a text while it is read; a rate that is not given is the one published with the rule."""

    rule: Literal["original", "mos", "sgd"] = "original"
    """The published rules, or plain gradient descent."""
    learning_rate: float | None = None
    """Of one update: 5e-5 (original), 0.002 (mos), 0.1 (sgd)."""
    decay: float | None = None
    """How fast weights return to where they began: 0.002 (original), 0.075 (mos), 0 (sgd)."""
    epsilon: float | None = None
    """Added to the size of a weight's usual gradient: 2e-5 (original), 0.001 (mos)."""
    segment: int = 5
    """Tokens of a stream between two updates."""
    text: str | None = None
    """Where usual gradients are collected; by default the text that the model learnt from."""
    columns: int = 100
    """Columns of that text, or sequences, that make one gradient."""
    batches: int | None = None
    """Gradients at most; by default as many as the text has."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("segment", "columns", "batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is at least 1, not {value}. Nothing was measured.")
        for name in ("learning_rate", "decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} is at least 0, not {value}. Nothing was measured.")
        if self.rule == "sgd" and (self.epsilon is not None or self.rates.decay > 1):
            raise ValueError(
                f"Of sgd all weights have one rate: it has no epsilon, and a decay of at most 1; got epsilon = {self.epsilon}, "
                f"decay = {self.rates.decay}. Nothing was measured."
            )
        if self.rule != "sgd" and not 0 < self.rates.epsilon < float("inf"):
            raise ValueError(f"epsilon is more than 0, not {self.epsilon}. Nothing was measured.")

    @property
    def rates(self) -> Rates:
        """The rates, given or published."""
        usual = PUBLISHED[self.rule]
        return Rates(
            usual.learning_rate if self.learning_rate is None else self.learning_rate,
            usual.decay if self.decay is None else self.decay,
            usual.epsilon if self.epsilon is None else self.epsilon,
        )

    def __str__(self) -> str:
        rates = self.rates
        rest = "" if self.rule == "sgd" else f", epsilon {rates.epsilon:g}"
        return f"{self.rule}: learning rate {rates.learning_rate:g}, decay {rates.decay:g}{rest}"
