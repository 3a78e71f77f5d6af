"""`measure`: all estimates of how good a model is on a test set, in one call.

They are the cross-entropies of the base and of the tilted model by every method, log Z, and the reliability of the weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from esscher.core.draws import Draws, Sampler
from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng
from esscher.core.space import Sequences
from esscher.core.target import Tilted, flat
from esscher.estimators.log_z import log_z, log_z_std
from esscher.estimators.perplexity import (
    TestSetMode,
    Units,
    as_bits,
    as_perplexity,
    base_cross_entropy,
    bounded_cross_entropy,
    cross_entropy,
    cross_entropy_reduction,
    guaranteed_cross_entropy,
    score_sequences,
    tilted_cross_entropy,
    unit_counts,
)
from esscher.estimators.reliability import Reliability, reliability


@dataclass(frozen=True)
class Measurement:
    """Cross-entropies in nats by unit (see `as_perplexity`); all fields but `base` are empty for a model without an energy.

    `bounds`, `guaranteed` and `log_z_std` need independent draws; `guaranteed` also an energy with known bounds. `log_z_std` is
    the standard deviation of log Z over several prompts.
    """

    base: Mapping[str, Estimate]
    tilted: Mapping[str, Estimate] | None = None
    reduction: Mapping[str, Estimate] | None = None  # base minus tilted, on the same sequences
    log_z: Estimate | None = None
    reliability: tuple[Reliability, ...] = ()
    draws: Draws | None = None
    bounds: Mapping[str, Estimate] | None = None
    guaranteed: Mapping[str, Estimate] | None = None
    log_z_std: Estimate | None = None

    @property
    def warnings(self) -> list[str]:
        """Warnings about prompts whose weights are not reliable."""
        verdicts = [row.verdict for row in self.reliability]
        counts = {word: verdicts.count(word) for word in ("unreliable", "doubtful") if word in verdicts}
        if not counts:
            return []
        words = " and ".join(f"{count} {word}" for word, count in counts.items())
        advice = self.reliability[self.worst(1)[0]].advice
        return [f"{words} of {len(verdicts)} prompts, by their weights. The worst: {advice}"]

    def perplexities(self) -> list[dict[str, Any]]:
        """A table with a row for each model, method and unit."""
        methods = (
            ("base", "interval", self.base),
            ("tilted", "interval", self.tilted),
            ("tilted", "bounds of the paper", self.bounds),
            ("tilted", "guarantee", self.guaranteed),
        )
        return [
            {"model": model, "per": per, "method": method, "perplexity": value, "bits": as_bits(nats)[per]}
            for model, method, nats in methods
            if nats is not None
            for per, value in as_perplexity(nats).items()
        ]

    def worst(self, count: int) -> list[int]:
        """Up to `count` prompts: unreliable ones, then doubtful ones, each in ascending order of effective sample size."""
        flagged = [(row.verdict == "doubtful", row.ess, n) for n, row in enumerate(self.reliability) if row.verdict != "good"]
        return [n for *_, n in sorted(flagged)[:count]]


def measure(
    target: Tilted,
    x: Sequences,
    sampler: Sampler,
    draws: int,
    *,
    units: Units | None = None,
    bounds: tuple[float, float] | None = None,
    test: TestSetMode = "sample",
    confidence: float = 0.95,
    rng: Rng,
) -> Measurement:
    """Measure on the test sequences `x`, with `draws` for each different prompt to estimate its log Z.

    `bounds` are bounds of -E(x) over all points, drawn or not.
    """
    if target.energy is flat:
        return Measurement(cross_entropy(Tilted(target.base), x, units=units, test=test, confidence=confidence))
    first = torch.tensor(list({key: row for row, key in reversed(list(enumerate(x.prompt_keys())))}.values()))
    drawn = sampler(target, x.prompts().rows(first), draws, rng=rng)
    return measure_with_draws(drawn, target, x, units=units, bounds=bounds, test=test, confidence=confidence)


def measure_with_draws(
    drawn: Draws,
    target: Tilted,
    x: Sequences,
    *,
    units: Units | None = None,
    bounds: tuple[float, float] | None = None,
    test: TestSetMode = "sample",
    confidence: float = 0.95,
) -> Measurement:
    """`measure` with existing draws of each different prompt of `x`."""
    counts, score = unit_counts(x, units), score_sequences(target, x, drawn)
    several, enough = score.contexts > 1, drawn.independent and drawn.log_weight.shape[1] > 1
    return Measurement(
        base=base_cross_entropy(score.log_base, counts, test=test, confidence=confidence),
        tilted=tilted_cross_entropy(score, counts, test=test, confidence=confidence),
        reduction=cross_entropy_reduction(score, counts, test=test, confidence=confidence),
        log_z=log_z(drawn, prompts=test if several else "same", confidence=confidence),
        reliability=tuple(reliability(drawn)),
        draws=drawn,
        bounds=bounded_cross_entropy(score, counts) if enough else None,
        guaranteed=guaranteed_cross_entropy(score, counts, bounds=bounds, confidence=confidence) if enough and bounds else None,
        log_z_std=log_z_std(drawn, confidence=confidence) if enough and several else None,
    )
