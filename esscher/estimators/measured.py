"""How good a model is, in one call: cross-entropies of the base and of the tilted model, log Z, and whether to believe it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.draws import Draws, Sampler
from esscher.estimate import Estimate
from esscher.estimators.log_z import log_z
from esscher.estimators.perplexity import Test, cross_entropy, improvement
from esscher.estimators.reliability import Reliability, reliability
from esscher.estimators.replicates import prompt_names
from esscher.randomness import Rng
from esscher.space import Sequences
from esscher.target import Tilted, flat


@dataclass(frozen=True)
class Measured:
    """Nats by unit (`as_perplexity` turns them); what concerns the tilt is None for a base."""

    base: Mapping[str, Estimate]
    tilted: Mapping[str, Estimate] | None = None
    saved: Mapping[str, Estimate] | None = None  # by tilting, on the same sequences
    log_z: Estimate | None = None
    reliability: tuple[Reliability, ...] = ()
    draws: Draws | None = None

    @property
    def warnings(self) -> list[str]:
        """What the reader must know before believing the tilted numbers."""
        poor = [one for one in self.reliability if one.verdict != "good"]
        if not poor:
            return []
        worst = min(poor, key=lambda one: one.effective)
        return [f"{len(poor)} of {len(self.reliability)} prompts have {worst.verdict} weights. {worst.advice}"]


def measure(
    target: Tilted,
    x: Sequences,
    sampler: Sampler,
    draws: int,
    *,
    units: Mapping[str, Int[Tensor, "B"]] | None = None,
    test: Test = "sample",
    level: float = 0.95,
    rng: Rng,
) -> Measured:
    """Cross-entropies on the test sequences `x`; `draws` for each different prompt estimate its log Z."""
    if target.energy is flat:
        return Measured(cross_entropy(Tilted(target.base), x, units=units, test=test, level=level))
    first = torch.tensor(list({name: row for row, name in reversed(list(enumerate(prompt_names(x))))}.values()))
    drawn = sampler(target, x.prompts().rows(first), draws, rng=rng)
    return measure_by(drawn, target, x, units=units, test=test, level=level)


def measure_by(
    drawn: Draws,
    target: Tilted,
    x: Sequences,
    *,
    units: Mapping[str, Int[Tensor, "B"]] | None = None,
    test: Test = "sample",
    level: float = 0.95,
) -> Measured:
    """The same with draws that exist already, of each different prompt of `x`."""
    base = cross_entropy(Tilted(target.base), x, units=units, test=test, level=level)
    tilted = cross_entropy(target, x, draws=drawn, units=units, test=test, level=level)
    saved = improvement(target, x, drawn, units=units, test=test, level=level)
    value = log_z(drawn, prompts="same" if len(drawn.log_weight) == 1 else test, level=level)
    return Measured(base, tilted, saved, value, tuple(reliability(drawn)), drawn)
