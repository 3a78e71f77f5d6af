"""A base with a locally normalised correction: the control that tells what an energy over whole sequences is worth.

    log p(x_t | x_<t) = log a(x_t | x_<t) + log b(x_t | x_<t) - log of the sum over all tokens

`a` stays as it is, `b` learns by maximum likelihood (RALM; Deng et al., 2020). It has the parameters of base and energy
together but sees no further than a base. The correction is a base itself, and saved as one.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from esscher.bases.logits import LogitBase, at_tokens, in_pieces
from esscher.space import Sequences, Space
from esscher.target import State


class Corrected(nn.Module):
    """The product of two bases, normalised at each step; only the correction's weights are this module's own."""

    correction: Any

    def __init__(self, base: LogitBase, correction: LogitBase):
        super().__init__()
        if base.space != correction.space:
            raise ValueError(
                f"A base over {base.space} cannot be corrected by one over {correction.space}. Nothing was made; build the "
                f"correction for the base's own space."
            )
        self.correction = correction
        self._held = (base,)  # a tuple, so that its weights are not registered here

    @property
    def space(self) -> Space:
        return self._held[0].space

    def logits(self, x: Sequences) -> Float[Tensor, "B T V"]:
        """Unnormalised log-probabilities of every token at position t, given the tokens before t."""
        with torch.no_grad():
            fixed = log_softmax(self._held[0].logits(x), -1)
        return fixed + self.correction.logits(x)

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        return torch.cat([self._score(piece) for piece in in_pieces(x, self.space.vocab_size, x.tokens.shape[1])])

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        return _joined(self._held[0].begin(prompts), self.correction.begin(prompts))

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        return _joined(self._held[0].advance(state[0], token), self.correction.advance(state[1], token))

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        return self._held[0].select(state[0], index), self.correction.select(state[1], index)

    def _score(self, x: Sequences) -> Float[Tensor, "B T"]:
        if x.tokens.numel() == 0:
            return torch.zeros(x.tokens.shape, device=x.tokens.device)
        return at_tokens(log_softmax(self.logits(x), -1), x)


def _joined(one: tuple[Tensor, State], other: tuple[Tensor, State]) -> tuple[Float[Tensor, "B V"], State]:
    return log_softmax(one[0] + other[0], -1), (one[1], other[1])
