"""How good a model is, in one call: cross-entropies of the base and of the tilted model by every method, log Z, and whether
to believe it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from esscher.draws import Draws, Sampler
from esscher.estimate import Estimate
from esscher.estimators.log_z import log_z, log_z_spread
from esscher.estimators.perplexity import (
    Test,
    Units,
    as_bits,
    as_perplexity,
    base_cross_entropy,
    cross_entropy,
    saved_by_tilting,
    tilted_cross_entropy,
    units_of,
)
from esscher.estimators.perplexity_bounds import bounded_cross_entropy, guaranteed_cross_entropy
from esscher.estimators.reliability import Reliability, reliability
from esscher.estimators.scored import scored
from esscher.randomness import Rng
from esscher.space import Sequences
from esscher.target import Tilted, flat


@dataclass(frozen=True)
class Measured:
    """Nats by unit (`as_perplexity` turns them); what concerns the tilt is None for a base.

    `bounds` and `guaranteed` need independent draws, and `guaranteed` an energy with known bounds. `spread` is the standard
    deviation of log Z over prompts, where there are several.
    """

    base: Mapping[str, Estimate]
    tilted: Mapping[str, Estimate] | None = None
    saved: Mapping[str, Estimate] | None = None  # by tilting, on the same sequences
    log_z: Estimate | None = None
    reliability: tuple[Reliability, ...] = ()
    draws: Draws | None = None
    bounds: Mapping[str, Estimate] | None = None
    guaranteed: Mapping[str, Estimate] | None = None
    spread: Estimate | None = None

    @property
    def warnings(self) -> list[str]:
        """What the reader must know before believing the tilted numbers."""
        poor = [one for one in self.reliability if one.verdict != "good"]
        if not poor:
            return []
        worst = self.reliability[self.worst(1)[0]]
        counts = {word: sum(one.verdict == word for one in poor) for word in ("unreliable", "doubtful")}
        words = " and ".join(f"{count} {word}" for word, count in counts.items() if count)
        return [f"{words} of {len(self.reliability)} prompts, by their weights. The worst: {worst.advice}"]

    def perplexities(self) -> list[dict[str, Any]]:
        """A row for each model, method and unit."""
        ways = (
            ("base", "interval", self.base),
            ("tilted", "interval", self.tilted),
            ("tilted", "bounds of the paper", self.bounds),
            ("tilted", "guarantee", self.guaranteed),
        )
        return [
            {"model": model, "per": per, "method": method, "perplexity": value, "bits": as_bits(nats)[per]}
            for model, method, nats in ways
            if nats is not None
            for per, value in as_perplexity(nats).items()
        ]

    def worst(self, count: int) -> list[int]:
        """Unreliable prompts, then doubtful ones, each with the fewest effective draws first."""
        poor = [
            (one.verdict == "doubtful", one.effective, row) for row, one in enumerate(self.reliability) if one.verdict != "good"
        ]
        return [row for *_, row in sorted(poor)[:count]]


def measure(
    target: Tilted,
    x: Sequences,
    sampler: Sampler,
    draws: int,
    *,
    units: Units | None = None,
    bounds: tuple[float, float] | None = None,
    test: Test = "sample",
    level: float = 0.95,
    rng: Rng,
) -> Measured:
    """Cross-entropies on the test sequences `x`; `draws` for each different prompt estimate its log Z.

    `bounds` hold -E(x) of every point, seen or not.
    """
    if target.energy is flat:
        return Measured(cross_entropy(Tilted(target.base), x, units=units, test=test, level=level))
    first = torch.tensor(list({name: row for row, name in reversed(list(enumerate(x.prompt_names())))}.values()))
    drawn = sampler(target, x.prompts().rows(first), draws, rng=rng)
    return measure_by(drawn, target, x, units=units, bounds=bounds, test=test, level=level)


def measure_by(
    drawn: Draws,
    target: Tilted,
    x: Sequences,
    *,
    units: Units | None = None,
    bounds: tuple[float, float] | None = None,
    test: Test = "sample",
    level: float = 0.95,
) -> Measured:
    """The same with draws that exist already, of each different prompt of `x`."""
    counts, score = units_of(x, units), scored(target, x, drawn)
    several, enough = score.contexts > 1, drawn.independent and drawn.log_weight.shape[1] > 1
    return Measured(
        base=base_cross_entropy(score.log_base, counts, test=test, level=level),
        tilted=tilted_cross_entropy(score, counts, test=test, level=level),
        saved=saved_by_tilting(score, counts, test=test, level=level),
        log_z=log_z(drawn, prompts=test if several else "same", level=level),
        reliability=tuple(reliability(drawn)),
        draws=drawn,
        bounds=bounded_cross_entropy(score, counts) if enough else None,
        guaranteed=guaranteed_cross_entropy(score, counts, bounds=bounds, level=level) if enough and bounds else None,
        spread=log_z_spread(drawn, level=level) if enough and several else None,
    )
