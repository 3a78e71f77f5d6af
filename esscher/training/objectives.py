"""The objective that the settings of a run name."""

from collections.abc import Callable

from esscher.objective import Objective
from esscher.objectives.combine import Ramp
from esscher.objectives.eforcing import EForcing
from esscher.objectives.likelihood import Likelihood
from esscher.objectives.scheduled_sampling import ScheduledSampling
from esscher.samplers.ancestral import Ancestral
from esscher.training.objective_config import ObjectiveConfig


def build_objective(config: ObjectiveConfig, label_smoothing: float, steps: Callable[[int], int]) -> Objective:
    """The objective; `steps` tells the updates of so many epochs."""
    if config.kind == "likelihood":
        return Likelihood(label_smoothing)
    begin = steps(config.after_epochs) if config.after_epochs else config.after_steps or 0
    if config.kind == "eforcing":
        weight, draws = Ramp(0.0, config.weight, begin, begin), Ancestral(config.negatives)
        return EForcing(weight, config.decay, config.inner, config.clip, label_smoothing, config.counts, sampler=draws)
    share = Ramp(0.0, config.share, begin, begin + steps(config.rise_epochs))
    return ScheduledSampling(share, config.form, label_smoothing)
