"""Tables of all points: totals, conditionals and divergences, for automata and for a neural base and energy."""

import pytest
import torch
from random_targets import PROMPTS, random_automaton, random_target, taste

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of
from esscher.core.target import Tilted
from esscher.exact.enumeration import count_points, enumerate_points, tabulate
from esscher.samplers.ancestral import draw

SPACES = {"fixed length": Space(3, 4), "end symbol": Space(3, 4, eos=0), "end symbol in the middle": Space(4, 3, eos=2)}


@pytest.mark.parametrize("name", SPACES)
def test_enumeration_lists_every_point_once(name):
    space = SPACES[name]
    points = [tuple(point) for point in enumerate_points(space).points()]
    assert len(set(points)) == len(points) == count_points(space)
    for point in points:
        assert space.eos not in point[:-1]
        assert len(point) == space.max_length or point[-1] == space.eos


@pytest.mark.parametrize("name", SPACES)
def test_conditionals_multiply_to_the_tilted_probability(name):
    space = SPACES[name]
    prompts = [prompt for prompt in PROMPTS if space.eos not in prompt]
    table = tabulate(random_target(space), prompts_of(prompts))
    assert torch.allclose(table.log_prob.exp().sum(-1), torch.ones(len(prompts), dtype=torch.float64))
    row = torch.arange(len(prompts)).repeat_interleave(count_points(space))
    log_probs = table.log_probs(table.x, row)
    assert torch.allclose(log_probs.sum(-1), table.log_prob.view(-1))
    assert bool((log_probs[~table.x.counted] == 0).all())
    for length in range(space.max_length):
        total = torch.logsumexp(table.log_next(length), -1)
        assert torch.allclose(total, torch.zeros_like(total), atol=1e-12)
    with pytest.raises(ValueError, match="room for a token"):
        table.log_next(space.max_length)


def test_conditionals_equal_sums_over_points():
    """p(x_2 = v | x_1 = u) by adding up points, and the check fails on the base's own conditionals."""
    space = SPACES["end symbol in the middle"]
    target = random_target(space)
    table = tabulate(target)
    points, mass = table.x.points(), table.log_prob[0].exp()
    for number, first in enumerate([0, 1, 3]):
        prefix_model = sum(float(m) for p, m in zip(points, mass, strict=True) if p[0] == first)
        for v in range(4):
            both = sum(float(m) for p, m in zip(points, mass, strict=True) if p[0] == first and p[1:2] == [v])
            assert float(table.log_next(1)[0, number, v].exp()) == pytest.approx(both / prefix_model)
    base_only = tabulate(Tilted(target.base)).log_next(1)
    assert not torch.allclose(base_only, table.log_next(1), atol=1e-2)


def test_without_an_energy_the_conditionals_are_the_base():
    space = SPACES["end symbol"]
    base = random_automaton(space)
    table = tabulate(Tilted(base), prompts_of([[1]]))
    x, _ = draw(base, prompts_of([[1]] * 20), 1, rng=SeededRng(0))
    assert torch.allclose(table.log_probs(x), base.log_probs(x))
    assert torch.allclose(table.log_z, torch.zeros(1, dtype=torch.float64), atol=1e-12)


class Recurrent(torch.nn.Module):
    """A small neural base, float32, defined only by its scores."""

    def __init__(self, space: Space):
        super().__init__()
        self.space = space
        self.cell = torch.nn.GRU(space.vocab_size + 1, 8, batch_first=True)
        self.out = torch.nn.Linear(8, space.vocab_size)

    def log_probs(self, x: Sequences) -> torch.Tensor:
        before = torch.nn.functional.pad(x.tokens, (1, -1), value=self.space.vocab_size)
        hidden, _ = self.cell(torch.nn.functional.one_hot(before, self.space.vocab_size + 1).float())
        log_prob = torch.log_softmax(self.out(hidden), -1).gather(2, x.tokens[..., None])[..., 0]
        return torch.where(x.counted, log_prob, 0.0)

    def begin(self, prompts):
        raise NotImplementedError

    advance = select = begin


def test_neural_base_and_energy_and_its_exact_gradient():
    """2^13 points; d log Z / d theta of a scaled energy is -E_p[E]."""
    space = Space(2, 13)
    with SeededRng(1).fork_torch_rng():
        base = Recurrent(space)
    energy = taste(space)
    table = tabulate(Tilted(base, energy))
    assert table.log_base.shape == (1, 2**13)
    assert float(table.log_base.exp().sum()) == pytest.approx(1, abs=1e-5)
    scale = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    log_z = tabulate(Tilted(base, lambda x: scale * energy(x)), gradients=True).log_z
    assert torch.allclose(log_z, table.log_z)
    (slope,) = torch.autograd.grad(log_z.sum(), scale)
    assert float(slope) == pytest.approx(-float(table.expect(energy)))
    assert not table.log_z.requires_grad


def test_divergences():
    space, prompts = SPACES["end symbol"], prompts_of(PROMPTS)
    p, q = (tabulate(random_target(space, seed=seed), prompts) for seed in (7, 8))
    a, b = p.log_prob.exp(), q.log_prob.exp()
    assert torch.allclose(p.kl(q), (a * (a / b).log()).sum(-1))
    assert torch.allclose(p.total_variation(q), torch.clamp(a - b, min=0).sum(-1))
    assert torch.allclose(p.kl(p), torch.zeros(4, dtype=torch.float64), atol=1e-12)
    with pytest.raises(ValueError, match="same prompts"):
        p.kl(tabulate(random_target(space)))


def test_forbidden_points_count_for_nothing():
    space = SPACES["end symbol"]

    def short(x: Sequences) -> torch.Tensor:
        return torch.where(x.lengths > 2, torch.inf, 0.0)

    base = random_automaton(space)
    table, free = tabulate(Tilted(base, short)), tabulate(Tilted(base))
    assert float(table.expect(lambda x: x.lengths > 2)) == 0
    assert bool(torch.isfinite(table.entropy).all()) and bool(torch.isfinite(table.kl(free)).all())
    assert float(free.kl(table)) == torch.inf
    assert bool((table.log_next(2) == -torch.inf).all())
    with pytest.raises(ValueError, match="forbids every point after 1 of 1"):
        tabulate(Tilted(base, lambda x: torch.full((len(x),), torch.inf)))


def test_too_large_a_space_is_refused():
    with pytest.raises(ValueError, match="enumeration stops at"):
        tabulate(Tilted(random_automaton(Space(2, 30))))
