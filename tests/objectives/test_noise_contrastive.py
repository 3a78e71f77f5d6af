"""Noise-contrastive estimation: exact gradients, the log-ratio as its optimum, and training that ends near the entropy."""

import math

import pytest
import torch
from marks import slow
from random_targets import PROMPTS, random_automaton, taste
from torch import nn
from torch.nn.functional import softplus

from esscher.bases.ngram import fit_ngram
from esscher.core.objective import Loss
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of, refuse_foreign, sequences
from esscher.core.target import Tilted
from esscher.energies.config import EnergyConfig
from esscher.energies.features import LogLinear, contains, length
from esscher.energies.network import build_energy
from esscher.exact.automaton import Automaton
from esscher.exact.enumeration import count_points, enumerate_points
from esscher.networks.transformer_config import TransformerConfig
from esscher.objectives.noise_contrastive import NoiseContrast, shorter_prompts
from esscher.samplers.ancestral import Ancestral, draw
from esscher.samplers.importance import Exhaustive
from esscher.testing import check_objective, every_outcome
from esscher.testing.statistics import point_number
from esscher.training.config import TrainingConfig
from esscher.training.trainer import Trainer

SPACE = Space(3, 4, eos=0)
LAW = "gradient must be that of the exact loss"


class Table(nn.Module):
    """A number for each point of a space, whatever the prompt: an energy that can be anything."""

    def __init__(self, space: Space, values: torch.Tensor | None = None):
        super().__init__()
        self.space = space
        self.values = nn.Parameter(torch.zeros(count_points(space), dtype=torch.float64) if values is None else values)

    def forward(self, x: Sequences) -> torch.Tensor:
        return self.values[point_number(self.space, x)]


def some_data(prompts: list[list[int]] = PROMPTS) -> Sequences:
    every = enumerate_points(SPACE, prompts_of(prompts))
    return every.rows(SeededRng(2).permutation(len(every))[:12])


def exact_binary(target: Tilted, data: Sequences, count: int, noise=None):
    """The loss written down: a sum over every point after each row's prompt, with the noise's own probabilities."""
    noise = target.base if noise is None else noise

    def log_ratio(x: Sequences) -> torch.Tensor:
        return target.log_score(x) - noise.log_probs(x).sum(-1)

    def loss() -> torch.Tensor:
        every = enumerate_points(SPACE, data.prompts())
        share = noise.log_probs(every).sum(-1).exp().view(len(data), -1)
        others = (share * softplus(log_ratio(every).view(len(data), -1) - math.log(count))).sum(-1)
        return (softplus(math.log(count) - log_ratio(data)) + count * others).mean()

    return loss


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("other_noise", [False, True], ids=["noise of the base", "other noise"])
def test_the_gradient_is_the_exact_one(count, other_noise):
    energy = LogLinear([contains([1, 2]), length()], torch.tensor([0.7, -0.3]))
    target, data = Tilted(random_automaton(SPACE), energy), some_data()
    noise = random_automaton(SPACE, seed=9) if other_noise else None
    exact, weights = exact_binary(target, data, count, noise), [energy.weights]
    right = NoiseContrast(Exhaustive(), negatives=count, noise=noise)
    check_objective(right, target, data, exact, weights, rng=SeededRng(0))
    actual = right(target, data, rng=SeededRng(0))
    assert float(actual.value.detach()) == pytest.approx(float(exact().detach()))
    assert actual.count == len(data)

    def no_count(target, data, *, rng, step=0):
        item, many = (NoiseContrast(Exhaustive(), negatives=k, noise=noise) for k in (1, count))
        return Loss(item(target, data, rng=rng).value * (1 if count == 1 else many.negatives))

    def flipped(target, data, *, rng, step=0):
        return right(Tilted(target.base, lambda x: -target.energy(x)), data, rng=rng)

    def wrong_noise(target, data, *, rng, step=0):
        return NoiseContrast(Exhaustive(), negatives=count, noise=None if other_noise else random_automaton(SPACE, seed=9))(
            target, data, rng=rng
        )

    wrong = [flipped, wrong_noise, NoiseContrast(negatives=count, noise=noise), *([no_count] if count > 1 else [])]
    for item in wrong:
        with pytest.raises(AssertionError, match=LAW):
            check_objective(item, target, data, exact, weights, rng=SeededRng(0))


def test_one_negative_is_the_plain_loss():
    target, data = Tilted(random_automaton(SPACE), taste(SPACE)), some_data()
    x, _ = draw(target.base, data.prompts(), 1, rng=SeededRng(4))
    expected = (softplus(target.energy(data)) + softplus(-target.energy(x))).mean()
    actual = NoiseContrast()(target, data, rng=SeededRng(4))
    assert float(actual.value) == pytest.approx(float(expected))
    right = ((target.energy(data) < 0).double() + (target.energy(x) >= 0).double()) / 2
    assert actual.metrics["accuracy"] == pytest.approx(float(right.mean()))
    assert actual.metrics["energy_data"] == pytest.approx(float(target.energy(data).mean()))
    assert actual.metrics["energy_noise"] == pytest.approx(float(target.energy(x).mean()))
    assert actual.metrics["log_z"] == pytest.approx(float(torch.logsumexp(-target.energy(x), 0) - math.log(len(x))))


