"""`Draws`, the weighted sample that every sampler returns, and the `Sampler` protocol.

Contract (`esscher.testing.assert_draws_follow`): for every prompt and every function f of the point,

    E[ mean_n exp(log_weight[n]) f(x[n]) ] = Z E_p[f]      when `estimates_z`,
    E[ mean_n exp(log_weight[n]) f(x[n]) ] = E_p[f]        otherwise.

Points stay on the device of the prompts; weights and log-probabilities are float64 on the CPU. A sampler that meets the
contract only in the limit (SIR with finitely many candidates, a finite chain) says so in its docstring.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.memory import machine_memory
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, Space, concatenate, refuse_foreign_prompts
from esscher.core.target import Tilted


@dataclass(frozen=True)
class Draws:
    """Weighted points, N for each of P prompts."""

    x: Sequences  # P * N rows, prompt-major
    log_weight: Float[Tensor, "P N"]
    log_base: Float[Tensor, "P N"]  # log a(x), computed while drawing: never score a draw again
    estimates_z: bool
    independent: bool  # of each other, given the prompt: true for importance draws, false for particles
    cost: int  # sequences drawn from the proposal
    info: Mapping[str, Tensor] = field(default_factory=dict)  # diagnostics of the sampler
    max_log_ratio: float = 0.0  # the largest log a(x) / q(x) of all points, q the proposal: 0 for draws of the base itself

    def log_z(self) -> Float[Tensor, "P"]:
        """log of the mean weight for each prompt: an estimate of log Z, in float64."""
        if not self.estimates_z:
            raise ValueError(
                "These draws follow p but carry no estimate of log Z: they come from a sampler that discards its "
                "normaliser (SIR, Rejection, Metropolis). Use Importance or Particles to estimate log Z."
            )
        return torch.logsumexp(self.log_weight.double(), -1) - math.log(self.log_weight.shape[1])

    def expect(self, values: Float[Tensor, "P N"]) -> Float[Tensor, "P"]:
        """Self-normalised estimate of E_p[values] for each prompt."""
        share = torch.softmax(self.log_weight.double(), -1)
        return (share * torch.where(share > 0, values, 0.0)).sum(-1)

    def ess(self) -> Float[Tensor, "P"]:
        """Effective sample size for each prompt: (sum w)^2 / sum w^2."""
        return ess(torch.softmax(self.log_weight.double(), -1))

    def prompts(self) -> Sequences:
        """The prompt of each row of weights."""
        return self.x.rows(slice(0, None, self.log_weight.shape[1])).prompts()

    def columns(self, chosen: slice) -> "Draws":
        """The chosen draws of every prompt, with their share of the cost and without `info`."""
        prompts, draws = self.log_weight.shape
        rows = torch.arange(prompts * draws).view(prompts, draws)[:, chosen].reshape(-1)
        log_weight, log_base = self.log_weight[:, chosen], self.log_base[:, chosen]
        cost = round(self.cost * log_weight.shape[1] / draws)
        x, ratio = self.x.rows(rows), self.max_log_ratio
        return Draws(x, log_weight, log_base, self.estimates_z, self.independent, cost, max_log_ratio=ratio)

    @classmethod
    def cat(cls, parts: "Sequence[Draws]", dim: int) -> "Draws":
        """Concatenate along prompts (`dim=0`, without `info`) or along draws of the same prompts (`dim=1`). Along draws, `info`
        keeps the names that all parts have."""
        x, info = concatenate([part.x for part in parts]), {}
        if dim == 1:
            rows = torch.split(torch.arange(len(x)), [len(part.x) for part in parts])
            x = x.rows(torch.cat([part_rows.view(len(parts[0].log_weight), -1) for part_rows in rows], 1).reshape(-1))
            shared = set.intersection(*(set(part.info) for part in parts))
            info = {name: torch.cat([part.info[name] for part in parts]) for name in sorted(shared)}
        return cls(
            x,
            torch.cat([part.log_weight for part in parts], dim),
            torch.cat([part.log_base for part in parts], dim),
            estimates_z=all(part.estimates_z for part in parts),
            independent=all(part.independent for part in parts),
            cost=sum(part.cost for part in parts),
            info=info,
            max_log_ratio=max(part.max_log_ratio for part in parts),
        )


def ess(share: Float[Tensor, "*S N"]) -> Float[Tensor, "*S"]:
    """Effective sample size of normalised weights: 1 / sum share^2."""
    return 1 / (share**2).sum(-1)


@runtime_checkable
class Sampler(Protocol):
    """A frozen dataclass of settings; calling it draws."""

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws: ...


S = TypeVar("S", bound=type)
BYTES_PER_NUMBER = 8
FITS_ANYWHERE = 10**8  # bytes
NUMBERS_PER_SEQUENCE = 4  # beside its tokens: where its point starts and stops, its weight, its log-probability


def checked_sampler(cls: S) -> S:
    """Decorator of the class of a sampler: what it is asked for is checked before anything is drawn (`check_request`)."""
    for name in ("__call__", "choose"):
        if name in vars(cls):
            setattr(cls, name, _checked(vars(cls)[name]))
    return cls


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng | None = None) -> Any:
        check_request(target, prompts, draws, rng)
        return method(self, target, prompts, draws, rng=rng)

    return call


def check_request(target: object, prompts: Sequences, draws: object, rng: object) -> None:
    """Refuse what no sampler can do: a model, prompts, draws or generator of a wrong kind, prompts with tokens that the base
    does not have, and more draws than the memory of this machine holds."""
    space = check_target(target, prompts)
    if not isinstance(rng, Rng):
        raise TypeError(f"A sampler needs a random number generator, not {rng!r}. Nothing was drawn; pass rng=SeededRng(seed).")
    if isinstance(draws, bool) or not isinstance(draws, int):
        raise TypeError(
            f"The number of draws is a whole number, not {draws!r}. Nothing was drawn; pass an int, such as draws=64."
        )
    if draws < 1:
        raise ValueError(f"A sampler makes at least 1 draw for each prompt, not {draws}. Nothing was drawn; ask for more.")
    refuse_too_many(len(prompts) * draws, prompts.tokens.shape[1] + space.max_length)


def check_target(target: object, prompts: Sequences) -> Space:
    """The space of a tilted model; another model, or prompts that its base does not know, are refused."""
    if not isinstance(target, Tilted):
        raise TypeError(
            f"A sampler draws from a Tilted model, not from a {type(target).__name__}. Nothing was drawn; pass Tilted(base) or "
            f"Tilted(base, energy)."
        )
    refuse_foreign_prompts(prompts, target.space, prompt_vocab_size=target.prompt_vocab_size)
    return target.space


def refuse_too_many(count: int, width: int) -> None:
    """Refuse sequences that do not fit into the memory of this machine, with what they cost."""
    size = count * (width + NUMBERS_PER_SEQUENCE) * BYTES_PER_NUMBER
    if size > FITS_ANYWHERE and size > (memory := machine_memory()):
        raise ValueError(
            f"{short_number(count)} sequences of up to {width:,} tokens take {gigabytes(size)} of memory, and "
            f"this machine has {gigabytes(memory)}. Nothing was drawn; draw fewer, or a part at a time."
        )


def short_number(number: int) -> str:
    """A whole number in digits, or as a power of 10 if it is a long one, too long for a float perhaps."""
    digits = int(number.bit_length() * math.log10(2)) + 1
    return f"{number:,}" if digits <= 15 else f"about 10^{digits - 1}"


def gigabytes(size: int) -> str:
    """A number of bytes in words."""
    return f"{size / 10**9:.3g} GB" if size < 10**12 else f"{short_number(size // 10**9)} GB"
