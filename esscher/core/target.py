"""p(x) = a(x) exp(-E(x)) / Z, the one model of this library: an autoregressive `Base`, an `Energy` of whole sequences, and a
`Tilted` of both. What a base keeps between two tokens (a cache, a hidden state) is its `State`, opaque to all others."""

from collections.abc import Callable
from dataclasses import dataclass, replace
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


def prompt_vocab_size(base: Base) -> int:
    """How many tokens prompts of a base may have: those of its space, or more where it says so, such as classes of images."""
    return int(getattr(base, "prompt_vocab_size", base.space.vocab_size))


def drops_tokens(base: Base) -> bool:
    """Whether a base says that it gives some tokens probability 0, so that it does not reach every point of its space."""
    return bool(getattr(base, "drops_tokens", False))


@dataclass(frozen=True)
class BaseWrapper:
    """A base that passes every call to another one; its subclasses change some of them."""

    base: Base

    @property
    def space(self) -> Space:
        return self.base.space

    @property
    def prompt_vocab_size(self) -> int:
        return prompt_vocab_size(self.base)

    @property
    def drops_tokens(self) -> bool:
        return drops_tokens(self.base)

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        return self.base.log_probs(x)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        return self.base.begin(prompts)

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        return self.base.advance(state, token)

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        return self.base.select(state, index)


def unwrapped(base: Base) -> Base:
    """The base itself, without wrappers that only watch it, such as those that count draws."""
    while isinstance(base, BaseWrapper) and all(
        getattr(type(base), name) is getattr(BaseWrapper, name) for name in ("space", "log_probs")
    ):
        base = base.base
    return base


Energy = Callable[[Sequences], Tensor]
"""E(x | prompt) for each row: `Sequences -> Float[Tensor, "B"]`. Lower is likelier; +inf forbids. An energy
with an embedding also states `vocab_size`, and is then refused on a base with another one."""

ENERGY_TOLERANCE = 0.02  # nats, and share of |E|, by which two calls may differ: rounding in half precision stays below
ENOUGH_ROWS = 4  # rows with different energies, among which a dependence on other rows shows


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

    @property
    def prompt_vocab_size(self) -> int:
        return prompt_vocab_size(self.base)

    def energies(self, x: Sequences) -> Float[Tensor, "B"]:
        """E(x); an energy that does not give one real number a row is an error. Once for each target, outside of training, the
        rows with the least and the largest energy are computed again, each alone and without padding: an energy that is
        random, depends on other rows or on padding, or writes into the tokens, is an error."""
        due = self._compared_rows < min(len(x), ENOUGH_ROWS) and not torch.is_grad_enabled()
        if not due or torch.compiler.is_compiling():
            return require_one_number_a_row(self.energy(x), len(x), self.energy)
        given = x.tokens.clone()
        values = require_one_number_a_row(self.energy(x), len(x), self.energy)
        if not torch.equal(x.tokens, given):
            raise ValueError(
                f"The energy {name_of(self.energy)} writes into the tokens that it is given. Nothing was kept; let it work on "
                f"a copy, such as `x.tokens.clone()`."
            )
        _refuse_unstable(self.energy, x, values)
        different = len(x) if bool((values != values[0]).any()) else 1
        object.__setattr__(self, "_compared_rows", max(self._compared_rows, different))
        return values

    _compared_rows = 0  # rows of the largest batch in which energies were compared with those of single rows

    def unchecked(self) -> "Tilted":
        """The same target, whose energies are not computed twice: they are random while training, or were checked before."""
        target = replace(self)
        object.__setattr__(target, "_compared_rows", ENOUGH_ROWS)
        return target

    def log_weight(self, x: Sequences) -> Float[Tensor, "B"]:
        """-E(x) on the device of x; an energy that is not a number, or -inf, is an error."""
        log_weight = -self.energies(x).to(x.tokens.device)
        wrong = torch.isnan(log_weight) | (log_weight == torch.inf)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0, 0])
            raise ValueError(
                f"The energy of {int(wrong.sum())} of {len(x)} sequences is {float(-log_weight[row])}, first in row {row}: "
                f"{x.rows(slice(row, row + 1)).points()[0][:20]}. No draw of this batch was kept; correct the energy "
                f"{name_of(self.energy)} (a division by a length of 0, a logarithm of 0, training that diverged)."
            )
        return log_weight

    def log_score(self, x: Sequences) -> Float[Tensor, "B"]:
        """log a(x) - E(x): log p(x) up to the unknown log Z."""
        return self.base.log_probs(x).sum(-1) + self.log_weight(x)


def name_of(part: object) -> str:
    """What errors call an energy or a base: the name of the function, or the class."""
    part = getattr(part, "__wrapped__", part)
    return getattr(part, "__qualname__", None) or type(part).__name__


def require_one_number_a_row(values: object, rows: int, energy: Energy) -> Tensor:
    """The energies, if they are one real number a row."""
    if not isinstance(values, Tensor) or not values.is_floating_point():
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(
            f"The energy {name_of(energy)} gives {kind}, and an energy gives a tensor of real numbers, float32 or float64. "
            f"Nothing was kept; convert it, for instance by `.double()`."
        )
    if values.shape != (rows,):
        raise ValueError(
            f"The energy {name_of(energy)} gives a tensor of shape {list(values.shape)} for {rows} sequences, and an energy "
            f"gives one number a row, [{rows}]. Nothing was kept; sum over the tokens of a row (`.sum(-1)`), never over rows."
        )
    return values


def _refuse_unstable(energy: Energy, x: Sequences, values: Float[Tensor, "B"]) -> None:
    """Raise unless the rows with the least and the largest energy, and that with the largest of those with padding, have the
    same energies again, alone and without padding."""
    padded = (x.stop < x.tokens.shape[1]).to(values.device) & torch.isfinite(values)
    largest = torch.where(padded, values.abs(), -1.0).argmax()
    for row in sorted({int(values.argmin()), int(values.argmax()), int(largest)}):
        one, before = x.rows(slice(row, row + 1)), values[row : row + 1]
        alone = require_one_number_a_row(energy(one.without_padding()), 1, energy)
        if _agree(alone, before):
            continue
        if not _agree(energy(x), values):
            what, advice = "is random: it changes between two calls", "switch dropout off (`eval()`), or fix its random numbers"
        elif not _agree(energy(one), before):
            what, advice = "depends on the other rows of the batch", "compute each row by itself"
        else:
            what, advice = "depends on the padding", "leave out what is not `x.counted`"
        raise ValueError(
            f"The energy {name_of(energy)} {what}. E(x) was {float(before[0]):.6g} and then {float(alone[0]):.6g} for "
            f"{one.points()[0][:20]}. Nothing was kept, because such weights belong to no distribution; {advice}."
        )


def _agree(one: Tensor, other: Tensor) -> bool:
    """Whether two calls gave the same, but for rounding; what is not a number is refused elsewhere."""
    if one.shape != other.shape:
        return False
    gap = (one.double() if one.device.type == "cpu" else one) - other
    near = torch.isfinite(other) & (gap.abs() <= ENERGY_TOLERANCE * (1 + other.abs()))
    close = near | (one == other) | torch.isnan(other)
    return bool(close.all())
