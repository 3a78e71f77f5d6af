"""Every objective under the laws of objectives: this is their list, each with its loss written down without sampling."""

from functools import cache
from itertools import permutations
from typing import Any, NamedTuple

import pytest
import torch
from laws.parts import calls_give, check_complete, part_of, parts
from objectives.test_distil import Judged
from objectives.test_eforcing import base_of
from objectives.test_eforcing import exact as exact_eforcing
from objectives.test_noise_contrastive import exact_binary
from objectives.test_scheduled_sampling import mixtures
from objectives.test_tilted_likelihood import exact_loss, points_after
from random_targets import PROMPTS, random_automaton, random_target
from small_networks import lively
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from esscher.bases.network import build_base, with_factorization_order
from esscher.core.objective import Loss
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.energies.features import LogLinear, contains, length
from esscher.exact.enumeration import enumerate_points
from esscher.networks.recurrent_config import GruConfig, LstmConfig
from esscher.networks.transformer_config import XLNetConfig
from esscher.objectives.combine import WeightedObjective, WeightedSum
from esscher.objectives.config import EForcingConfig, PermutationLMConfig, ScheduledSamplingConfig
from esscher.objectives.distil import Distil, PolicyGradient, ReweightedDistil
from esscher.objectives.exposure_bias import EForcing, ScheduledSampling
from esscher.objectives.likelihood import Likelihood, TiltedLikelihood
from esscher.objectives.noise_contrastive import NoiseContrast
from esscher.objectives.permutation_lm import PermutationLM
from esscher.objectives.supervised import (
    ChoiceLikelihood,
    LabelledExamples,
    LabelLikelihood,
    RankingHinge,
    SpanLikelihood,
    SquaredError,
)
from esscher.papers.bad_gan.objective import Supervised
from esscher.papers.energy_gan.objectives import EnergyGan, FiniteGame, FiniteGan, Gan, half_square
from esscher.papers.games.networks import PlanarNets
from esscher.papers.games.points import Points
from esscher.samplers.importance import Exhaustive
from esscher.testing import check_objective

SPACE = Space(3, 3, eos=0)
TEACHER = random_target(SPACE)
DATA = sequences([[1, 2, 0], [0], [2, 2, 2]], [[1], [], [2, 1]])


class Tried(NamedTuple):
    """An objective, what it is given, and the loss written down; without an rng it is run on every outcome of its dice."""

    objective: Any
    target: Any
    data: Any
    exact: Any
    parameters: Any
    rng: SeededRng | None = None


def student(seed: int = 3):
    return build_base(LstmConfig(width=5, layers=1), SPACE, rng=SeededRng(seed)).double().eval()


def likelihood() -> Tried:
    base = student()
    return Tried(Likelihood(), Tilted(base), DATA, lambda: -base.log_probs(DATA).sum() / 7, list(base.parameters()))


def smoothed() -> Tried:
    base = student()

    def exact() -> Tensor:
        logs = base.logits(DATA).log_softmax(-1)
        drawn = logs.gather(-1, DATA.tokens[..., None])[..., 0]
        return -(0.8 * drawn + 0.2 * logs.mean(-1))[DATA.counted].sum() / 7

    return Tried(Likelihood(0.2), Tilted(base), DATA, exact, list(base.parameters()))


def tilted_likelihood() -> Tried:
    energy = LogLinear([contains([1, 2]), length()], torch.tensor([0.7, -0.3]))
    target, data = Tilted(random_automaton(Space(3, 4, eos=0)), energy), points_after(PROMPTS)
    return Tried(TiltedLikelihood(Exhaustive()), target, data, exact_loss(target, data), [energy.weights])


def noise_contrast() -> Tried:
    energy = LogLinear([contains([1, 2]), length()], torch.tensor([0.7, -0.3]))
    target, data = Tilted(random_automaton(Space(3, 4, eos=0)), energy), points_after(PROMPTS)
    return Tried(NoiseContrast(Exhaustive(), negatives=3), target, data, exact_binary(target, data, 3), [energy.weights])


