"""Samplers by name, for the command line and for settings in files; Python code builds them directly."""

from dataclasses import dataclass

from esscher.draws import Sampler
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.exhaustive import Exhaustive
from esscher.samplers.importance import Importance
from esscher.samplers.metropolis import Metropolis
from esscher.samplers.particles import Particles
from esscher.samplers.pool import Pool
from esscher.samplers.rejection import QuasiRejection, Rejection


@dataclass(frozen=True)
class SamplerSettings:
    """The settings that some samplers need; the others ignore them."""

    pool: int = 64
    steps: int = 100
    log_bound: float | None = None


def choose_sampler(name: str, settings: SamplerSettings) -> Sampler:
    """The sampler of that name; an unknown one is an error that lists them all."""
    if name in ("rejection", "quasi-rejection"):
        if settings.log_bound is None:
            raise ValueError(f"The sampler {name!r} needs a bound on -E(x). Nothing was drawn; pass --log-bound.")
        return (Rejection if name == "rejection" else QuasiRejection)(settings.log_bound)
    samplers: dict[str, Sampler] = {
        "ancestral": Ancestral(),
        "importance": Importance(),
        "pool": Pool(settings.pool),
        "metropolis": Metropolis(settings.steps),
        "particles": Particles(),
        "exhaustive": Exhaustive(),
    }
    if name not in samplers:
        known = ", ".join([*samplers, "rejection", "quasi-rejection"])
        raise ValueError(f"No sampler named {name!r}. Nothing was drawn; choose from: {known}.")
    return samplers[name]
