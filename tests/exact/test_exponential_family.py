"""Exact exponential families against enumeration, autograd and the moments they were asked for."""

import math

import pytest
import torch
from exact.examples import SPACES, random_weighted
from random_targets import PROMPTS, random_automaton

from esscher.core.space import Sequences, Space, prompts_of
from esscher.core.target import Tilted
from esscher.exact import features
from esscher.exact.acceptors import accept_all
from esscher.exact.dynamic_programming import entropy, expectation, normalise
from esscher.exact.enumeration import tabulate
from esscher.exact.exponential_family import exact_moment_weights, exponential_family
from esscher.exact.languages import motif_process, white_noise
from esscher.testing import check_energy

WEIGHTS = torch.tensor([0.8, -1.1, 0.3, 1.7], dtype=torch.float64)


def four(space: Space) -> list[features.AutomatonFeature]:
    return [
        features.contains([1, 2], space),
        features.count([1], space),
        features.length(space),
        features.starts_with([2], space),
    ]


def energy_of(tallies, weights):
    def energy(x: Sequences) -> torch.Tensor:
        return -sum(weight * tally(x) for weight, tally in zip(weights, tallies, strict=True))

    return energy


def bases(space: Space):
    return {"automaton": random_automaton(space), "weighted": random_weighted(space, seed=8)}


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("kind", ["automaton", "weighted"])
def test_tilting_equals_enumeration(name, kind):
    space, prompts = SPACES[name], prompts_of(PROMPTS)
    base, tallies = bases(space)[kind], four(space)
    table = tabulate(Tilted(normalise(base), energy_of(tallies, WEIGHTS)), prompts)
    exact = exponential_family(base, tallies)
    assert torch.allclose(exact.log_z(WEIGHTS, prompts), table.log_z)
    model = exact.model(WEIGHTS)
    assert torch.allclose(model.log_probs(table.x).sum(-1).view(4, -1).exp(), table.log_prob.exp())
    assert torch.allclose(entropy(model, prompts), table.entropy)
    mean, covariance = exact.moments(WEIGHTS, prompts)
    means = torch.stack([table.expect(tally) for tally in tallies])
    assert torch.allclose(mean, means.mean(1))
    seconds = torch.stack([torch.stack([table.expect(lambda x, a=a, b=b: a(x) * b(x)) for a in tallies]) for b in tallies])
    assert torch.allclose(covariance, (seconds - means[:, None] * means).mean(-1), atol=1e-12)


def test_the_comparison_catches_features_that_read_the_prompt():
    space, prompts = SPACES["end symbol"], prompts_of(PROMPTS)
    base, tally = random_automaton(space), features.contains([1, 2], space)

    def with_prompt(x: Sequences) -> torch.Tensor:
        return -2.0 * tally(Sequences(x.tokens, torch.zeros_like(x.start), x.stop))

    table = tabulate(Tilted(base, with_prompt), prompts)
    actual = exponential_family(base, [tally]).log_z(torch.tensor([2.0], dtype=torch.float64), prompts)
    assert not torch.allclose(actual, table.log_z)


def test_gradient_of_log_z_is_the_moments_and_its_hessian_the_covariance():
    space = SPACES["end symbol"]
    exact = exponential_family(random_weighted(space, seed=3), four(space))
    mean, covariance = exact.moments(WEIGHTS)
    weights = WEIGHTS.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(exact.log_z(weights).sum(), weights)
    hessian = torch.autograd.functional.hessian(lambda w: exact.log_z(w).sum(), weights)
    assert torch.allclose(gradient, mean)
    assert torch.allclose(hessian, covariance)


def test_a_tally_is_an_energy():
    space = SPACES["end symbol"]
    x = tabulate(Tilted(random_automaton(space)), prompts_of(PROMPTS)).x.rows(torch.arange(0, 124, 3))
    for tally in [*four(space), features.lacks([2, 1], space), features.indicator("all", accept_all(3), space)]:
        check_energy(tally, x)


def test_tallies_count_as_plain_python_does():
    space = SPACES["end symbol last"]
    x = tabulate(Tilted(random_automaton(space)), prompts_of([[], [1, 0]])).x
    words = ["".join(map(str, point)) for point in x.points()]
    expected = {
        features.contains([1, 0], space): ["10" in w for w in words],
        features.contains([1, 2], space): ["12" in w for w in words],  # before the end symbol
        features.starts_with([0, 0], space): [w.startswith("00") for w in words],
        features.count([0, 0], space): [sum(w[k : k + 2] == "00" for k in range(len(w))) for w in words],
        features.length(space): [len(w) for w in words],
    }
    for tally, values in expected.items():
        assert tally(x).tolist() == [float(v) for v in values], tally.name


