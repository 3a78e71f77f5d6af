"""A base whose points end sooner: of longer ones it says how they begin."""

from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor

from esscher.space import Sequences, Space
from esscher.target import Base, State


@dataclass(frozen=True)
class Shortened:
    """The same base with points of at most `length` tokens."""

    base: Base
    length: int

    def __post_init__(self) -> None:
        if not 1 <= self.length <= self.base.space.max_length:
            raise ValueError(f"Points have 1 to {self.base.space.max_length:,} tokens, not {self.length:,}.")

    @property
    def space(self) -> Space:
        return replace(self.base.space, max_length=self.length)

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        return self.base.log_probs(x)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        return self.base.begin(prompts)

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        return self.base.advance(state, token)

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        return self.base.select(state, index)


def shortened(base: Base, length: int | None) -> Base:
    """A base whose points have at most so many tokens: itself, where they have no more anyway."""
    return base if length is None or length >= base.space.max_length else Shortened(base, length)
