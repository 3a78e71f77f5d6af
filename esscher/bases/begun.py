"""A base given how its points begin: a(x | the first token is one of some), normalised, with exact log-probabilities.

Drawing from it is drawing one stratum of the base: next-token tables of a tilted model are made of such strata. What it leaves
out: conditions on later tokens, for which a base has no exact answer.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from esscher.space import Sequences, Space
from esscher.target import Base, State


@dataclass(frozen=True)
class Begun:
    """A base whose first token is one of those allowed; the prompt is not part of the point."""

    base: Base
    allowed: Bool[Tensor, "V"]

    def __post_init__(self) -> None:
        if self.allowed.shape != (self.space.vocab_size,) or not bool(self.allowed.any()):
            raise ValueError(
                f"A point begins with at least one of the {self.space.vocab_size} tokens of the base; "
                f"{int(self.allowed.sum())} of {self.allowed.numel()} are allowed. Nothing was drawn."
            )

    @property
    def space(self) -> Space:
        return self.base.space

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        log_prob, state = self.base.begin(prompts)
        return torch.log_softmax(self._masked(log_prob), -1), state

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        return self.base.advance(state, token)

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        return self.base.select(state, index)

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        score = self.base.log_probs(x)
        log_mass = torch.logsumexp(self._masked(self.base.begin(x.prompts())[0]), -1)
        token = pad(x.tokens, (0, 1)).gather(1, x.start[:, None])[:, 0]
        change = torch.where(self.allowed.to(token.device)[token], -log_mass, -torch.inf)
        column = torch.arange(score.shape[1], device=score.device)
        first = x.counted & (column == x.start[:, None])
        return score + torch.where(first, change[:, None], 0.0)

    def _masked(self, log_prob: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        return log_prob.masked_fill(~self.allowed.to(log_prob.device), -torch.inf)