@pytest.mark.parametrize("kind", ["automaton", "weighted"])
@pytest.mark.parametrize("name", SPACES)
def test_lambda_is_recovered_from_its_moments(name, kind):
    space = SPACES[name]
    tallies = four(space) if space.eos is not None else [four(space)[k] for k in (0, 1, 3)]  # there the length is fixed
    weights = WEIGHTS[: len(tallies)]
    for prompts in (None, prompts_of(PROMPTS)):
        mean, _ = exponential_family(bases(space)[kind], tallies).moments(weights, prompts)
        assert torch.allclose(exact_moment_weights(bases(space)[kind], tallies, mean, prompts), weights, atol=1e-9)


def test_lambda_of_the_motif_in_white_noise_has_a_closed_form():
    """One binary feature: lambda = logit(wanted) - logit(base), here for a motif that white noise almost never has."""
    for motif, length in (("10001011111000", 30), ("0110" * 10, 50)):
        process = motif_process(motif, length)
        noise = white_noise(2, length)
        share = math.exp(process.log_share)
        (weight,) = exact_moment_weights(noise, [features.contains(process.tokens, noise.space)], torch.tensor([0.9])).tolist()
        assert weight == pytest.approx(math.log(0.9 / 0.1) - math.log(share / (1 - share)), rel=1e-6)


def test_features_of_the_paper_in_white_noise():
    """Motif, super-motif, sub-motif and distractors: moments are met, and a distractor at its base moment gets weight 0."""
    process, noise = motif_process("1000101", 20), white_noise(2, 20)
    motifs = [process.tokens, [*process.tokens, 0], process.tokens[:3], [0, 0, 1, 1, 0]]
    tallies = [*(features.lacks(motif, noise.space) for motif in motifs), features.starts_with([0], noise.space)]
    mixture = motif_process("1000101", 20, mixture=0.9)
    wanted = torch.cat([expectation(mixture.base, tally) for tally in tallies])
    weights = exact_moment_weights(noise, tallies, wanted)
    reached, _ = exponential_family(noise, tallies).moments(weights)
    assert torch.allclose(reached, wanted, atol=1e-12)
    assert float(weights[0]) < -4
    assert weights[1:].abs().max() < 1e-6  # the mixture is white noise tilted by the motif alone


def test_impossible_moments_name_the_feature():
    space = SPACES["end symbol"]
    base = random_automaton(space)
    motif, longer = features.contains([1, 2], space, name="motif"), features.contains([1, 2, 1], space, name="longer")
    always = features.indicator("always", accept_all(3), space)
    length = features.length(space)
    for tallies, moments, message in [
        ([length, motif], [2.0, 1.0], r"feature 'motif' the moment 1: .* range from 0 to 1"),
        ([length, motif], [4.5, 0.5], r"feature 'length' the moment 4.5: .* range from 1 to 4"),
        ([motif, always], [0.3, 0.9], r"feature 'always' .* always 1"),
        ([motif, longer], [0.3, 0.4], r"together.*'motif'.*'longer'"),
        ([motif, longer], [0.3, 0.3], r"together.*'motif'.*'longer'"),
        ([length, length], [2.5, 2.6], r"together.*'length'"),
        ([length], [2.5, 2.6], r"1 features need as many moments"),
    ]:
        with pytest.raises(ValueError, match=message):
            exact_moment_weights(base, tallies, torch.tensor(moments))


def test_dependent_and_constant_features_do_not_stop_the_search():
    space = SPACES["end symbol"]
    base, length = random_automaton(space), features.length(space)
    always = features.indicator("always", accept_all(3), space)
    item = exact_moment_weights(base, [length], torch.tensor([2.5]))
    assert torch.allclose(exact_moment_weights(base, [length, length], torch.tensor([2.5, 2.5])).sum(), item[0])
    assert torch.allclose(
        exact_moment_weights(base, [length, always], torch.tensor([2.5, 1.0])), torch.tensor([float(item), 0.0]).double()
    )


def test_spaces_must_agree():
    with pytest.raises(ValueError, match="Feature 'length' is about"):
        exponential_family(random_automaton(Space(3, 3)), [features.length(Space(3, 4))])
    with pytest.raises(ValueError, match="at least one feature"):
        exponential_family(random_automaton(Space(3, 3)), [])
