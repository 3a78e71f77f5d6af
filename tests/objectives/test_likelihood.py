"""The gradient of the likelihood against exact enumeration, and a wrong objective that the comparison catches."""

import math

import pytest
import torch
from random_targets import PROMPTS, random_automaton

from esscher.bases.network import NetworkBase, build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.exact.enumeration import enumerate_points
from esscher.networks.recurrent_config import LstmConfig
from esscher.objectives.likelihood import Likelihood
from esscher.samplers.ancestral import draw

SPACES = [Space(3, 3), Space(3, 3, eos=0)]


def network(space: Space) -> NetworkBase:
    return build_base(LstmConfig(width=5, layers=1), space, rng=SeededRng(1)).double().eval()


def by_enumeration(base: NetworkBase, data: Sequences, smoothing: float) -> list[torch.Tensor]:
    """Gradient of the mean over tokens of -log of conditional probabilities, each a ratio of sums over whole points."""
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(data)):
        item = data.rows(slice(row, row + 1))
        start, point = int(item.start), item.points()[0]
        every = enumerate_points(base.space, item.prompts())
        probability = base.log_probs(every).sum(-1).exp()

        def mass(prefix, every=every, start=start, probability=probability):
            same = (every.tokens[:, start : start + len(prefix)] == torch.tensor(prefix)).all(-1)
            return probability[same & (every.lengths >= len(prefix))].sum()

        for t in range(len(point)):
            before = mass(point[:t])
            logs = torch.stack([(mass([*point[:t], v]) / before).log() for v in range(base.space.vocab_size)])
            total = total - (1 - smoothing) * logs[point[t]] - smoothing * logs.mean()
    return list(torch.autograd.grad(total / int(data.lengths.sum()), list(base.parameters())))


def gap(base: NetworkBase, objective, data: Sequences, smoothing: float) -> float:
    loss = objective(Tilted(base), data, rng=SeededRng(0))
    gradients = torch.autograd.grad(loss.value, list(base.parameters()))
    exact = by_enumeration(base, data, smoothing)
    return max(float((a - b).abs().max()) for a, b in zip(gradients, exact, strict=True))


def some_data(base: NetworkBase) -> Sequences:
    return draw(base, prompts_of(PROMPTS), 2, rng=SeededRng(5))[0]


@pytest.mark.parametrize("space", SPACES, ids=["fixed length", "end symbol"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradient_equals_enumeration(space, smoothing):
    base = network(space)
    assert gap(base, Likelihood(smoothing), some_data(base), smoothing) < 1e-12


def test_a_mean_over_sequences_is_caught():
    base = network(SPACES[1])

    def wrong(target, data, *, rng, step=0):
        actual = Likelihood()(target, data, rng=rng)
        per_row = -target.base.log_probs(data).sum(-1) / data.lengths
        return type(actual)(per_row.mean())

    data = some_data(base)
    assert len(set(data.lengths.tolist())) > 1
    assert gap(base, wrong, data, 0.0) > 1e-3


def test_exact_minimum_is_the_entropy():
    """Over every point, weighted by copying, the loss of the right base is its entropy per token; any other is larger."""
    space = Space(2, 3)
    truth = random_automaton(space)
    x = draw(truth, prompts_of([[]]), 4000, rng=SeededRng(1))[0]
    loss = Likelihood()(Tilted(truth), x, rng=SeededRng(0))
    every = enumerate_points(space)
    log_prob = truth.log_probs(every).sum(-1)
    entropy = -float((log_prob.exp() * log_prob).sum()) / 3
    spread = float((truth.log_probs(x).sum(-1) / 3).std()) / math.sqrt(4000)
    assert float(loss.value) == pytest.approx(entropy, abs=5 * spread)  # false alarm below 1e-6
    assert loss.count == 12000 and loss.metrics["nll"] == float(loss.value)


def test_errors():
    space = SPACES[1]
    with pytest.raises(ValueError, match="Automaton has no `logits`"):
        Likelihood(0.1)(Tilted(random_automaton(space)), sequences([[1, 0]]), rng=SeededRng(0))
    with pytest.raises(ValueError, match="None of the 2 sequences has a token"):
        Likelihood()(Tilted(network(space)), prompts_of([[1], [2]]), rng=SeededRng(0))
    with pytest.raises(ValueError, match="Label smoothing lies in"):
        Likelihood(1.0)