def logs_of(base, prompts: Sequences) -> tuple[Tensor, Tensor]:
    """Of teacher and student, over all points after each prompt."""
    x = enumerate_points(SPACE, prompts)
    return TEACHER.log_score(x).view(len(prompts), -1).log_softmax(-1), base.log_probs(x).sum(-1).view(len(prompts), -1)


def distil() -> Tried:
    base, prompts = student(), prompts_of(PROMPTS)
    lengths = enumerate_points(SPACE, prompts).lengths.view(len(prompts), -1)

    def exact() -> Tensor:
        log_p, log_q = logs_of(base, prompts)
        return -(log_p.exp() * log_q).sum() / (log_p.exp() * lengths).sum()

    return Tried(Distil(TEACHER, Exhaustive()), Tilted(base), prompts, exact, list(base.parameters()))


def policy_gradient() -> Tried:
    base, prompts = student(), prompts_of(PROMPTS)

    def exact() -> Tensor:
        log_p, log_q = logs_of(base, prompts)
        return (log_q.exp() * (log_q - log_p)).sum(-1).mean()

    objective = PolicyGradient(TEACHER, "reverse-kl", sampler=Exhaustive())
    return Tried(objective, Tilted(base), prompts, exact, list(base.parameters()))


def reweighted() -> Tried:
    """Its data are draws of the teacher's base: here these come from the dice, so that the mean is over all of them."""
    base, every = student(), enumerate_points(SPACE, prompts_of([[1, 2]]))
    log_a, log_score = (item.detach() for item in (Judged.base.log_probs(every).sum(-1), Judged.teacher.log_score(every)))
    log_z = float(log_score.logsumexp(0))

    def objective(target, data, *, rng, step=0) -> Loss:
        row = int(rng.categorical(log_a[None]))
        return ReweightedDistil(Judged.teacher, log_z)(target, data.rows(slice(row, row + 1)), rng=rng)

    def exact() -> Tensor:
        return -(log_score.softmax(0) * base.log_probs(every).sum(-1)).sum() / SPACE.max_length

    return Tried(objective, Tilted(base), every, exact, list(base.parameters()))


def eforcing() -> Tried:
    base = base_of("transformer", Space(3, 3, eos=0))
    points = enumerate_points(base.space)
    data = points.rows(SeededRng(5).permutation(len(points))[:5])
    loss = exact_eforcing(base, data, weight=0.7, decay=0.8)
    return Tried(EForcing(EForcingConfig(0.7, 0.8), sampler=Exhaustive()), Tilted(base), data, loss, list(base.parameters()))


def scheduled_sampling(form: str) -> Tried:
    base = lively(GruConfig(6, 1, embedding=4), Space(2, 3)).double()
    point = [0, 1, 1]
    with torch.no_grad():
        mixed = mixtures(base, point, 0.3, form)

    def exact() -> Tensor:
        parts = [
            share * cross_entropy(base.logits(sequences([[*own, 0]]))[0], torch.tensor(point)) for own, share in mixed.items()
        ]
        return torch.stack(parts).sum()

    return Tried(
        ScheduledSampling(ScheduledSamplingConfig(0.3, form)), Tilted(base), sequences([point]), exact, list(base.parameters())
    )


def permuted_likelihood() -> Tried:
    base, point = lively(XLNetConfig(8, 1, 2, 16), Space(3, 3)).double(), [0, 2, 1]

    def exact() -> Tensor:
        orders = list(permutations(range(3)))
        actual = [
            with_factorization_order(base, order).log_probs(sequences([[point[place] for place in order]])) for order in orders
        ]
        return -torch.stack(actual).mean()

    return Tried(
        PermutationLM(PermutationLMConfig(1.0, "none")), Tilted(base), sequences([point]), exact, list(base.parameters())
    )


def combine() -> Tried:
    both = WeightedSum((WeightedObjective("plain", Likelihood(), 0.5), WeightedObjective("smooth", Likelihood(0.2), 2.0)))
    base = student()

    def exact() -> Tensor:
        logs = base.logits(DATA).log_softmax(-1)
        drawn = logs.gather(-1, DATA.tokens[..., None])[..., 0]
        return -(0.5 * drawn + 2 * (0.8 * drawn + 0.2 * logs.mean(-1)))[DATA.counted].sum() / 7

    return Tried(both, Tilted(base), DATA, exact, list(base.parameters()))


