"""Exact exponential families: p(x) ~ a(x) exp <weights, features(x)> for an automaton a and tallies.

The product of the base and the tallies does not depend on the weights, so it is made once (`Family`); for any
weights the tilted model is again an automaton with exact Z, moments, covariance, entropy and draws. The weights
that give wanted moments are found in `esscher.exact.moments`. F counts features; a is the base normalised over
the points of its space. Tallies read the point, not the prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.exact.automaton import FiniteState, Normalised, Weighted
from esscher.exact.expectation import accumulate, shares, stay_put
from esscher.exact.features import Tally
from esscher.exact.partition import follow, log_rests, onward
from esscher.exact.products import product
from esscher.space import Sequences, empty_prompts


@dataclass(frozen=True)
class Family:
    """The product of a base and tallies, made by `family`; each method takes the tilting weights."""

    features: tuple[Tally, ...]
    untilted: Normalised
    value: Float[Tensor, "F S V"]
    final: Float[Tensor, "F S"]

    @property
    def names(self) -> list[str]:
        return [feature.name for feature in self.features]

    def weighted(self, weights: Float[Tensor, "F"]) -> Weighted:
        """a(x) exp <weights, features(x)>, unnormalised; differentiable in the weights."""
        base = self.untilted.weights
        emit = base.emit + torch.einsum("f,fsv->sv", weights, self.value)
        return Weighted(emit, base.move, base.space, base.cut + weights @ self.final, base.read)

    def model(self, weights: Float[Tensor, "F"]) -> Normalised:
        """The tilted model as a base."""
        tilted = self.weighted(weights)
        return Normalised(tilted, log_rests(tilted))

    def log_z(self, weights: Float[Tensor, "F"], prompts: Sequences | None = None) -> Float[Tensor, "P"]:
        """log E_a[exp <weights, features(x)>] after each prompt; its gradient is the moments."""
        prompts = empty_prompts(1) if prompts is None else prompts
        self.untilted.starts(prompts)
        return self.model(weights).log_z(prompts) - self.untilted.log_z(prompts)

    @torch.no_grad()
    def moments(
        self, weights: Float[Tensor, "F"], prompts: Sequences | None = None
    ) -> tuple[Float[Tensor, "F"], Float[Tensor, "F F"]]:
        """E_p[features] and their covariance given the prompt, both averaged over the prompts.

        The covariance is the sum over tokens of the covariances of what each token changes in the expected
        features, which is exact and never negative.
        """
        model = self.model(weights)
        starts = model.starts(empty_prompts(1) if prompts is None else prompts)
        expected, move = accumulate(model, self.value, self.final), onward(model.weights)
        mass = torch.bincount(starts, minlength=self.value.shape[1]).double() / len(starts)
        mean = expected[-1] @ mass
        covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)
        for left in range(model.space.max_length, 0, -1):
            share = shares(model, left, move).mul_(mass[:, None]).flatten()
            step = (expected[left - 1], self.value, expected[left])
            change = [(follow(e, move) + v).sub_(b[:, None]) for e, v, b in zip(*step, strict=True)]
            flat = torch.stack(change).flatten(1)
            covariance += (flat * share) @ flat.T
            mass = torch.zeros(len(mass) + 1, dtype=torch.float64).index_add(0, move.flatten(), share)[:-1]
        return mean, covariance

    def extremes(self, direction: Float[Tensor, "F"], prompts: Sequences | None = None) -> tuple[float, float]:
        """The least and greatest <direction, features(x)> over points of positive probability, averaged over the prompts."""
        starts = self.untilted.starts(empty_prompts(1) if prompts is None else prompts)
        high = self._greatest(direction)[starts].mean()
        low = 0.0 - self._greatest(-direction)[starts].mean()
        return float(low), float(high)

    def _greatest(self, direction: Float[Tensor, "F"]) -> Float[Tensor, "S"]:
        weights = self.untilted.weights
        value = torch.where(weights.emit > -torch.inf, torch.einsum("f,fsv->sv", direction, self.value), -torch.inf)
        best, move = torch.where(weights.cut > -torch.inf, direction @ self.final, -torch.inf), onward(weights)
        for _ in range(weights.space.max_length):
            best = (value + follow(best, move)).amax(-1)
        return best


def family(base: FiniteState, features: Sequence[Tally]) -> Family:
    """The exponential family of a finite-state base and tallies."""
    weights = base.weighted()
    if not features:
        raise ValueError("An exponential family needs at least one feature; the base alone is `normalise(base)`.")
    for feature in features:
        if feature.space != weights.space:
            raise ValueError(f"Feature {feature.name!r} is about {feature.space} and the base about {weights.space}.")
    moves = [weights.move, *(feature.move for feature in features)]
    reads = [weights.reading, *(stay_put(feature.move) for feature in features)]
    states = product(moves, reads, eos=weights.space.eos)
    here = states.parts[:, 0]
    together = Weighted(weights.emit[here], states.move, weights.space, weights.cut[here], states.read)
    shape = (len(features), *states.move.shape)
    value, final = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape[:2], dtype=torch.float64)
    for k, feature in enumerate(features):
        value[k] = feature.value[states.parts[:, k + 1]]
        final[k] = feature.final[states.parts[:, k + 1]]
    return Family(tuple(features), Normalised(together, log_rests(together)), value, final)


def tilt(base: FiniteState, features: Sequence[Tally], weights: Float[Tensor, "F"]) -> Normalised:
    """The base tilted by exp <weights, features(x)>, normalised: exact draws and log-probabilities."""
    return family(base, features).model(weights)
