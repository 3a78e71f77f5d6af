"""p(x) = a(x) exp(-E(x)) / Z, the one model of this library: an autoregressive `Base`, an `Energy` of whole sequences, and a
`Tilted` of both. What a base keeps between two tokens (a cache, a hidden state) is its `State`, opaque to all others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.space import Sequences, Space

State = Any


@runtime_checkable
class Base(Protocol):
    """A normalised autoregressive distribution a(x | prompt); `esscher.testing.check_base` is its contract.

    A state may be advanced once, because `advance` may write into it; `select` returns a copy, so a branch is `select(state,
    all rows)`. Rows whose point has ended may be advanced further; their values are then ignored.
    """

    @property
    def space(self) -> Space: ...

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        """log a(x_t | x_<t) where x is counted, 0 elsewhere."""
        ...

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        """Log-probabilities of the first token of the point, and the state that follows the prompt."""
        ...

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        """The same after one more token of each row."""
        ...

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        """A copy of the state of the chosen rows: to share a prompt, to resample, to drop finished rows."""
        ...


@dataclass(frozen=True)
class BaseWrapper:
    """A base that passes every call to another one; its subclasses change some of them."""

    base: Base

    @property
    def space(self) -> Space:
        return self.base.space

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        return self.base.log_probs(x)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        return self.base.begin(prompts)

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        return self.base.advance(state, token)

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        return self.base.select(state, index)


Energy = Callable[[Sequences], Tensor]
"""E(x | prompt) for each row: `Sequences -> Float[Tensor, "B"]`. Lower is likelier; +inf forbids. An energy
with an embedding also states `vocab_size`, and is then refused on a base with another one."""


def flat(x: Sequences) -> Float[Tensor, "B"]:
    """The energy that changes nothing: `Tilted(base)` is the base itself."""
    return torch.zeros(len(x), device=x.tokens.device)


@dataclass(frozen=True)
class Tilted:
    """A base tilted by an energy; it never claims to know Z."""

    base: Base
    energy: Energy = flat

    def __post_init__(self) -> None:
        reads = getattr(self.energy, "vocab_size", self.space.vocab_size)
        if reads != self.space.vocab_size:
            raise ValueError(
                f"The energy reads {reads} tokens and the base speaks {self.space.vocab_size}: they were made with "
                f"different tokenizers. Nothing was computed; train the energy on this base, or load the base it names."
            )

    @property
    def space(self) -> Space:
        return self.base.space

    def log_weight(self, x: Sequences) -> Float[Tensor, "B"]:
        """-E(x) on the device of x; an energy that is not a number, or -inf, is an error."""
        log_weight = -self.energy(x).to(x.tokens.device)
        wrong = torch.isnan(log_weight) | (log_weight == torch.inf)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0, 0])
            raise ValueError(
                f"The energy of {int(wrong.sum())} of {len(x)} sequences is {float(-log_weight[row])}, first in row "
                f"{row}: {x.rows(slice(row, row + 1)).points()[0][:20]}. No draw of this batch was kept; correct the "
                f"energy (a division by a length of 0, a logarithm of 0, training that diverged)."
            )
        return log_weight

    def log_score(self, x: Sequences) -> Float[Tensor, "B"]:
        """log a(x) - E(x): log p(x) up to the unknown log Z."""
        return self.base.log_probs(x).sum(-1) + self.log_weight(x)
