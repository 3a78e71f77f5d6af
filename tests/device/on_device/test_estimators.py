"""Estimators of a model on the device: sequences go to its weights wherever they are, and the numbers are the CPU's."""

from dataclasses import fields, is_dataclass

import pytest
import torch
from marks import slow_except
from random_targets import PROMPTS
from small_networks import CONFIGS, lively

from esscher.core.device import place
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, prompts_of, unique_prompts
from esscher.core.target import Tilted
from esscher.decoding.beam_search import BeamSearch
from esscher.decoding.decoders import BestOfN, MinimumBayesRisk, RandomDraw
from esscher.energies.features import LogLinear, contains, count
from esscher.energies.self_energy import SelfEnergy
from esscher.estimators.continuations import next_tokens, prefix_log_probs
from esscher.estimators.expectations import divergences, quasi_rejection_gap
from esscher.estimators.exposure_bias import exposure, exposure_ratio
from esscher.estimators.log_prob_rank import log_prob_spectrum, next_log_probs
from esscher.estimators.log_z import log_z
from esscher.estimators.long_context import context_losses, stream_log_probs
from esscher.estimators.per_position import per_position
from esscher.estimators.perplexity import measure
from esscher.estimators.populations import compare_energies, populations, unique_ngrams
from esscher.estimators.reliability import reliability
from esscher.exact.enumeration import tabulate
from esscher.samplers.accept_reject import QuasiRejection
from esscher.samplers.ancestral import Ancestral, draw
from esscher.samplers.importance import Importance
from esscher.samplers.particles import Particles
from esscher.testing import check_sampler

DEVICE = torch.device("cuda", 0)
SPACE = Space(3, 4, eos=0)
STREAM = SeededRng(2).categorical(torch.zeros(1, 3), 60)[0]


def base():
    return lively(CONFIGS["gru, tied"], SPACE)


def linear() -> Tilted:
    return Tilted(base(), LogLinear([contains([1, 2]), count([2])], torch.tensor([0.8, -0.5])))


def data(rows: int = 20):
    return draw(base(), prompts_of(PROMPTS), rows, rng=SeededRng(1))[0]


def importance(target, x, draws=16):
    return Importance()(target, unique_prompts(x)[0], draws, rng=SeededRng(4))


def compared(target, x):
    pops = populations(x, importance(target, x))
    return compare_energies(target, pops, rng=SeededRng(3)), unique_ngrams(pops, (1, 2)), pops.ess()


def exposed(target, x):
    drawn = Ancestral()(Tilted(target.base), unique_prompts(x)[0], 20, rng=SeededRng(4))
    other = place(lively(CONFIGS["lstm, tied"], SPACE), next(target.base.parameters()).device)
    return exposure(target.base, x, drawn), exposure_ratio(target.base, other, x, greedy=False, rng=SeededRng(5))


ESTIMATORS = {  # of a tilted model and of sequences
    "prefix_log_probs": lambda target, x: prefix_log_probs(target, x.rows(slice(0, 6)), 16, rng=SeededRng(3)),
    "next_tokens": lambda target, x: next_tokens(target, x.rows(slice(25, 26)).prompts(), draws=16, rng=SeededRng(3)),
    "divergences": lambda target, x: divergences(target, importance(target, x), prompts="fixed", other=target.base),
    "quasi_rejection_gap": lambda target, x: quasi_rejection_gap(
        QuasiRejection(0.5)(target, x.prompts().rows(slice(0, 1)), 20, rng=SeededRng(3)), 0.5
    ),
    "exposure": exposed,
    "log_z": lambda target, x: log_z(importance(target, x), prompts="fixed"),
    "log_z of particles": lambda target, x: log_z(
        Particles(block=2)(target, x.prompts().rows(slice(0, 1)).repeat(8), 8, rng=SeededRng(3))
    ),
    "next_log_probs": lambda target, x: log_prob_spectrum(next_log_probs(target.base, STREAM, torch.arange(5, 40), 3).double()),
    "context_losses": lambda target, x: context_losses(target.base, STREAM, torch.arange(5, 40), (0, 1, 4)),
    "stream_log_probs": lambda target, x: stream_log_probs(target.base, STREAM, streams=3, segment=4, warm=8),
    "per_position": lambda target, x: per_position(target, x, Importance(), 8, rng=SeededRng(3)),
    "per_position, drawn": lambda target, x: per_position(target, x, Importance(), 8, enumerate_last=False, rng=SeededRng(3)),
    "measure": lambda target, x: measure(target, x, Importance(), 16, bounds=(-3.0, 3.0), rng=SeededRng(3)),
    "measure, base": lambda target, x: measure(Tilted(target.base), x, Importance(), 16, rng=SeededRng(3)),
    "populations": compared,
    "reliability": lambda target, x: reliability(importance(target, x)),
    "tabulate": lambda target, x: tabulate(target, unique_prompts(x)[0]),
}


def numbers(value):
    """All numbers of a result, which are on the CPU and, if tensors, exact to float64; sequences are left out."""
    if isinstance(value, torch.Tensor):
        assert value.device.type == "cpu"
        return value.double().flatten().tolist()
    if is_dataclass(value):
        values = [getattr(value, field.name) for field in fields(value) if field.name not in ("x", "space", "info")]
    else:
        values = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    if values is None:
        return [float(value)] if isinstance(value, int | float) else []
    return [number for item in values for number in numbers(item)]


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("name", slow_except(["log_z of particles", "measure"], ESTIMATORS))
def test_estimators(name, where):
    estimator = ESTIMATORS[name]
    expected = numbers(estimator(linear(), data()))
    actual = numbers(estimator(place(linear(), DEVICE), data().to(where)))
    assert len(expected) > 0 and actual == pytest.approx(expected, rel=1e-4, abs=1e-5, nan_ok=True)


DECODERS = {
    "beam": BeamSearch(3),
    "sample": RandomDraw(),
    "best-of-n": BestOfN(8),
    "mbr": MinimumBayesRisk(4, gain=lambda x: (x.lengths[:, None] == x.lengths[None, :]).double()),
}


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("name", slow_except(["beam"], DECODERS))
def test_decoders(name, where):
    """The chosen sequences are on the device of the prompts, their scores on the CPU."""
    prompts = prompts_of(PROMPTS)
    expected = DECODERS[name](linear(), prompts, rng=SeededRng(3))
    actual = DECODERS[name](place(linear(), DEVICE), prompts.to(where), rng=SeededRng(3))
    assert actual.x.tokens.device.type == where and actual.x.points() == expected.x.points()
    assert numbers(actual) == pytest.approx(numbers(expected), abs=1e-5)


def test_an_energy_with_a_twist():
    """The base of a self-energy is the base itself, on one device."""
    prompts = prompts_of(PROMPTS)
    tilted = [Tilted(item, SelfEnergy(item)) for item in (base(), place(base(), DEVICE))]
    results = [Particles(block=2)(target, prompts, 8, rng=SeededRng(3)) for target in tilted]
    assert results[0].x.points() == results[1].x.points()
    assert torch.allclose(results[0].log_weight, results[1].log_weight, atol=1e-5)


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_the_law_of_samplers(where):
    check_sampler(Importance(), place(linear(), DEVICE), empty_prompts(200).to(where), 4, rng=SeededRng(0))
