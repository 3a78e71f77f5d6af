"""A small exponential family with known weights, and samples of it: what tests of fitted weights share."""

from dataclasses import dataclass

import torch
from random_targets import random_automaton

from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.energies.features import contains, count, feature_values, length
from esscher.exact import features as tallies
from esscher.exact.enumeration import enumerate_points
from esscher.exact.exponential_family import exact_moment_weights

SPACE = Space(3, 6, eos=0)
FEATURES = [contains([1, 2]), count([2]), length()]
TALLIES = [tallies.contains([1, 2], SPACE), tallies.count([2], SPACE), tallies.length(SPACE)]
NAMES = [feature.name for feature in FEATURES]
TRUE = torch.tensor([1.5, -0.7, 0.3], dtype=torch.float64)

BASE = random_automaton(SPACE)
POINTS = enumerate_points(SPACE)
VALUES = feature_values(FEATURES, POINTS)  # of every point
LOG_BASE = BASE.log_probs(POINTS).sum(-1)
LOG_TARGET = torch.log_softmax(LOG_BASE + VALUES @ TRUE, 0)
LOG_PROPOSAL = torch.logaddexp(LOG_TARGET, random_automaton(SPACE, seed=3).log_probs(POINTS).sum(-1)) - torch.tensor(2.0).log()
MOMENTS = LOG_TARGET.exp() @ VALUES


@dataclass(frozen=True)
class Samples:
    """Features of data of the target, of draws of the base, and of draws of a proposal with their weights."""

    data: torch.Tensor
    base: torch.Tensor
    proposed: torch.Tensor
    log_weight: torch.Tensor


def samples(size: int, drawn: int, seed: int) -> Samples:
    rng = SeededRng(seed)
    data, base, proposed = (
        rng.categorical(law[None], count)[0] for law, count in ((LOG_TARGET, size), (LOG_BASE, drawn), (LOG_PROPOSAL, drawn))
    )
    weight = (LOG_BASE - LOG_PROPOSAL)[proposed]
    return Samples(VALUES[data], VALUES[base], VALUES[proposed], weight)


def star(moments: torch.Tensor) -> torch.Tensor:
    """The exact weights, from the automaton."""
    return exact_moment_weights(BASE, TALLIES, moments)
