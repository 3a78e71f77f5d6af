"""Ratio of unique n-grams within a point, in data, base draws and joint draws: how much a model repeats itself.

    ratio(n) = sum over points of different n-grams in the point / sum over points of n-grams in the point

1 means that nothing is ever said twice within a point. End symbols count as tokens, prompts do not count; a point shorter than
n has no n-gram. The ratio falls with the length of points, so compare models on points of equal length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.estimate import Estimate
from esscher.estimators.intervals import Statistic
from esscher.estimators.populations import NAMES, Name, Populations
from esscher.space import Sequences


@dataclass(frozen=True)
class UniqueNgrams:
    """The ratio for one n by population, and how much it is above that of the data."""

    n: int
    ratio: Mapping[Name, Estimate]
    above: Mapping[Name, Estimate]


def unique_ngrams(found: Populations, sizes: Sequence[int] = (1, 2, 3, 4), *, level: float = 0.95) -> list[UniqueNgrams]:
    """A row for each n."""
    if not sizes or min(sizes) < 1:
        raise ValueError(f"An n-gram has at least one token, and at least one n is needed: {list(sizes)}. Nothing was counted.")
    return [_of_size(found, n, level) for n in sizes]


def count_ngrams(x: Sequences, n: int) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
    """Different n-grams of each point, and all of them."""
    grams = [[tuple(point[first : first + n]) for first in range(len(point) - n + 1)] for point in x.points()]
    different = [len(set(own)) for own in grams]
    return torch.tensor(different, dtype=torch.long), torch.tensor([len(own) for own in grams], dtype=torch.long)


def _of_size(found: Populations, n: int, level: float) -> UniqueNgrams:
    drawn = count_ngrams(found.draws.x, n)
    counts = {"data": count_ngrams(found.data.x, n), "base": drawn, "joint": drawn}
    ratios: dict[Name, Statistic] = {}
    for name in NAMES:
        different, every = counts[name]
        if int(every.sum()) == 0:
            raise ValueError(f"No point of the {name} has {n} tokens, so there is no {n}-gram. Nothing was counted; lower n.")
        ratios[name] = found.ratio(name, different, every)
    method = f"different {n}-grams of a point over all of them"
    ratio = {name: found.share(ratios[name], level=level, method=method, verdicts=False) for name in NAMES}
    return UniqueNgrams(n, ratio, found.above_data(ratios, level=level, method=f"difference of {method}"))
