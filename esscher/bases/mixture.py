"""Mixtures of K bases, p(x | prompt) = sum_k w_k p_k(x | prompt), with exact log-probabilities, and their entropy. The weights
are those of points: they are the same after every prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.device import place, widest
from esscher.core.space import Sequences, Space
from esscher.core.target import Base, State, drops_tokens
from esscher.exact.automaton import FiniteState, intersect
from esscher.exact.dynamic_programming import entropy, log_partition


class _MixtureState(NamedTuple):
    """The posterior of the components, the next-token log-probabilities of each, and the state of each."""

    log_posterior: Tensor
    log_probs: Tensor
    states: tuple[State, ...]


@dataclass(frozen=True)
class MixtureBase:
    """The mixture of `components` with probabilities `mixture_weights`."""

    components: tuple[Base, ...]
    mixture_weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.components) != len(self.mixture_weights) or not self.components:
            raise ValueError(f"{len(self.components)} components need as many weights, not {len(self.mixture_weights)}.")
        if min(self.mixture_weights) < 0 or abs(sum(self.mixture_weights) - 1) > 1e-9:
            raise ValueError(f"Mixture weights are probabilities that sum to 1, not {list(self.mixture_weights)}.")
        if any(part.space != self.space for part in self.components):
            raise ValueError(f"The components have different spaces: {[part.space for part in self.components]}.")

    @property
    def space(self) -> Space:
        return self.components[0].space

    @property
    def drops_tokens(self) -> bool:
        """Whether all components that are ever drawn do."""
        return all(drops_tokens(part) for part, weight in zip(self.components, self.mixture_weights, strict=True) if weight > 0)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], _MixtureState]:
        log_posterior = place(self._log_mixture_weights(), prompts.tokens.device).expand(len(prompts), -1)
        return _mix_steps(log_posterior, [part.begin(prompts) for part in self.components])

    def advance(self, state: _MixtureState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], _MixtureState]:
        log_prob = state.log_probs.gather(2, token[:, None, None].expand(-1, len(self.components), 1))[..., 0]
        steps = [part.advance(part_state, token) for part, part_state in zip(self.components, state.states, strict=True)]
        return _mix_steps(_posterior(state.log_posterior, log_prob), steps)

    def select(self, state: _MixtureState, index: Int[Tensor, "K"]) -> _MixtureState:
        states = tuple(part.select(part_state, index) for part, part_state in zip(self.components, state.states, strict=True))
        return _MixtureState(state.log_posterior[index], state.log_probs[index], states)

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        log_probs = torch.stack([widest(part.log_probs(x)) for part in self.components], 1)
        log_posterior = place(self._log_mixture_weights(), x.tokens.device).expand(len(x), -1)
        columns = []
        for t in range(x.tokens.shape[1]):
            columns.append(torch.logsumexp(log_posterior + log_probs[..., t], -1))
            log_posterior = _posterior(log_posterior, log_probs[..., t])
        return torch.where(x.counted, torch.stack(columns, 1), 0.0) if columns else log_probs[:, 0]

    def _log_mixture_weights(self) -> Float[Tensor, "K"]:
        return torch.tensor(self.mixture_weights, dtype=torch.float64).log()


def mixture_entropy(
    components: Sequence[FiniteState], mixture_weights: Sequence[float], prompts: Sequences | None = None
) -> Float[Tensor, "P"]:
    """H(w) + sum_k w_k H_k after each prompt (by default one empty prompt); an error where components share points."""
    for k, first in enumerate(components):
        for other in components[:k]:
            if bool((log_partition(intersect(first, other), prompts) > -torch.inf).any()):
                raise ValueError(
                    "Two components of the mixture share points, so its entropy is not a sum. Nothing was computed; "
                    "enumerate (`esscher.exact.enumeration.tabulate`) if the space is small, or estimate it from draws."
                )
    weights = torch.tensor(list(mixture_weights), dtype=torch.float64)
    return -torch.xlogy(weights, weights).sum() + weights @ torch.stack([entropy(part, prompts) for part in components])


def _mix_steps(
    log_posterior: Float[Tensor, "B K"], steps: Sequence[tuple[Float[Tensor, "B V"], State]]
) -> tuple[Float[Tensor, "B V"], _MixtureState]:
    log_probs = torch.stack([widest(log_prob) for log_prob, _ in steps], 1)
    return torch.logsumexp(log_posterior[..., None] + log_probs, 1), _MixtureState(
        log_posterior, log_probs, tuple(state for _, state in steps)
    )


def _posterior(log_posterior: Float[Tensor, "B K"], log_prob: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """The posterior of the components after a token; unchanged where no component allows it."""
    joint = log_posterior + log_prob
    possible = (joint > -torch.inf).any(-1, keepdim=True)
    return torch.where(possible, torch.log_softmax(torch.where(possible, joint, 0.0), -1), log_posterior)
