"""Decoders among draws: what they choose is what enumeration says they should, and chance alone changes nothing else."""

import pytest
import torch
from small_networks import CONFIGS, lively

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.decoding.decoders import BestOfN, Decoder, MinimumBayesRisk, RandomDraw
from esscher.exact.enumeration import enumerate_points
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.sir import SIR

SPACE = Space(3, 3, eos=0)
PROMPTS = [[1, 2], [], [2]]


def short(x: Sequences) -> torch.Tensor:
    return 0.7 * x.lengths.float()


def overlap(x: Sequences) -> torch.Tensor:
    """How many tokens two points have in common; not symmetric, so that rows and columns are told apart."""
    points = [set(point) for point in x.points()]
    return torch.tensor([[len(a & b) - 0.3 * len(a) for b in points] for a in points])


@pytest.fixture
def base():
    return lively(CONFIGS["encoder-decoder"], SPACE).double().requires_grad_(requires_grad=False)


def every_point(target: Tilted, prompt: list[int]) -> tuple[Sequences, torch.Tensor]:
    points = enumerate_points(SPACE)
    x = sequences(points.points(), [prompt] * len(points))
    return x, target.log_score(x)


def test_all_are_decoders_and_keep_the_order_of_prompts(base):
    target = Tilted(base, short)
    for decoder in (RandomDraw(SIR(8, shared=False)), BestOfN(8, 0.0), MinimumBayesRisk(8, gain=overlap)):
        assert isinstance(decoder, Decoder)
        actual = decoder(target, prompts_of(PROMPTS), rng=SeededRng(0))
        assert [row[:start] for row, start in zip(actual.x.tokens.tolist(), actual.x.start.tolist(), strict=True)] == PROMPTS
        torch.testing.assert_close(actual.log_base, base.log_probs(actual.x).sum(-1))


def test_the_best_of_very_many_draws_is_the_best_of_all(base):
    target = Tilted(base, short)
    draws = BestOfN(3_000, 0.0)(target, prompts_of(PROMPTS), rng=SeededRng(0))
    for number, prompt in enumerate(PROMPTS):
        x, score = every_point(target, prompt)
        assert draws.x.points()[number] == x.points()[int(score.argmax())]
        assert float(draws.score[number]) == pytest.approx(float(score.max()))


def test_least_risk_is_that_of_enumeration(base):
    target, count = Tilted(base, short), len(enumerate_points(SPACE))
    actual = MinimumBayesRisk(count, gain=overlap, sampler=Exhaustive())(target, prompts_of(PROMPTS), rng=SeededRng(0))
    for number, prompt in enumerate(PROMPTS):
        x, score = every_point(target, prompt)
        expected = overlap(x).double() @ score.softmax(0)
        assert float(actual.score[number]) == pytest.approx(float(expected.max()))
        assert float(expected[x.points().index(actual.x.points()[number])]) == pytest.approx(float(expected.max()))
        turned = overlap(x).double().T @ score.softmax(0)
        assert float(turned.max()) != pytest.approx(float(expected.max())), "rows and columns must be told apart"


def test_weighted_draws_and_no_draws_are_refused(base):
    class Twice:
        def __call__(self, target, prompts, draws, *, rng):
            return Importance()(target, prompts, 2, rng=rng)

    for sampler in (Twice(), Importance()):
        with pytest.raises(ValueError, match="weighted"):
            RandomDraw(sampler)(Tilted(base, short), prompts_of(PROMPTS), rng=SeededRng(0))
    for make in (lambda: BestOfN(0), lambda: MinimumBayesRisk(0, gain=overlap)):
        with pytest.raises(ValueError, match="draws is at least 1, not 0"):
            make()
