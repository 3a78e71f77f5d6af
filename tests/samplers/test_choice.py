"""Every name gives its sampler, with those of the settings that it needs."""

import pytest

from esscher.samplers.ancestral import Ancestral
from esscher.samplers.choice import SamplerSettings, choose_sampler
from esscher.samplers.exhaustive import Exhaustive
from esscher.samplers.importance import Importance
from esscher.samplers.metropolis import Metropolis
from esscher.samplers.pool import AdaptivePool, Pool
from esscher.samplers.rejection import QuasiRejection, Rejection
from esscher.samplers.twists import FittedParticles

SETTINGS = SamplerSettings(
    pool=7, steps=9, log_bound=1.5, effective=3.0, largest=12, shared=True, block=2, halvings=1
)  # fmt: skip
NAMED = {
    "ancestral": Ancestral(),
    "importance": Importance(),
    "pool": Pool(7, shared=True),
    "adaptive-pool": AdaptivePool(3.0, 12, 12, shared=True),
    "rejection": Rejection(1.5),
    "quasi-rejection": QuasiRejection(1.5),
    "metropolis": Metropolis(9),
    "particles": Pool(7, FittedParticles(2, 1), shared=True),
    "exhaustive": Exhaustive(),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_name_and_its_settings(name):
    assert choose_sampler(name, SETTINGS) == NAMED[name]


def test_pools_begin_small_and_are_their_own_unless_told():
    assert choose_sampler("adaptive-pool", SamplerSettings(largest=100)) == AdaptivePool(16.0, 16, 100, shared=False)
    assert choose_sampler("pool", SamplerSettings()) == Pool(64, shared=False)


def test_what_is_unknown_or_missing_is_told():
    with pytest.raises(ValueError, match=f"No sampler named 'gibbs'.*choose from: {', '.join(NAMED)}"):
        choose_sampler("gibbs", SETTINGS)
    for name in ("rejection", "quasi-rejection"):
        with pytest.raises(ValueError, match=f"'{name}' needs a bound.*--log-bound"):
            choose_sampler(name, SamplerSettings())
