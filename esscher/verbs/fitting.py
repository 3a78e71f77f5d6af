"""Tilting a base by features: weights from moments, then fresh draws that say what the tilt did and whether to trust it.

found = fit_energy(base, features, data, {}, FitConfig(), rng=rng)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from esscher.draws import Draws
from esscher.energies.features import Feature, LogLinear, values
from esscher.estimate import Estimate
from esscher.estimators.divergences import divergences
from esscher.estimators.log_z import log_z
from esscher.estimators.moments import moments
from esscher.estimators.reliability import Reliability, reliability
from esscher.objectives.moment_descent import MomentDescent, base_source
from esscher.objectives.moment_fit import MomentFit
from esscher.objectives.moment_match import match_moments
from esscher.randomness import Rng
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Importance
from esscher.settings.tilt import FitConfig
from esscher.space import Sequences, empty_prompts
from esscher.target import Base, Tilted
from esscher.training.draws_in_pieces import collect
from esscher.training.progress import choose_progress


@dataclass(frozen=True)
class FittedEnergy:
    """Weights, and what fresh draws say of the tilted model; divergences are between it (first) and the base (second)."""

    target: Tilted
    fit: MomentFit
    moments: tuple[Estimate, ...]
    log_z: Estimate
    divergences: Mapping[str, Estimate]
    reliability: Reliability
    draws: Draws

    @property
    def warnings(self) -> list[str]:
        """What the reader must know before believing the weights."""
        trust = self.reliability
        poor = [] if trust.verdict == "good" else [f"The draws' weights are {trust.verdict}. {trust.advice}"]
        return [*map(str, self.fit.warnings), *poor]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each feature; the last moment comes from draws that the weights were not fitted on."""
        rows = zip(self.fit.rows(), self.moments, strict=True)
        return [{**{key: row[key] for key in row if key != "under the model"}, "tilted": fresh} for row, fresh in rows]


def fit_energy(
    base: Base,
    features: Sequence[Feature],
    data: Sequences | None,
    wanted: Mapping[str, float],
    config: FitConfig,
    *,
    rng: Rng,
    quiet: bool = True,
) -> FittedEnergy:
    """Weights under which the base has the features' means of the data, or those wanted; no prompt."""
    names, say = [feature.name for feature in features], choose_progress(quiet).say
    seen = None if data is None else values(features, data)
    nothing = empty_prompts(1)
    if config.regime == "newton":
        drawn = collect(Ancestral(), Tilted(base), nothing, config.draws, rng=rng.stream("fit"), say=say)
        fit = match_moments(names, values(features, drawn.x), seen, wanted=wanted, prior=config.prior, ridge=config.ridge)
    else:
        source = base_source(base, features, rng=rng.stream("fit"))
        descent = MomentDescent(config.regime)
        fit = descent(names, source, seen, wanted=wanted, prior=config.prior, rng=rng.stream("accept"))
    target = Tilted(base, LogLinear(features, fit.tensor()))
    fresh = collect(Importance(), target, nothing, config.draws, rng=rng.stream("judge"), say=say)
    under = moments(fresh, values(features, fresh.x).view(1, config.draws, len(names)))
    return FittedEnergy(target, fit, tuple(under), log_z(fresh), divergences(target, fresh), reliability(fresh)[0], fresh)
