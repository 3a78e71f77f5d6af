"""What every sampler must obey, and calibrated comparisons of draws and intervals with the truth."""

import math
from statistics import NormalDist

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.draws import Draws, Sampler
from esscher.exact.enumeration import count_points, enumerate_points
from esscher.randomness import Rng, Seeded
from esscher.space import Sequences, Space
from esscher.target import Tilted
from esscher.testing.laws import equal

FEW = 8  # prompts that are enough to see whether a seed decides


def check_sampler(
    sampler: Sampler, target: Tilted, prompts: Sequences, draws: int = 8, *, rng: Rng, false_alarm: float = 1e-6
) -> float:
    """The laws of a sampler, on a space small enough to enumerate, after some hundreds of prompts.

    It gives as many draws for each prompt, which begin with it, and the same for the same seed; it knows log a(x) of each; and
    weighted they have the exact expectations (`assert_draws_follow`, whose largest deviation is returned).
    """
    found = sampler(target, prompts, draws, rng=rng.stream("draws"))
    count, each = found.log_weight.shape
    assert (count, count * each) == (len(prompts), len(found.x)), (
        f"a sampler gives as many draws for each prompt: {len(found.x)} points and weights of {count} x {each} for "
        f"{len(prompts)} prompts"
    )
    _check_prompts(prompts, found.x, each)
    with torch.no_grad():
        score = target.base.log_probs(found.x).double().sum(-1).view(count, each)
    equal(found.log_base, score, 1e-4, "a sampler must know log a(x) of its draws")
    few = prompts.rows(slice(0, FEW))
    one, other = (sampler(target, few, draws, rng=rng.stream("again")) for _ in range(2))
    assert one.x.points() == other.x.points() and torch.equal(one.log_weight, other.log_weight), (
        "draws must be the same for the same seed: all chance comes from rng"
    )
    return assert_draws_follow(target, prompts, found, false_alarm=false_alarm)


def assert_draws_follow(
    target: Tilted, prompts: Sequences, draws: Draws, *, events: int = 64, false_alarm: float = 1e-6, rng: Rng | None = None
) -> float:
    """Check the contract of `Draws` on random events, by enumerating the space after each different prompt.

    An event is a random half of the points, so that its probability is neither rare nor certain and the
    normal approximation holds. Prompts are the independent replicates, at least some hundreds of them, equal
    or not: draws of one prompt may depend on each other. `false_alarm` is the chance that a correct sampler
    fails, all events together. Returns the largest deviation in standard errors.
    """
    points = count_points(target.space)
    inside = _halves(events, points, Seeded(0, "events") if rng is None else rng)
    which, mass = _exact_mass(target, prompts, normalised=not draws.estimates_z)
    number = point_number(target.space, draws.x).view(draws.log_weight.shape)
    weight = draws.log_weight.double().exp()
    found = torch.stack([(weight * event[number]).mean(-1) for event in inside])  # [events, P]
    gap = found - (inside.double() @ mass.T)[:, which]
    error = gap.std(-1) / math.sqrt(gap.shape[1])
    z = (gap.mean(-1) / error.clamp(min=1e-12)).abs()
    limit = NormalDist().inv_cdf(1 - false_alarm / (2 * events))
    worst = int(z.argmax())
    assert float(z[worst]) < limit, (
        f"event {worst}: estimated {float(found.mean(-1)[worst]):.5f}, exact {float((found - gap).mean(-1)[worst]):.5f}, "
        f"{float(z[worst]):.1f} standard errors apart (limit {limit:.1f})"
    )
    return float(z[worst])


def assert_covers(hits: int, replications: int, level: float, *, false_alarm: float = 1e-3) -> float:
    """An interval that held the truth `hits` times does so at the rate `level`, neither less nor more often.

    Fails with probability at most `false_alarm` for an interval whose true rate is `level` (exact binomial,
    two-sided). Returns the rate found.
    """
    from scipy.stats import binomtest

    p = binomtest(hits, replications, level).pvalue
    assert p > false_alarm, f"the interval held the truth {hits} of {replications} times; stated rate {level:.0%} (p = {p:.1g})"
    return hits / replications


def _check_prompts(prompts: Sequences, x: Sequences, each: int) -> None:
    owner = torch.arange(len(prompts)).repeat_interleave(each)
    width = int(prompts.start.max())
    inside = torch.arange(width) < prompts.start[owner][:, None]
    same = (x.start == prompts.start[owner]) & ((x.tokens[:, :width] == prompts.tokens[owner, :width]) | ~inside).all(-1)
    assert bool(same.all()), f"a draw must begin with its prompt; {int((~same).sum())} of {len(x)} do not"


def point_number(space: Space, x: Sequences) -> Int[Tensor, "B"]:
    """The place of each point in `enumerate_points`, whatever its prompt."""
    key = _keys(space, x)
    all_keys = _keys(space, enumerate_points(space))
    order = all_keys.argsort()
    place = order[torch.searchsorted(all_keys[order], key).clamp(max=len(order) - 1)]
    assert bool((all_keys[place] == key).all()), (
        "a draw is not a point of the space: too long, or it goes on after the end symbol"
    )
    return place


def _keys(space: Space, x: Sequences) -> Int[Tensor, "B"]:
    """One integer for each point, equal exactly when the points are equal."""
    power = (space.vocab_size + 1) ** (torch.arange(x.tokens.shape[1]) - x.start[:, None]).clamp(min=0)
    return (torch.where(x.counted, x.tokens + 1, 0) * power).sum(-1)


def _halves(events: int, points: int, rng: Rng) -> Float[Tensor, "E K"]:
    order = torch.stack([rng.permutation(points) for _ in range(events)])
    return (order < max(1, points // 2)).double()


def _exact_mass(target: Tilted, prompts: Sequences, *, normalised: bool) -> tuple[Int[Tensor, "P"], Float[Tensor, "Q K"]]:
    """For each prompt the row of its exact masses; equal prompts share a row."""
    names = [tuple(row[:start]) for row, start in zip(prompts.tokens.tolist(), prompts.start.tolist(), strict=True)]
    first = {name: row for row, name in reversed(list(enumerate(names)))}
    place = {name: row for row, name in enumerate(first)}
    which = torch.tensor([place[name] for name in names])
    x = enumerate_points(target.space, prompts.rows(torch.tensor(list(first.values()))))
    with torch.no_grad():
        log_score = target.log_score(x).double().view(len(first), -1)
    return which, torch.softmax(log_score, -1) if normalised else log_score.exp()
