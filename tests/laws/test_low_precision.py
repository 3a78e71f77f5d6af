"""Bases with weights in bfloat16 and float16: the laws of bases at stated tolerances, and estimates that agree with float32.

The weights of these bases are some times as large as usual, so that rounding them shows; a token of a trained model is off by
less (`benchmarks/precision.py`). A truncated base is set apart: a token at the edge of its nucleus may be in it in a step and
not in a score, so that a draw can have a score of -inf; truncate in float32, or keep the log-probabilities that draws carry.
"""

import math
from copy import deepcopy

import pytest
import torch
from laws.parts import one_of_each, part_of
from laws.test_every_base import BASES
from marks import slow_except
from random_targets import taste
from small_networks import CONFIGS, lively

from esscher.core.device import place
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.estimators.log_z import log_z
from esscher.estimators.perplexity import perplexity
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Exhaustive, Importance
from esscher.samplers.scoring import log_prob, log_weight
from esscher.testing import check_base

TOLERANCE = {torch.bfloat16: 0.3, torch.float16: 0.05}  # nats a token, the largest over all tokens of all points
NAMES = [name for name in BASES if part_of(name) != "bases.Truncated" and not name.startswith("exact.")]
HEADS = ("gru + adaptive, tied", "gru + softmaxes, tied", "gru + contexts, tied")
FAST = [*one_of_each(NAMES), *(name for name in NAMES if name.endswith(HEADS))]


@pytest.mark.filterwarnings("ignore:The fixed point of")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", slow_except(FAST, NAMES))
def test_bases_obey_the_laws(name, dtype):
    case = BASES[name]
    base = place(case.build(), "cpu", dtype)
    check_base(base, case.prompts, tolerance=TOLERANCE[dtype])
    with torch.no_grad():
        steps = base.begin(prompts_of(case.prompts))[0]
        x, log_base = draw(base, prompts_of(case.prompts), 1, rng=SeededRng(0))
        scores = base.log_probs(x)
    assert {steps.dtype, scores.dtype} <= {torch.float32, torch.float64} and log_base.dtype == torch.float64
    torch.testing.assert_close(steps.double().exp().sum(-1), torch.ones(len(steps)).double(), atol=1e-6, rtol=0)


def both(kind: str) -> tuple[Tilted, Tilted]:
    """A target with float32 weights, and the same in bfloat16."""
    space = Space(3, 4, eos=0)
    base, energy = lively(CONFIGS[kind], space), taste(space)
    return Tilted(base, energy), Tilted(place(deepcopy(base), "cpu", torch.bfloat16), energy)


@pytest.mark.parametrize("kind", ["lstm, vectors", "transformer, rotary"])
def test_intervals_of_log_z_and_perplexity_cover_the_values_of_float32(kind):
    """95 % intervals from 200 draws, 40 times: at least 33 cover, but for one false alarm in 1,000 of right ones."""
    exact, low = both(kind)
    prompts = empty_prompts(1)
    expected = float(Exhaustive()(exact, prompts, 0, rng=SeededRng(0)).log_z()[0])
    covers = {"log Z": 0, "perplexity": 0}
    for seed in range(40):
        draws = Importance()(low, prompts, 200, rng=SeededRng(seed))
        estimate = log_z(draws)
        covers["log Z"] += estimate.low <= expected <= estimate.high
        x = draw(exact.base, prompts, 100, rng=SeededRng(100 + seed))[0]
        here = next(iter(perplexity(low, x, draws=draws, test="fixed").values()))
        nats = len(x) * expected - float((log_prob(exact.base, x) + log_weight(exact, x)).sum())
        covers["perplexity"] += here.low <= math.exp(nats / int(x.lengths.sum())) <= here.high
    assert min(covers.values()) >= 33, covers


@pytest.mark.parametrize("kind", ["lstm, vectors", "transformer, rotary"])
def test_scores_of_draws_are_not_biased_by_more_than_rounding(kind):
    low = both(kind)[1]
    x, drawn = draw(low.base, empty_prompts(1), 2000, rng=SeededRng(1))
    gap = drawn[0].double() - log_prob(low.base, x)
    assert float(gap.mean().abs()) < 0.01 and float(gap.abs().max()) < TOLERANCE[torch.bfloat16]


def test_an_overflow_of_float16_is_an_error():
    base = lively(CONFIGS["transformer, rotary"], Space(3, 4, eos=0))
    with torch.no_grad():
        for weight in base.parameters():
            weight.mul_(1e4)
    place(base, "cpu", torch.float16)
    with pytest.raises(ValueError, match="float16"):
        log_prob(base, sequences([[1, 2, 0]]))
    with pytest.raises(ValueError, match="not finite"):
        draw(base, empty_prompts(1), 2, rng=SeededRng(0))
