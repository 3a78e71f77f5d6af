"""A base after some tokens of its points: what may still come, as a base of its own.

A prompt of `Continued(base, after)` is a prompt of the base and the first `after` tokens of a point, so that any sampler can
go on from within a point. The base is led there step by step, and the rest keeps the rule of length: a point of the rest has
at most `max_length - after` tokens. This is not the base with a longer prompt, which may mean something else (another
room, another reading of prompts).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.space import Sequences, Space
from esscher.target import Base, State, Tilted


@dataclass(frozen=True)
class Continued:
    """The rest of a point whose first `after` tokens, none of them the end symbol, are the last of the prompt."""

    base: Base
    after: int

    def __post_init__(self) -> None:
        if not 0 <= self.after < self.base.space.max_length:
            raise ValueError(
                f"After {self.after} of at most {self.base.space.max_length} tokens nothing is left to come. Nothing was made; "
                f"go on after 0 to {self.base.space.max_length - 1}."
            )

    @property
    def space(self) -> Space:
        whole = self.base.space
        return Space(whole.vocab_size, whole.max_length - self.after, whole.eos)

    def whole(self, x: Sequences) -> Sequences:
        """The same rows as points of the base: the first `after` tokens belong to the point again."""
        if len(x) and int(x.start.min()) < self.after:
            raise ValueError(
                f"A prompt has {int(x.start.min())} tokens, and {self.after} of a prompt belong to the point. Nothing was "
                f"computed; give prompts that hold the beginning of the point."
            )
        return Sequences(x.tokens, x.start - self.after, x.stop)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        whole = self.whole(prompts)
        log_prob, state = self.base.begin(whole.prompts())
        row = torch.arange(len(whole), device=whole.tokens.device)
        for place in range(self.after):
            log_prob, state = self.base.advance(state, whole.tokens[row, whole.start + place])
        return log_prob, state

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        return self.base.advance(state, token)

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        return self.base.select(state, index)

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        found = self.base.log_probs(self.whole(x))
        return torch.where(x.counted, found, torch.zeros((), dtype=found.dtype, device=found.device))


def rest_of(target: Tilted, after: int) -> Tilted:
    """What may still come of a tilted model's points; the energy reads them whole."""
    rest = Continued(target.base, after)
    return Tilted(rest, lambda x: target.energy(rest.whole(x)))
