"""Laws of samplers and intervals: comparisons with the exact truth at stated false-alarm rates."""

import math
from collections.abc import Callable
from statistics import NormalDist

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.core.device import widest
from esscher.core.draws import Draws, Sampler
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, Space, unique_prompts
from esscher.core.target import Energy, Tilted, flat
from esscher.exact.enumeration import count_points, enumerate_points
from esscher.samplers.scoring import log_prob, log_weight
from esscher.samplers.twists import HasTwist
from esscher.testing.laws import assert_equal

FEW = 8  # prompts of the checks that compare draws with the same seed
CONSTANTS = (-3.0, 6.0)  # added to the energy


def check_sampler(
    sampler: Sampler,
    target: Tilted,
    prompts: Sequences,
    draws: int = 8,
    *,
    rng: Rng,
    false_alarm: float = 1e-6,
    shifted: Callable[[float], Sampler] | None = None,
) -> float:
    """Check a sampler on a space small enough to enumerate, after some hundreds of prompts: all prompts have equally many
    draws, which begin with the prompt and repeat with the seed; `log_base` is log a(x); weighted draws have the exact
    expectations (`assert_draws_follow`, whose largest deviation is returned); a constant of the energy changes log Z only.

    `shifted(c)` is the sampler for the energy E + c, needed if a setting is on the scale of the energy (a bound, a twist).
    """
    drawn = sampler(target, prompts, draws, rng=rng.stream("draws"))
    count, each = drawn.log_weight.shape
    assert (count, count * each) == (len(prompts), len(drawn.x)), (
        f"a sampler gives as many draws for each prompt: {len(drawn.x)} points and weights of {count} x {each} for "
        f"{len(prompts)} prompts"
    )
    owner = torch.arange(len(prompts), device=prompts.tokens.device).repeat_interleave(each)
    width = int(prompts.start.max())
    outside = torch.arange(width, device=prompts.tokens.device) >= prompts.start[owner][:, None]
    same = (drawn.x.start == prompts.start[owner]) & (
        (drawn.x.tokens[:, :width] == prompts.tokens[owner, :width]) | outside
    ).all(-1)
    assert bool(same.all()), f"a draw must begin with its prompt; {int((~same).sum())} of {len(drawn.x)} do not"
    score = log_prob(target.base, drawn.x).view(count, each)
    assert_equal(drawn.log_base, score, 1e-4, "log_base must be log a(x) of the draws")
    few = prompts.rows(slice(0, FEW))
    first, second = (sampler(target, few, draws, rng=rng.stream("again")) for _ in range(2))
    assert first.x.points() == second.x.points() and torch.equal(first.log_weight, second.log_weight), (
        "draws must be the same for the same seed: all chance comes from rng"
    )
    worst = assert_draws_follow(target, prompts, drawn, false_alarm=false_alarm)
    for constant in () if target.energy is flat else CONSTANTS:
        other = sampler if shifted is None else shifted(constant)
        second = other(Tilted(target.base, _ShiftedEnergy(target.energy, constant)), few, draws, rng=rng.stream("again"))
        assert first.x.points() == second.x.points(), (
            f"a constant of the energy must not change the draws, and {constant} did (a setting on the scale of the energy is "
            f"shifted by `shifted`)"
        )
        expected = first.log_weight - constant * first.estimates_z
        assert_equal(second.log_weight, expected, 1e-5, f"log weights must be lower by the constant {constant} of the energy")
    return worst


class _ShiftedEnergy:
    """E + c; a twist of its own is shifted, too."""

    def __init__(self, energy: Energy, constant: float):
        self.energy, self.constant = energy, constant
        if isinstance(energy, HasTwist):
            own = energy.twist
            self.twist = lambda x: own(x) - constant

    def __call__(self, x: Sequences) -> Tensor:
        return widest(self.energy(x)) + self.constant  # rounding to float32 would be a change


def assert_draws_follow(
    target: Tilted, prompts: Sequences, draws: Draws, *, events: int = 64, false_alarm: float = 1e-6, rng: Rng | None = None
) -> float:
    """Check the contract of `Draws` on random events, by enumerating the space after each different prompt.

    An event is a random half of the points, so that the normal approximation holds. Prompts are the independent replicates, at
    least some hundreds, equal or not; draws of one prompt may be dependent. `false_alarm` is the probability that a correct
    sampler fails, over all events. Returns the largest deviation in standard errors.
    """
    points, rng = count_points(target.space), SeededRng(0, "events") if rng is None else rng
    order = torch.stack([rng.permutation(points) for _ in range(events)])
    inside = (order < max(1, points // 2)).double()  # [events, points]
    distinct, which = unique_prompts(prompts)
    every = enumerate_points(target.space, distinct)
    log_score = (log_prob(target.base, every) + log_weight(target, every)).view(len(distinct), -1)
    mass = log_score.exp() if draws.estimates_z else torch.softmax(log_score, -1)  # [different prompts, points]
    number = point_number(target.space, draws.x).cpu().view(draws.log_weight.shape)
    weight = draws.log_weight.double().exp()
    means = torch.stack([(weight * event[number]).mean(-1) for event in inside])  # [events, P]
    gap = means - (inside.double() @ mass.T)[:, which.cpu()]
    error = gap.std(-1) / math.sqrt(gap.shape[1])
    z = (gap.mean(-1) / error.clamp(min=1e-12)).abs()
    limit = NormalDist().inv_cdf(1 - false_alarm / (2 * events))
    worst = int(z.argmax())
    assert float(z[worst]) < limit, (
        f"event {worst}: estimated {float(means.mean(-1)[worst]):.5f}, exact {float((means - gap).mean(-1)[worst]):.5f}, "
        f"{float(z[worst]):.1f} standard errors apart (limit {limit:.1f})"
    )
    return float(z[worst])


def assert_covers(
    hits: int, replications: int, confidence: float, *, at_least: bool = False, false_alarm: float = 1e-3
) -> float:
    """Assert that an interval that held the truth `hits` times of `replications` covers at the rate `confidence`, or `at_least`
    at that rate; return the observed rate. Fails with probability at most `false_alarm` if the rate is true (exact binomial
    test, two-sided or one-sided)."""
    from scipy.stats import binomtest

    p = binomtest(hits, replications, confidence, "less" if at_least else "two-sided").pvalue
    assert p > false_alarm, (
        f"the interval held the truth {hits} of {replications} times; stated rate {confidence:.0%} (p = {p:.1g})"
    )
    return hits / replications


def point_number(space: Space, x: Sequences) -> Int[Tensor, "B"]:
    """The index of each point in `enumerate_points`, whatever its prompt."""
    key = _keys(space, x)
    all_keys = _keys(space, enumerate_points(space)).to(key.device)
    order = all_keys.argsort()
    place = order[torch.searchsorted(all_keys[order], key).clamp(max=len(order) - 1)]
    assert bool((all_keys[place] == key).all()), (
        "a draw is not a point of the space: too long, or it goes on after the end symbol"
    )
    return place


def _keys(space: Space, x: Sequences) -> Int[Tensor, "B"]:
    """An integer for each point, equal if and only if the points are equal."""
    power = (space.vocab_size + 1) ** (torch.arange(x.tokens.shape[1], device=x.tokens.device) - x.start[:, None]).clamp(min=0)
    return (torch.where(x.counted, x.tokens + 1, 0) * power).sum(-1)
