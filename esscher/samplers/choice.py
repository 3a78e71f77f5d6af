"""Samplers by name, for the command line and for settings in files; Python code builds them directly."""

from collections.abc import Callable
from dataclasses import dataclass

from esscher.draws import Sampler
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.exhaustive import Exhaustive
from esscher.samplers.importance import Importance
from esscher.samplers.metropolis import Metropolis
from esscher.samplers.pool import AdaptivePool, Pool
from esscher.samplers.rejection import QuasiRejection, Rejection
from esscher.samplers.twists import FittedParticles


@dataclass(frozen=True)
class SamplerSettings:
    """The settings that some samplers need; the others ignore them."""

    pool: int = 64
    steps: int = 100
    log_bound: float | None = None
    effective: float = 16.0
    largest: int = 4096
    shared: bool = False
    block: int = 8
    halvings: int = 0


def choose_sampler(name: str, settings: SamplerSettings) -> Sampler:
    """The sampler of that name; an unknown one is an error that lists them all.

    `particles` is a pool too: one cloud of `pool` particles for each prompt, from which the draws are chosen.
    """
    samplers: dict[str, Callable[[], Sampler]] = {
        "ancestral": Ancestral,
        "importance": Importance,
        "pool": lambda: Pool(settings.pool, shared=settings.shared),
        "adaptive-pool": lambda: AdaptivePool(
            settings.effective, min(16, settings.largest), settings.largest, shared=settings.shared
        ),
        "rejection": lambda: Rejection(_bound(name, settings)),
        "quasi-rejection": lambda: QuasiRejection(_bound(name, settings)),
        "metropolis": lambda: Metropolis(settings.steps),
        "particles": lambda: Pool(settings.pool, FittedParticles(settings.block, settings.halvings), shared=True),
        "exhaustive": Exhaustive,
    }
    if name not in samplers:
        raise ValueError(f"No sampler named {name!r}. Nothing was drawn; choose from: {', '.join(samplers)}.")
    return samplers[name]()


def _bound(name: str, settings: SamplerSettings) -> float:
    if settings.log_bound is None:
        raise ValueError(f"The sampler {name!r} needs a bound on -E(x). Nothing was drawn; pass --log-bound.")
    return settings.log_bound
