"""What a fit of weights returns, by whatever way it was found: weights with intervals, moments, and what to mind.

A warning names the features it is about and says what to do; it never stops a fit. What stops one is in
`esscher.objectives.moment_goal`.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esscher.estimate import Estimate
from esscher.objectives.moment_goal import Goal
from esscher.objectives.moment_newton import Sample, basis_of

FEW_DEGREES = 15  # degrees of freedom of a standard error, below which intervals were measured to be too narrow
PRIOR_RULES = 0.6  # change of a log-weight by the prior, above which the data do not limit it
RARE = 10  # draws that differ from all others in a feature

Kind = Literal["no support", "separable", "rare", "collinear", "few effective", "not matched", "bound raised"]


@dataclass(frozen=True)
class FitWarning:
    """Something to mind: its kind, the features it is about (none: all), what was seen and what to do."""

    kind: Kind
    features: tuple[str, ...]
    advice: str

    def __str__(self) -> str:
        return f"{', '.join(self.features) or 'all features'}: {self.advice}"


@dataclass(frozen=True)
class FitStep:
    """The state before one update: the l1 distance of moments as it was then known, the weights, and the draws used so far."""

    step: int
    l1: float
    weights: tuple[float, ...]
    base_samples: int


@dataclass(frozen=True)
class MomentFit:
    """The weights with intervals, and what a person needs to judge them."""

    names: tuple[str, ...]
    weights: tuple[Estimate, ...]
    moments_wanted: tuple[float, ...]
    moments_base: tuple[float, ...]
    moments_model: tuple[float, ...]
    effective: float  # effective sample size of the base's draws under the fitted weights
    iterations: int
    moments_data: tuple[float | None, ...]  # None where the moment was given
    base_samples: int  # draws of the base that the fit cost
    warnings: tuple[FitWarning, ...]
    history: tuple[FitStep, ...]

    @property
    def l1(self) -> float:
        """The summed distance of the model's moments from the wanted ones."""
        return sum(abs(model - want) for model, want in zip(self.moments_model, self.moments_wanted, strict=True))

    def tensor(self) -> Float[Tensor, "F"]:
        return torch.tensor([weight.value for weight in self.weights], dtype=torch.float64)

    def rows(self) -> list[dict[str, Any]]:
        """A row of a table for each feature."""
        columns = (self.weights, self.moments_data, self.moments_wanted, self.moments_base, self.moments_model)
        return [
            {
                "feature": name, "weight": weight, "in the data": seen, "wanted": want, "in the base": base,
                "under the model": model, "note": self._note(name),
            }
            for name, weight, seen, want, base, model in zip(self.names, *columns, strict=True)
        ]  # fmt: skip

    def _note(self, name: str) -> str:
        given = ["given"] if self.moments_data[self.names.index(name)] is None else []
        return ", ".join([*given, *(one.kind for one in self.warnings if name in one.features)])


def warnings_of(
    goal: Goal, sample: Sample, share: Float[Tensor, "N"], *, prior_effect: Float[Tensor, "F"], degrees: Float[Tensor, "F"]
) -> tuple[FitWarning, ...]:
    """What to mind about weights under which the draws have these shares; `degrees` are those of their standard errors.

    `prior_effect` is how far the prior moves the log-weight over each feature's range. It is 1 where only the prior
    speaks against an infinite weight, and 1/3 where one of the data does, too.
    """
    constant = sample.base.amax(0) == sample.base.amin(0)
    found = [_no_support(name) for name in _chosen(goal, constant)]
    separable = ((prior_effect > PRIOR_RULES) | _all_at_an_end(goal, sample)) & ~constant
    if bool(separable.any()):
        found.append(_separable(goal, _chosen(goal, separable)))
    found += [_rare(sample, name, int(k)) for name, k in zip(goal.names, _rarities(sample), strict=True) if 0 < k < RARE]
    found += _collinear(goal, sample)
    if bool((degrees < FEW_DEGREES).any()):
        found.append(_few(_chosen(goal, degrees < FEW_DEGREES), float(degrees.min()), float(1 / (share**2).sum()), len(share)))
    model = share @ sample.base
    apart = (model - goal.wanted(sample.mean)).abs() > 0.01 * (sample.base.amax(0) - sample.base.amin(0))
    if bool(apart.any()):
        found.append(_unmatched(_chosen(goal, apart)))
    return tuple(found)


def _chosen(goal: Goal, which: Bool[Tensor, "F"]) -> tuple[str, ...]:
    return tuple(name for name, take in zip(goal.names, which.tolist(), strict=True) if take)


def _no_support(name: str) -> FitWarning:
    advice = "the same in every draw of the base, so its weight means nothing and is held at 0; draw more, or drop it"
    return FitWarning("no support", (name,), advice)


def _separable(goal: Goal, names: tuple[str, ...]) -> FitWarning:
    advice = (
        f"the data are all on one side, so that without the prior of {goal.prior:g} observations (or a ridge) the weight would "
        f"be infinite; its size is the prior's choice, its sign the data's"
    )
    return FitWarning("separable", names, advice)


def _all_at_an_end(goal: Goal, sample: Sample) -> Bool[Tensor, "F"]:
    """True where all data have the least, or the greatest, value that the draws show."""
    if goal.data is None:
        return torch.zeros_like(goal.given)
    low, high = goal.data.amin(0), goal.data.amax(0)
    return (low == high) & ((low == sample.base.amin(0)) | (low == sample.base.amax(0))) & ~goal.given


def _rarities(sample: Sample) -> list[int]:
    """For each feature with two or more values, how many draws differ from its most frequent value; else 0."""
    middle = sample.base.mode(0).values
    return [int(count) for count in (sample.base != middle).sum(0)]


def _rare(sample: Sample, name: str, draws: int) -> FitWarning:
    advice = f"only {draws} of {len(sample.base):,} draws of the base differ in it, which decide its weight; draw more"
    return FitWarning("rare", (name,), advice)


def _collinear(goal: Goal, sample: Sample) -> list[FitWarning]:
    """One warning for each group of features that some constant combination ties together."""
    constant = basis_of(sample.base).constant
    tied = (constant @ constant.T).abs() * sample.base.std(0) * sample.base.std(0)[:, None] > 1e-6
    groups: list[set[int]] = []
    for row in range(len(goal.names)):
        group = {row, *tied[row].nonzero()[:, 0].tolist()} if bool(tied[row].any()) else set()
        near = [one for one in groups if one & group]
        groups = [one for one in groups if not one & group] + ([group.union(*near)] if group else [])
    advice = "in every draw of the base some combination of them is the same, so only the others are known; drop one of them"
    named = [tuple(goal.names[k] for k in sorted(group)) for group in groups]
    return [FitWarning("collinear", names, advice) for names in named if len(names) > 1]


def _few(names: tuple[str, ...], degrees: float, effective: float, draws: int) -> FitWarning:
    advice = (
        f"a few observations decide the weight: its standard error has {degrees:.0f} degrees of freedom, and "
        f"{effective:.0f} of {draws:,} draws are effective under the weights, so the interval may be too narrow; draw more "
        f"from the base or from a model nearer the goal (log_weight), or give more data"
    )
    return FitWarning("few effective", names, advice)


def _unmatched(names: tuple[str, ...]) -> FitWarning:
    advice = (
        "the model's moment is more than 1 % of the feature's range from the wanted one: the ridge or an early stop keeps it"
    )
    return FitWarning("not matched", names, advice)
