"""What every decoder returns: one point for each prompt, chosen and not drawn.

A decoder answers what to show, a sampler what the distribution is: a decoder keeps no contract with the target, and no
estimate is made of what it returns.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from esscher.randomness import Rng
from esscher.space import Sequences
from esscher.target import Tilted


@dataclass(frozen=True)
class Decoded:
    """The chosen points in the order of their prompts, log a of each, and the number that it was chosen by."""

    x: Sequences
    log_base: Float[Tensor, "P"]
    score: Float[Tensor, "P"]


@runtime_checkable
class Decoder(Protocol):
    """Chooses a point of the target after each prompt."""

    def __call__(self, target: Tilted, prompts: Sequences, *, rng: Rng) -> Decoded: ...
