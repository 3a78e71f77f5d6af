"""Mixtures of bases: log-probabilities are exact for any components, the entropy when their supports are disjoint.

The shares belong to the point: after every prompt p(x | prompt) = sum_k share_k p_k(x | prompt).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.exact.automaton import FiniteState
from esscher.exact.expectation import entropy
from esscher.exact.partition import log_partition, normalise
from esscher.exact.products import intersect
from esscher.space import Sequences, Space, empty_prompts
from esscher.target import Base, State


class _Running(NamedTuple):
    """How likely each component is by now, what each says about the next token, and the components' own states."""

    log_share: Tensor
    log_probs: Tensor
    states: tuple[State, ...]


@dataclass(frozen=True)
class Mixture:
    """The sum over k of `shares[k]` times the mass of `components[k]`."""

    components: tuple[Base, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.components) != len(self.shares) or not self.components:
            raise ValueError(f"A mixture needs one share for each component: {len(self.components)} and {len(self.shares)}.")
        if min(self.shares) < 0 or abs(sum(self.shares) - 1) > 1e-9:
            raise ValueError(f"The shares of a mixture are probabilities that sum to 1, not {list(self.shares)}.")
        if any(part.space != self.space for part in self.components):
            raise ValueError(f"The components speak about different spaces: {[part.space for part in self.components]}.")

    @property
    def space(self) -> Space:
        return self.components[0].space

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], _Running]:
        log_share = self._log_shares().to(prompts.tokens.device).expand(len(prompts), -1)
        return _blend(log_share, [part.begin(prompts) for part in self.components])

    def advance(self, state: _Running, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], _Running]:
        drawn = state.log_probs.gather(2, token[:, None, None].expand(-1, len(self.components), 1))[..., 0]
        steps = [part.advance(own, token) for part, own in zip(self.components, state.states, strict=True)]
        return _blend(_posterior(state.log_share, drawn), steps)

    def select(self, state: _Running, index: Int[Tensor, "K"]) -> _Running:
        states = tuple(part.select(own, index) for part, own in zip(self.components, state.states, strict=True))
        return _Running(state.log_share[index], state.log_probs[index], states)

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        log_probs = torch.stack([part.log_probs(x).double() for part in self.components], 1)
        log_share = self._log_shares().to(x.tokens.device).expand(len(x), -1)
        columns = []
        for t in range(x.tokens.shape[1]):
            columns.append(torch.logsumexp(log_share + log_probs[..., t], -1))
            log_share = _posterior(log_share, log_probs[..., t])
        return torch.where(x.counted, torch.stack(columns, 1), 0.0) if columns else log_probs[:, 0]

    def _log_shares(self) -> Float[Tensor, "K"]:
        return torch.tensor(self.shares, dtype=torch.float64).log()


def mixture_entropy(
    components: Sequence[FiniteState], shares: Sequence[float], prompts: Sequences | None = None
) -> Float[Tensor, "P"]:
    """H(shares) + sum_k share_k H_k, exact because no point belongs to two components; an error where one does."""
    prompts = empty_prompts(1) if prompts is None else prompts
    for k, first in enumerate(components):
        for other in components[:k]:
            common = log_partition(intersect(first, other), prompts)
            if bool((common > -torch.inf).any()):
                raise ValueError(
                    "Two components of the mixture share points, so its entropy is not a sum. Nothing was computed; "
                    "enumerate (`esscher.exact.table.tabulate`) if the space is small, or estimate it from draws."
                )
    share = torch.tensor(list(shares), dtype=torch.float64)
    inner = torch.stack([entropy(normalise(part), prompts) for part in components])
    return -torch.xlogy(share, share).sum() + share @ inner


def _blend(
    log_share: Float[Tensor, "B K"], steps: Sequence[tuple[Float[Tensor, "B V"], State]]
) -> tuple[Float[Tensor, "B V"], _Running]:
    log_probs = torch.stack([log_prob.double() for log_prob, _ in steps], 1)
    blended = torch.logsumexp(log_share[..., None] + log_probs, 1)
    return blended, _Running(log_share, log_probs, tuple(state for _, state in steps))


def _posterior(log_share: Float[Tensor, "B K"], log_prob: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """The components' shares after a token; as before where none of them allows it."""
    joint = log_share + log_prob
    possible = (joint > -torch.inf).any(-1, keepdim=True)
    return torch.where(possible, torch.log_softmax(torch.where(possible, joint, 0.0), -1), log_share)