@pytest.mark.parametrize("form", ["binary", "ranking"])
def test_fresh_negatives_on_every_outcome(form):
    """No statistics: the mean over all outcomes of the dice is the sum over all pairs of negatives."""
    space = Space(2, 2, eos=0)
    target, data = Tilted(random_automaton(space), taste(space)), sequences([[1, 0]])
    objective = NoiseContrast(negatives=2, form=form)
    actual = sum(p * float(loss.value) for p, loss in every_outcome(lambda rng: objective(target, data, rng=rng)))
    every = enumerate_points(space)
    share, ratio, own = target.base.log_probs(every).sum(-1).exp(), -target.energy(every), -target.energy(data)
    expected = 0.0
    for index in range(len(every)):
        for other in range(len(every)):
            pair = torch.stack([ratio[index], ratio[other]])
            if form == "binary":
                loss = softplus(math.log(2) - own) + softplus(pair - math.log(2)).sum()
            else:
                loss = torch.logsumexp(torch.cat([own, pair]), 0) - own
            expected += float(share[index] * share[other] * loss)
    assert actual == pytest.approx(expected)


def with_counts() -> tuple[Sequences, torch.Tensor]:
    """Data in which every point occurs, some more often; and the share of each."""
    counts = torch.arange(count_points(SPACE)) % 4 + 1
    return enumerate_points(SPACE).rows(torch.arange(len(counts)).repeat_interleave(counts)), counts.double() / counts.sum()


@pytest.mark.parametrize("count", [1, 5])
def test_the_optimum_is_the_log_ratio(count):
    """Where a exp(-E) is the distribution of the data the exact gradient is 0, and nowhere a constant away."""
    base, (data, share) = random_automaton(SPACE), with_counts()
    log_ratio = base.log_probs(enumerate_points(SPACE)).sum(-1) - share.log()

    def steepness(energy: Table, form: str) -> tuple[float, dict]:
        loss = NoiseContrast(Exhaustive(), negatives=count, form=form)(Tilted(base, energy), data, rng=SeededRng(0))
        return float(torch.autograd.grad(loss.value, [energy.values])[0].abs().max()), loss.metrics

    slope, metrics = steepness(Table(SPACE, log_ratio), "binary")
    assert slope < 1e-12 and metrics["log_z"] == pytest.approx(0, abs=1e-9)
    assert steepness(Table(SPACE, log_ratio + 0.1), "binary")[0] > 1e-4
    tilted = log_ratio + 0.1 * torch.linspace(-1, 1, len(log_ratio), dtype=torch.float64)
    assert steepness(Table(SPACE, tilted), "binary")[0] > 1e-4


def test_ranking_leaves_a_constant_free_and_finds_the_ratio():
    """Newton on the exact mean over all pairs: the energies found differ from the log-ratio by one constant."""
    space = Space(2, 2, eos=0)
    base, every = random_automaton(space), enumerate_points(space)
    share = torch.tensor([0.4, 0.1, 0.2, 0.3], dtype=torch.float64)[: len(every)]
    share, noise = share / share.sum(), base.log_probs(every).sum(-1).exp()

    def mean_loss(values: torch.Tensor) -> torch.Tensor:
        ratio = -values
        pairs = torch.logaddexp(ratio[:, None], ratio[None]) - ratio[:, None]
        return (share[:, None] * noise[None] * pairs).sum()

    star = base.log_probs(every).sum(-1) - share.log()
    for shift in (0.0, 0.7):
        (slope,) = torch.autograd.grad(mean_loss(item := (star + shift).requires_grad_()), [item])
        assert float(slope.abs().max()) < 1e-12
    objective, target = NoiseContrast(form="ranking"), Tilted(base, Table(space, star + 0.3))
    total = 0.0
    for row, weight in enumerate(share.tolist()):
        data = every.rows(slice(row, row + 1))
        total += weight * sum(
            p * float(loss.value.detach()) for p, loss in every_outcome(lambda rng, x=data: objective(target, x, rng=rng))
        )
    assert total == pytest.approx(float(mean_loss(star + 0.3)))


