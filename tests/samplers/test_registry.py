"""Every kind gives its sampler with its settings; listing the kinds and their settings imports no torch."""

import ast
import inspect
import subprocess
import sys
from dataclasses import fields
from itertools import pairwise

import pytest
from random_targets import random_target

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts
from esscher.samplers.accept_reject import Metropolis, QuasiRejection, Rejection
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.ladder import Ladder
from esscher.samplers.registry import SAMPLERS
from esscher.samplers.sir import SIR, AdaptiveSIR
from esscher.samplers.twists import FittedParticles, ParticleSIR

KINDS = {
    "ancestral": Ancestral(7),
    "importance": Importance(),
    "sir": SIR(7, shared=False),
    "adaptive-sir": AdaptiveSIR(3.0, 12, 12, shared=False),
    "rejection": Rejection(1.5),
    "quasi-rejection": QuasiRejection(1.5),
    "metropolis": Metropolis(9),
    "particles": ParticleSIR(7, 2, 1),
    "ladder": Ladder(7, 2, 0.4, 9),
    "exhaustive": Exhaustive(),
}


def test_every_kind_is_tried():
    assert list(SAMPLERS) == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_settings_survive_a_file(kind):
    values = SAMPLERS.to_dict(KINDS[kind])
    assert values["kind"] == kind
    assert SAMPLERS.from_dict(values) == KINDS[kind]


def test_defaults():
    assert SAMPLERS.default() == Ancestral()
    assert SAMPLERS.from_dict({"kind": "sir"}) == SIR(64, shared=True)
    assert SAMPLERS.from_dict({"kind": "adaptive-sir"}) == AdaptiveSIR(16.0, 16, 4096, shared=True)
    assert SAMPLERS.from_dict({"kind": "metropolis"}) == Metropolis(100)
    assert SAMPLERS.from_dict({"kind": "particles"}) == ParticleSIR(64, 8, 0)


def test_particles_are_sir_among_the_particles_of_one_run():
    target, prompts = random_target(Space(3, 4, eos=0)), empty_prompts(2)
    by_kind, by_hand = ParticleSIR(7, 2, 1), SIR(7, FittedParticles(2, 1), shared=True)
    drawn, expected = (sampler(target, prompts, 3, rng=SeededRng(0)) for sampler in (by_kind, by_hand))
    assert drawn.x.points() == expected.x.points() and drawn.cost == expected.cost
    (group,) = by_kind.choose(target, prompts, 3, rng=SeededRng(0))
    assert group.num_candidates == 7


def test_what_is_unknown_or_missing_is_an_error():
    with pytest.raises(ValueError, match=f"Unknown kind of sampler 'gibbs'; the known kinds are {', '.join(KINDS)}"):
        SAMPLERS.from_dict({"kind": "gibbs"})
    with pytest.raises(ValueError, match=r"Unknown key 'sampler.steps'; the known keys are sampler.num_candidates"):
        SAMPLERS.from_dict({"kind": "sir", "steps": 3}, "sampler.")
    for kind in ("rejection", "quasi-rejection"):
        with pytest.raises(ValueError, match="'log_bound' has no default and is missing"):
            SAMPLERS.from_dict({"kind": kind})
    with pytest.raises(ValueError, match="num_candidates is at least 1, not 0"):
        ParticleSIR(0)


def test_kinds_are_listed_without_torch():
    script = "import sys; from esscher.samplers.registry import SAMPLERS; list(SAMPLERS); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_is_documented_where_it_is_declared(kind):
    """The string after a field is its help on the command line."""
    cls = SAMPLERS[kind].config_class
    body = ast.parse(inspect.getsource(cls)).body[0].body
    documented = {
        item.target.id for item, after in pairwise(body) if isinstance(item, ast.AnnAssign) and isinstance(after, ast.Expr)
    }
    assert documented == {field.name for field in fields(cls)}