class Table(nn.Module):
    """Scores that are free: some for each row, told by its first token."""

    def __init__(self, *shape: int):
        super().__init__()
        self.values = nn.Parameter(SeededRng(7).normal(5, *shape).double())

    def forward(self, x: Sequences) -> Tensor:
        return self.values[x.tokens[:, 0]]


def labelled(objective, shape, label, exact, example=(0, 1, 2, 3, 4)) -> Tried:
    scores = Table(*shape)
    data = LabelledExamples(sequences([[0], [1, 1], [2], [3], [4]]), torch.as_tensor(label), torch.tensor(example))
    return Tried(objective, scores, data, lambda: exact(scores.values), [scores.values])


def span_loss(scores: Tensor) -> Tensor:
    """Answers of at most two tokens; column 0 stands for none, and here it is the answer of the first row."""
    total = []
    for row, answer in enumerate([(0, 0), (1, 1), (1, 2), (2, 3), (3, 3)]):
        spans = [(0, 0), *((i, j) for i in range(1, 4) for j in (i, i + 1) if j < 4)]
        weights = torch.stack([scores[row, i, 0] + scores[row, j, 1] for i, j in spans])
        total.append(weights.logsumexp(0) - scores[row, answer[0], 0] - scores[row, answer[1], 1])
    return torch.stack(total).mean()


def finite(objective, exact) -> Tried:
    game = FiniteGame(*(SeededRng(seed).normal(4).double().requires_grad_() for seed in (1, 2)))
    data = Points(torch.eye(4, dtype=torch.float64)[[0, 1, 1, 3]])
    share = torch.tensor([0.25, 0.5, 0.0, 0.25], dtype=torch.float64)
    players = {"discriminator": [game.cost], "generator": [game.logits]}
    return Tried(objective, game, data, lambda: exact(game.cost, game.prob, share), players)


def finite_energy(cost: Tensor, p: Tensor, share: Tensor) -> dict[str, Tensor]:
    return {"discriminator": ((share - p) * cost).sum(), "generator": (p * cost).sum() + 0.3 * (p**2).sum() / 2}


def finite_plain(cost: Tensor, p: Tensor, share: Tensor) -> dict[str, Tensor]:
    output = -(share * torch.sigmoid(-cost).log()).sum() - (p * torch.sigmoid(cost).log()).sum()
    return {"discriminator": output, "generator": -(p * torch.sigmoid(-cost).log()).sum()}


def planar(objective, exact) -> Tried:
    """A game of networks: the noise is that of its seed, and written down with it."""
    game = PlanarNets(width=8, noise_size=3).build(inference=False, rng=SeededRng(2))
    data, rng = Points(SeededRng(4).normal(16, 2)), SeededRng(3)
    players = {name: list(getattr(game, name).parameters()) for name in ("discriminator", "generator")}

    def loss() -> dict[str, Tensor]:
        made = game.generator(game.generator.draw_noise(16, rng=SeededRng(3)))
        real = game.discriminator(data.values)
        return exact(real, game.discriminator(made.detach()), game.discriminator(made))

    return Tried(objective, game, data, loss, players, rng)


def supervised() -> Tried:
    game = PlanarNets(width=8, noise_size=3).build(inference=False, classes=2, rng=SeededRng(2))
    data = Points(SeededRng(4).normal(6, 2), torch.tensor([0, 1, 1, 0, 1, 0]))
    weights = list(game.discriminator.parameters())

    def exact() -> dict[str, Tensor]:
        return {"discriminator": cross_entropy(game.discriminator(data.values), data.labels)}

    return Tried(Supervised(), game, data, exact, {"discriminator": weights}, SeededRng(3))