@pytest.mark.parametrize(
    ("kind", "network", "steps", "learning_rate"),
    [
        ("bidirectional", TransformerConfig(16, 2, 2, 32), 150, 0.01),
        slow("unidirectional", TransformerConfig(32, 2, 2, 64), 500, 0.005),
    ],
    ids=["bidirectional", "unidirectional"],
)
def test_training_comes_within_three_percent_of_the_entropy(kind, network, steps, learning_rate):
    """Data of an automaton, a unigram model of 90 of them as the base, prompts of three lengths: exact cross-entropies."""
    prompts = prompts_of([[], [1], [2, 1]])
    generator = torch.Generator().manual_seed(27)
    log_emission = torch.log_softmax(1.5 * torch.randn(4, 3, generator=generator, dtype=torch.float64), -1)
    truth = Automaton(log_emission, torch.randint(4, (4, 3), generator=generator), SPACE)
    base = fit_ngram(draw(truth, prompts, 30, rng=SeededRng(0))[0], SPACE, order=1)
    data, _ = draw(truth, prompts, 4000, rng=SeededRng(1))
    energy = build_energy(EnergyConfig(kind, "sum", network), base, rng=SeededRng(2))
    target, every = Tilted(base, energy), enumerate_points(SPACE, prompts)
    log_p = truth.log_probs(every).sum(-1).view(3, -1)
    entropy = -(log_p.exp() * log_p).sum(-1).mean()

    def measured() -> tuple[float, torch.Tensor]:
        """The joint cross-entropy over the entropy, and log Z after each prompt."""
        with torch.no_grad():
            score = target.log_score(every).double().view(3, -1)
        cross = -(log_p.exp() * torch.log_softmax(score, -1)).sum(-1).mean()
        return float(cross / entropy), torch.logsumexp(score, -1)

    ratio, log_z = measured()
    assert ratio > 1.2 and float(log_z.abs().max()) < 1e-6  # the base itself
    settings = TrainingConfig(
        steps=steps, batch_size=128, learning_rate=learning_rate, optimizer="adam", schedule="cosine", warmup_steps=10
    )
    Trainer(settings)(NoiseContrast(negatives=2), target, data, modules=energy)
    energy.eval()
    ratio, log_z = measured()
    assert ratio < 1.03 and float(log_z.abs().max()) < 0.15


def test_mixed_prefixes_shorten_prompts_and_keep_points_of_the_space():
    x = sequences([[1, 2, 1, 0], [2, 2, 2, 2], [1, 0]], [[2, 1, 1, 2], [1, 1, 2, 2], []])
    seen = set()
    for seed in range(20):
        actual = shorter_prompts(x, (0, 2, 4, 9), SPACE, rng=SeededRng(seed))
        refuse_foreign(actual, SPACE)
        assert actual.start.tolist()[2] == 0 and set(actual.start.tolist()[:2]) <= {0, 2, 4}
        assert torch.equal(actual.tokens, x.tokens)
        seen.update(actual.start.tolist()[:2])
    assert seen == {0, 2, 4}
    ended = shorter_prompts(sequences([[1, 1, 1, 1]], [[2, 0, 1]]), (0,), SPACE, rng=SeededRng(0))
    assert ended.points() == [[2, 0]]  # an end symbol within the old prompt ends the new point
    same = shorter_prompts(x.rows(slice(2, 3)), (3,), SPACE, rng=SeededRng(0))
    assert same.points() == [[1, 0]]
    rows = []

    def watched(x):
        rows.append(x)
        return taste(SPACE)(x)

    NoiseContrast(negatives=2, prefixes=(1, 3))(Tilted(random_automaton(SPACE), watched), x.rows(slice(0, 2)), rng=SeededRng(3))
    starts = rows[0].start.tolist()
    assert set(starts) <= {1, 3} and starts[2:] == [starts[0]] * 2 + [starts[1]] * 2  # negatives follow the same prompts


def test_errors():
    target = Tilted(random_automaton(SPACE), taste(SPACE))
    with pytest.raises(ValueError, match="no sequence to learn from"):
        NoiseContrast()(target, sequences([]), rng=SeededRng(0))
    with pytest.raises(ValueError, match="at least 1 negative, not 0"):
        NoiseContrast(negatives=0)
    with pytest.raises(ValueError, match="0 tokens or more"):
        NoiseContrast(prefixes=(-1,))
    for points in ([[1, 2]], [[1, 0, 2, 1]], [[]], [[1, 1, 1, 1, 0]], [[1, 0, 0]]):
        with pytest.raises(ValueError, match=r"1 of 1 sequences are no points of the base's space.*cut the data"):
            NoiseContrast()(target, sequences(points), rng=SeededRng(0))
    refuse_foreign(sequences([[0], [1, 1, 1, 0], [1, 1, 1, 1]]), SPACE)
    refuse_foreign(sequences([[0, 0, 1, 0]]), Space(3, 4))
    with pytest.raises(ValueError, match="cannot use an energy"):
        Ancestral()(target, empty_prompts(1), 1, rng=SeededRng(0))
