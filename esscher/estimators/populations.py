"""Data, draws of the base and draws of the tilted model (the joint) after the same prompts, ready to be compared.

    found = populations(x, Importance()(target, distinct_prompts(x)[0], 32, rng=rng))
    found.mean("joint", values)

One pool of base draws serves both models. Every row has a weight: a draw of the base an equal one, one of the joint its share
s of exp(-E) within its prompt, corrected to first order for the bias of a finite pool:

    s_n (1 + s_n - sum_m s_m^2)          which sum to 1 and are no less than 0

Means under these weights are what resampling by them gives on average, without its noise. Prompts weigh as often as they
occur in the data. What is a replicate:

    several prompts     the prompts, each with its data and its draws, which so have one source of chance
    one prompt for all  the sequences of the data, and by themselves the draws

Left out: what a first-order correction leaves of the bias, which counts where few draws hold the weight (`effective`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.draws import Draws
from esscher.estimate import Estimate
from esscher.estimators.intervals import Statistic, interval
from esscher.estimators.proportions import proportion
from esscher.estimators.replicates import check_weights
from esscher.randomness import Rng
from esscher.space import Sequences, distinct_prompts

Name = Literal["data", "base", "joint"]
NAMES: tuple[Name, ...] = get_args(Name)


@dataclass(frozen=True)
class Population:
    """Weighted rows; each belongs to a replicate of a source of chance."""

    x: Sequences
    weight: Float[Tensor, "M"]
    replicate: Int[Tensor, "M"]
    source: int


@dataclass(frozen=True)
class Populations:
    """Three populations and their sources of chance, as `intervals.interval` takes them; base and joint share their rows."""

    data: Population
    base: Population
    joint: Population
    sources: tuple[tuple[int, int], ...]
    draws: Draws

    def __getitem__(self, name: Name) -> Population:
        if name not in NAMES:
            raise ValueError(f"Unknown population {name!r}; the known ones are {', '.join(NAMES)}.")
        return {"data": self.data, "base": self.base, "joint": self.joint}[name]

    def ratio(self, name: Name, values: Tensor, units: Tensor | None = None) -> Statistic:
        """The weighted sum of `values` over that of `units` (1 for each row) as a function of the replicates' counts."""
        own, size = self[name], self.sources[self[name].source][1]
        units = torch.ones_like(own.weight) if units is None else units
        above, below = (
            torch.zeros(size, dtype=torch.float64).index_add(0, own.replicate, own.weight * of_rows.double().cpu())
            for of_rows in (values, units)
        )

        def statistic(*counts: Tensor) -> Tensor:
            count = counts[own.source][0]
            return (count * above).sum() / (count * below).sum()

        return statistic

    def estimate(self, statistic: Statistic, *, level: float, method: str, unit: str = "") -> Estimate:
        """Any smooth function of ratios, with the interval of its replicates."""
        return interval(statistic, self.sources, level=level, draws=self.size, method=self.described(method), unit=unit)

    def share(self, statistic: Statistic, *, level: float, method: str, verdicts: bool = True) -> Estimate:
        """The same for a number in [0, 1], whose interval keeps to it, and is no point when all say 0 or 1; as `proportion`."""
        return proportion(
            statistic, self.sources, level=level, draws=self.size, method=self.described(method), verdicts=verdicts
        )

    def above_data(self, ratio: Mapping[Name, Statistic], *, level: float, method: str, unit: str = "") -> dict[Name, Estimate]:
        """How much a ratio of the base, and one of the joint, is above that of the data."""

        def less(one: Statistic, other: Statistic) -> Statistic:
            return lambda *counts: one(*counts) - other(*counts)

        others: tuple[Name, ...] = ("base", "joint")
        return {name: self.estimate(less(ratio[name], ratio["data"]), level=level, method=method, unit=unit) for name in others}

    def effective(self, *, level: float = 0.95) -> Estimate:
        """Effective draws of the joint among those of a prompt, on average over prompts."""
        found = self.draws.effective()
        if len(found) == 1:
            return Estimate.exact(float(found), method="of these very draws", unit="draws")
        return self.estimate(
            lambda *counts: (counts[0][0] * found).sum() / counts[0].sum(), level=level, method="mean", unit="draws"
        )

    def joint_draws(self, *, rng: Rng) -> Draws:
        """As many plain draws of the joint, resampled from the pool of each prompt."""
        prompts, each = self.draws.log_weight.shape
        chosen = rng.categorical(_corrected(self.draws.log_weight).log(), each)
        rows = (torch.arange(prompts)[:, None] * each + chosen).view(-1)
        log_base = self.draws.log_base.gather(1, chosen)
        zeros = torch.zeros_like(log_base)
        return Draws(self.draws.x.rows(rows), zeros, log_base, estimates_z=False, independent=False, cost=self.draws.cost)

    @property
    def size(self) -> int:
        """Rows in all: sequences of the data, and draws."""
        return len(self.data.x) + len(self.draws.x)

    def described(self, method: str) -> str:
        """The method of an estimate, with what it rests on."""
        prompts, each = self.draws.log_weight.shape
        what = f"after {prompts} prompts, {each} draws each" if prompts > 1 else f"and {each} draws after one prompt"
        return f"{method}; {len(self.data.x)} sequences {what}"


def populations(x: Sequences, draws: Draws) -> Populations:
    """The data `x`, and base draws with weights exp(-E) after `distinct_prompts(x)[0]`, as `Importance()` gives them."""
    prompts, context = distinct_prompts(x)
    count, each = draws.log_weight.shape
    if draws.prompts().prompt_names() != prompts.prompt_names():
        raise ValueError(
            f"The {count} prompts of the draws are not the {len(prompts)} of the data, in their order. Nothing was compared; "
            f"draw after `distinct_prompts(x)[0]`."
        )
    draws.log_z()  # refuses draws that discard their weights
    check_weights(draws)
    context = context.cpu()
    times = context.bincount(minlength=count).double()[:, None]  # sequences of the data after each prompt
    once = torch.ones(len(x), dtype=torch.float64)
    equal = (times / each).expand(count, each).reshape(-1)
    tilted = (times * _corrected(draws.log_weight)).view(-1)
    sources: tuple[tuple[int, int], ...] = ((1, count),)
    rows, own, source = context, torch.arange(count).repeat_interleave(each), 0
    if count == 1:
        sources = ((1, len(x)), (1, each))
        rows, own, source = torch.arange(len(x)), torch.arange(each), 1
    base, joint = (Population(draws.x, weight, own, source) for weight in (equal, tilted))
    return Populations(Population(x, once, rows, 0), base, joint, sources, draws)


def _corrected(log_weight: Float[Tensor, "P N"]) -> Float[Tensor, "P N"]:
    """Shares of the weight within each prompt, without the first-order bias of normalising by their own sum."""
    share = torch.softmax(log_weight.double(), -1)
    return share * (1 + share - (share**2).sum(-1, keepdim=True))