OBJECTIVES = {
    "objectives.Likelihood": likelihood,
    "objectives.Likelihood, smoothed": smoothed,
    "objectives.TiltedLikelihood": tilted_likelihood,
    "objectives.NoiseContrast": noise_contrast,
    "objectives.Distil": distil,
    "objectives.PolicyGradient": policy_gradient,
    "objectives.ReweightedDistil": reweighted,
    "objectives.EForcing": eforcing,
    "objectives.ScheduledSampling, passes": lambda: scheduled_sampling("passes"),
    "objectives.ScheduledSampling, steps": lambda: scheduled_sampling("steps"),
    "objectives.PermutationLM": permuted_likelihood,
    "objectives.WeightedSum": combine,
    "objectives.LabelLikelihood": lambda: labelled(
        LabelLikelihood(), (3,), [0, 2, 1, 1, 0], lambda s: -s.log_softmax(-1)[range(5), [0, 2, 1, 1, 0]].mean()
    ),
    "objectives.SquaredError": lambda: labelled(
        SquaredError(), (1,), [1.0, 2.0, 3.0, 4.0, 5.0], lambda s: ((s[:, 0] - torch.arange(1, 6)) ** 2).mean()
    ),
    "objectives.ChoiceLikelihood": lambda: labelled(
        ChoiceLikelihood(), (1,), [0, 1, 1, 1, 0],
        lambda s: (s[:2, 0].logsumexp(0) - s[1, 0] + s[3:, 0].logsumexp(0) - s[3, 0]) / 3, (0, 0, 1, 2, 2),
    ),
    "objectives.RankingHinge": lambda: labelled(
        RankingHinge(0.5), (1,), [2.0, 1.0, 1.0, 0.0, 3.0],
        lambda s: ((0.5 - s[0, 0] + s[1, 0]).clamp(min=0) + (0.5 - s[4, 0] + s[3, 0]).clamp(min=0)) / 3, (0, 0, 1, 2, 2),
    ),
    "objectives.SpanLikelihood": lambda: labelled(
        SpanLikelihood(2), (4, 2), [[-1, -1], [0, 0], [0, 1], [1, 2], [2, 2]], span_loss
    ),
    "papers.FiniteGan": lambda: finite(FiniteGan(half_square, 0.3), finite_energy),
    "papers.FiniteGan, softplus": lambda: finite(FiniteGan(loss=softplus), finite_plain),
    "papers.EnergyGan": lambda: planar(
        EnergyGan(), lambda real, held, fake: {"discriminator": real.mean() - held.mean(), "generator": fake.mean()}
    ),
    "papers.Gan": lambda: planar(
        Gan(),
        lambda real, held, fake: {
            "discriminator": softplus(real).mean() + softplus(-held).mean(), "generator": softplus(fake).mean(),
        },
    ),
    "papers.Supervised": supervised,
}  # fmt: skip
APART = {
    "papers.ComplementGan": "its terms are written down in tests/papers/test_bad_gan_objective.py::test_losses_by_hand",
    "objectives.TwistLoss": "trains a twist on weighted draws; each form by hand in tests/objectives/test_twist_loss.py",
    "objectives.MaskedLM": "its dice have too many outcomes; tests/objectives/test_permutation_lm.py",
}


@cache
def found() -> dict[str, object]:
    """What the package has; a function, because other tests that use the list need not import all of it."""
    return parts(calls_give(Loss))


def test_the_list_is_complete():
    check_complete(found(), OBJECTIVES, APART, __file__)


@pytest.mark.parametrize("case", OBJECTIVES)
def test_every_objective_obeys_the_laws(case):
    tried = OBJECTIVES[case]()
    part = found()[part_of(case)]
    assert isinstance(tried.objective, part) or case == "objectives.ReweightedDistil"
    check_objective(*tried[:5], rng=tried.rng)


@pytest.mark.parametrize("case", OBJECTIVES)
def test_a_gradient_one_percent_too_long_is_caught(case):
    tried = OBJECTIVES[case]()

    def wrong() -> Any:
        value = tried.exact()
        return {name: 1.01 * item for name, item in value.items()} if isinstance(value, dict) else 1.01 * value

    with pytest.raises(AssertionError, match="must be that of the exact loss"):
        check_objective(*tried[:3], wrong, tried.parameters, rng=tried.rng, tolerance=1e-6)
