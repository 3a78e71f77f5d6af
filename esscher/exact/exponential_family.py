"""Exact exponential families p(x) ~ a(x) exp <weights, features(x)>: an automaton a tilted by automaton features.

For any weights the tilted model is an automaton with exact Z, moments, covariance, entropy and draws. F counts features; a is
the base normalised over the points of its space. Features read the point, not the prompt. `exact_moment_weights` minimises the
convex log Z(weights) - <weights, moments> by Newton's method; a minimum exists exactly when the moments lie inside the set of
moments of distributions over the base's points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.space import Sequences
from esscher.exact.automaton import FiniteState, NormalisedAutomaton, WeightedAutomaton
from esscher.exact.dynamic_programming import (
    backward_expectations,
    gather_next,
    ignore_prompt,
    normalise,
    product_with_tables,
    step_probs,
    transitions_with_end,
)
from esscher.exact.features import AutomatonFeature

MAX_STEPS = 200
MAX_STEP = 20.0  # in log-weight: a rare feature would otherwise take a step of 1 / its variance
MIN_EIGENVALUE = 1e-12  # of the features' correlations: a direction below it is treated as constant


@dataclass(frozen=True)
class ExponentialFamily:
    """The product of a base and features, made by `exponential_family`; each method takes the tilting weights."""

    features: tuple[AutomatonFeature, ...]
    base: NormalisedAutomaton
    value: Float[Tensor, "F S V"]
    final: Float[Tensor, "F S"]

    @property
    def names(self) -> list[str]:
        return [feature.name for feature in self.features]

    def to_weighted_automaton(self, weights: Float[Tensor, "F"]) -> WeightedAutomaton:
        """a(x) exp <weights, features(x)>, unnormalised; differentiable in the weights."""
        base = self.base.weights
        log_emission = base.log_emission + torch.einsum("f,fsv->sv", weights, self.value)
        return WeightedAutomaton(
            log_emission, base.next_state, base.space, base.log_final + weights @ self.final, base.prompt_next_state
        )

    def model(self, weights: Float[Tensor, "F"]) -> NormalisedAutomaton:
        """The tilted model as a base."""
        return normalise(self.to_weighted_automaton(weights))

    def log_z(self, weights: Float[Tensor, "F"], prompts: Sequences | None = None) -> Float[Tensor, "P"]:
        """log E_a[exp <weights, features(x)>] after each prompt; its gradient is the moments."""
        self.base.start_states(prompts)
        return self.model(weights).log_z(prompts) - self.base.log_z(prompts)

    @torch.no_grad()
    def moments(
        self, weights: Float[Tensor, "F"], prompts: Sequences | None = None
    ) -> tuple[Float[Tensor, "F"], Float[Tensor, "F F"]]:
        """E_p[features] and their covariance given the prompt, both averaged over the prompts."""
        model = self.model(weights)
        start_states = model.start_states(prompts)
        expected, next_state = backward_expectations(model, self.value, self.final), transitions_with_end(model.weights)
        mass = torch.bincount(start_states, minlength=self.value.shape[1]).double() / len(start_states)
        mean = expected[-1] @ mass
        covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)  # of the change of expected features by each token
        for tokens_left in range(model.space.max_length, 0, -1):
            share = step_probs(model, tokens_left, next_state).mul_(mass[:, None]).flatten()
            step = (expected[tokens_left - 1], self.value, expected[tokens_left])
            change = [(gather_next(e, next_state) + v).sub_(b[:, None]) for e, v, b in zip(*step, strict=True)]
            flat = torch.stack(change).flatten(1)
            covariance += (flat * share) @ flat.T
            mass = torch.zeros(len(mass) + 1, dtype=torch.float64).index_add(0, next_state.flatten(), share)[:-1]
        return mean, covariance

    def value_range(self, direction: Float[Tensor, "F"], prompts: Sequences | None = None) -> tuple[float, float]:
        """The least and greatest <direction, features(x)> over points of positive probability, averaged over the prompts."""
        start_states = self.base.start_states(prompts)
        high = self._max_value(direction)[start_states].mean()
        low = 0.0 - self._max_value(-direction)[start_states].mean()
        return float(low), float(high)

    def _max_value(self, direction: Float[Tensor, "F"]) -> Float[Tensor, "S"]:
        weights = self.base.weights
        value = torch.where(weights.log_emission > -torch.inf, torch.einsum("f,fsv->sv", direction, self.value), -torch.inf)
        best = torch.where(weights.log_final > -torch.inf, direction @ self.final, -torch.inf)
        next_state = transitions_with_end(weights)
        for _ in range(weights.space.max_length):
            best = (value + gather_next(best, next_state)).amax(-1)
        return best


def exponential_family(base: FiniteState, features: Sequence[AutomatonFeature]) -> ExponentialFamily:
    """The exponential family of a finite-state base and automaton features over the same space."""
    weights = base.to_weighted_automaton()
    if not features:
        raise ValueError("An exponential family needs at least one feature; the base alone is `normalise(base)`.")
    for feature in features:
        if feature.space != weights.space:
            raise ValueError(f"Feature {feature.name!r} is about {feature.space} and the base about {weights.space}.")
    tables = [feature.next_state for feature in features]
    product, parts = product_with_tables(weights, tables, [ignore_prompt(table) for table in tables])
    columns = list(zip(features, parts.unbind(1)[1:], strict=True))
    value = torch.stack([feature.value[states] for feature, states in columns])
    final = torch.stack([feature.final[states] for feature, states in columns])
    return ExponentialFamily(tuple(features), normalise(product), value, final)


def tilt(base: FiniteState, features: Sequence[AutomatonFeature], weights: Float[Tensor, "F"]) -> NormalisedAutomaton:
    """The base tilted by exp <weights, features(x)>, as a base with exact draws and log-probabilities."""
    return exponential_family(base, features).model(weights)


def exact_moment_weights(
    base: FiniteState, features: Sequence[AutomatonFeature], moments: Float[Tensor, "F"], prompts: Sequences | None = None
) -> Float[Tensor, "F"]:
    """The weights under which the tilted base has these moments, averaged over the prompts if given. Dependent features get the
    weights of least norm. An error names the feature whose moment no finite weights can give."""
    family, wanted = exponential_family(base, features), moments.double()
    if wanted.shape != (len(features),):
        raise ValueError(f"{len(features)} features need as many moments, not {tuple(wanted.shape)}.")
    width = _feature_ranges(family, wanted, prompts)
    weights, directions = torch.zeros_like(wanted), None

    def objective(at: Float[Tensor, "F"]) -> float:
        return float(family.log_z(at, prompts).mean() - at @ wanted)

    for _ in range(MAX_STEPS):
        mean, covariance = family.moments(weights, prompts)
        gap = torch.where(width > 0, (wanted - mean).abs() / width.clamp(min=1e-300), 0.0)
        step, rank = _newton_step(covariance, wanted - mean, width)
        directions = rank if directions is None else directions
        length = float((step.abs() * width).max()) if len(step) else 0.0
        if length <= 1e-8:
            if rank == directions and not bool((gap > 1e-7).any()):
                return weights + step
            break
        size, value, slope = min(1.0, MAX_STEP / length), objective(weights), float((wanted - mean) @ step)
        slack = 1e-13 * (1 + abs(value))
        while objective(weights + size * step) > value - 1e-4 * size * slope + slack and size > 1e-12:  # backtracking
            size /= 2
        weights = weights + size * step
    blame = gap if float(gap.max()) > 1e-7 else weights.abs() * width
    culprits = "; ".join(
        f"{family.names[k]!r} (wanted {float(wanted[k]):.6g}, reached {float(mean[k]):.6g} at weight {float(weights[k]):.3g})"
        for k in (blame >= 0.5 * blame.max()).nonzero()[:, 0].tolist()
    )
    raise ValueError(
        f"No finite weights give these moments together, though each alone is possible: {culprits}. No weights are returned; "
        f"the moments contradict each other or lie on the boundary of what is possible: smooth them, or drop a feature."
    )


def _newton_step(
    covariance: Float[Tensor, "F F"], gap: Float[Tensor, "F"], width: Float[Tensor, "F"]
) -> tuple[Float[Tensor, "F"], int]:
    """covariance^-1 gap in the directions that vary, and how many there are; features are first scaled to variance 1."""
    deviation = torch.where(width > 0, covariance.diagonal().sqrt(), 0.0)
    scale = torch.where(deviation > 0, deviation, torch.inf)
    value, vector = torch.linalg.eigh(covariance / scale / scale[:, None])
    varies = value > MIN_EIGENVALUE
    inverse = torch.where(varies, 1 / torch.where(varies, value, 1.0), 0.0)
    return vector @ (inverse * (vector.T @ (gap / scale))) / scale, int(varies.sum())


def _feature_ranges(family: ExponentialFamily, wanted: Float[Tensor, "F"], prompts: Sequences | None) -> Float[Tensor, "F"]:
    """The width of each feature's range; an error where a wanted moment is not strictly inside."""
    widths = []
    for k, (name, want) in enumerate(zip(family.names, wanted.tolist(), strict=True)):
        low, high = family.value_range(torch.eye(len(wanted), dtype=torch.float64)[k], prompts)
        margin = 1e-12 * max(abs(low), abs(high))
        constant = high - low <= margin
        inside = abs(want - low) <= 10 * margin if constant else low + margin < want < high - margin
        if not inside:
            span = f"it is always {low:.6g}" if constant else f"its values range from {low:.6g} to {high:.6g}"
            raise ValueError(
                f"No finite weight gives feature {name!r} the moment {want:.6g}: over the points of the base {span}, and a "
                f"moment must lie strictly inside. No weights were computed; smooth the moment, drop the feature, or restrict "
                f"the base to the points that have it (`esscher.exact.automaton.intersect`)."
            )
        widths.append(0.0 if constant else high - low)
    return torch.tensor(widths, dtype=torch.float64)
