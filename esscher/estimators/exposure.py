"""Exposure bias: how far the prefixes that a model makes lie from those of the data, position by position.

A model learns to go on from prefixes of the data, and when it speaks goes on from its own. With lse_k the level of its logits
before token k (`esscher.energies.own_level`),

    E_data[lse_k] - log E_q[exp lse_k]        over prefixes that have not ended before k

is, by Donsker and Varadhan, a lower bound on KL(data prefixes || model prefixes), whatever the level is: no classifier is
trained, and no density of the data is needed. The level is a good critic where E-Forcing taught it to be one. A level that was
never taught may make the bound 0 or negative, which says nothing at all; a bound above 0 is a finding with any level. Both
expectations are of prefixes that go on: how many do is another matter. After prompts, a prompt belongs to the prefix.

    found = exposure(base, x, Ancestral()(Tilted(base), distinct_prompts(x)[0], 8, rng=rng))

Data and draws are resampled both, by rows and never by tokens: the positions of one sequence depend on each other. What is a
replicate is told in `esscher.estimators.populations`. The bias of the log of a mean is taken off to first order. Left out:
what few draws cannot see, where exp lse_k has heavy tails; positions that fewer than `FEWEST` sequences or draws reach.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.bases.logits import scores_and_levels
from esscher.draws import Draws
from esscher.energies.own_level import rows_for_levels
from esscher.estimate import Estimate
from esscher.estimators.intervals import interval
from esscher.estimators.populations import Population, populations
from esscher.space import Sequences, by_position
from esscher.target import Base

FEWEST = 10
UNIT = "nats"


@dataclass(frozen=True)
class Levels:
    """The level before every token of weighted rows, by position in the point; each row belongs to a replicate."""

    level: Float[Tensor, "M L"]
    there: Bool[Tensor, "M L"]
    weight: Float[Tensor, "M"]
    replicate: Int[Tensor, "M"]

    def sums(self, values: Float[Tensor, "M L"], replicates: int) -> Float[Tensor, "R L"]:
        """The weighted values of each replicate, where there are any."""
        each = self.weight[:, None] * torch.where(self.there, values, 0.0)
        return torch.zeros(replicates, values.shape[1], dtype=torch.float64).index_add(0, self.replicate, each)

    def cut(self, length: int) -> "Levels":
        """The first positions only."""
        return Levels(self.level[:, :length], self.there[:, :length], self.weight, self.replicate)


@dataclass(frozen=True)
class ExposureAt:
    """The bound before the token at one position, counted from 1, and what reached it."""

    position: int
    sequences: int
    draws: int
    bound: Estimate


@dataclass(frozen=True)
class Exposure:
    """The bound at every position that enough sequences and draws reach, and its mean over the tokens of the data there."""

    at: tuple[ExposureAt, ...]
    mean: Estimate


def exposure(base: Base, x: Sequences, draws: Draws, *, level: float = 0.95) -> Exposure:
    """The bound for data `x` and plain draws of the base after `distinct_prompts(x)[0]`."""
    if bool((draws.log_weight != 0).any()):
        raise ValueError("Exposure is of the model's own draws, and these are weighted. Nothing was measured; use Ancestral().")
    found = populations(x, draws)
    sides = [levels_of(base, side) for side in (found.data, found.base)]
    return exposure_of(*sides, sources=found.sources, level=level)


@torch.no_grad()
def levels_of(base: Base, rows: Population) -> Levels:
    """The levels of a population, a few rows at a time."""
    x = rows.x
    at_once = rows_for_levels(base, x.tokens.shape[1])
    width = int(x.lengths.max())
    level = torch.cat([by_position(part, scores_and_levels(base, part)[1].double(), width).cpu() for part in x.split(at_once)])
    return Levels(level, torch.arange(width) < x.lengths.cpu()[:, None], rows.weight, rows.replicate)


def exposure_of(data: Levels, drawn: Levels, *, sources: Sequence[tuple[int, int]], level: float = 0.95) -> Exposure:
    """The bound from levels; with one source of chance data and draws share their replicates, with two each has its own."""
    length = min(data.level.shape[1], drawn.level.shape[1])
    sums = _Sums.of(data.cut(length), drawn.cut(length), sources, (1 - level) / 2)
    many, few = data.there[:, :length].sum(0), drawn.there[:, :length].sum(0)
    kept = ((many >= FEWEST) & (few >= FEWEST)).nonzero()[:, 0]
    if len(kept) == 0:
        raise ValueError(
            f"No position is reached by {FEWEST} sequences and {FEWEST} draws: there are {len(data.level)} and "
            f"{len(drawn.level)}. Nothing was measured; give more."
        )
    method = f"level as critic, bias corrected, skewness-corrected infinitesimal jackknife; {sums.described}"
    rows = len(data.level) + len(drawn.level)

    def estimate(places: Int[Tensor, "k"]) -> Estimate:
        return interval(lambda *counts: sums.mean(counts, places), sources, level=level, draws=rows, method=method, unit=UNIT)

    at = tuple(ExposureAt(int(k) + 1, int(many[k]), int(few[k]), estimate(k[None])) for k in kept)
    return Exposure(at, estimate(kept))


@dataclass(frozen=True)
class _Sums:
    """What the replicates add to both expectations, by position; exp lse is relative to the largest at its position."""

    level: Float[Tensor, "R L"]
    tokens: Float[Tensor, "R L"]
    weight: Float[Tensor, "S L"]
    drawn: Float[Tensor, "S L"]
    top: Float[Tensor, "L"]
    floor: float

    @classmethod
    def of(cls, data: Levels, drawn: Levels, sources: Sequence[tuple[int, int]], floor: float) -> "_Sums":
        (_, rows), (_, others) = sources[0], sources[-1]
        top = torch.where(drawn.there, drawn.level, -torch.inf).amax(0).clamp(min=-1e300)
        weight, once = (drawn.level - top).exp(), torch.ones_like(drawn.level)
        own = data.sums(data.level, rows), data.sums(torch.ones_like(data.level), rows)
        return cls(*own, drawn.sums(weight, others), drawn.sums(once, others), top, floor)

    def mean(self, counts: Sequence[Tensor], places: Int[Tensor, "k"]) -> Float[Tensor, ""]:
        """The bound at these places, a token of the data counting once."""
        first, last = counts[0][0], counts[-1][0]
        tokens = (first @ self.tokens[:, places]).clamp(min=1e-12)
        level = (first @ self.level[:, places]) / tokens
        weight, drawn = self.weight[:, places], self.drawn[:, places]
        least = self.floor * weight.sum(0) / drawn.sum(0)  # by Markov's inequality, as in `log_mean`
        log_mean = torch.maximum((last @ weight) / (last @ drawn).clamp(min=1e-12), least).log() + self.top[places]
        return (tokens * (level - log_mean - self._bias(weight, drawn))).sum() / tokens.sum()

    def _bias(self, weight: Float[Tensor, "S k"], drawn: Float[Tensor, "S k"]) -> Float[Tensor, "k"]:
        """That of minus the log of a mean, to first order: half its squared relative error."""
        n = len(weight)
        effect = weight / weight.sum(0) - drawn / drawn.sum(0)
        return effect.square().sum(0) * n / (2 * (n - 1))

    @property
    def described(self) -> str:
        return f"{len(self.level)} replicates of the data, {len(self.weight)} of the draws"
