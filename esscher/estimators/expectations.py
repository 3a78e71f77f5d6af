"""Expectations under the target from weighted draws, and which part of `Draws` is an independent replicate.

A per-prompt statistic becomes one number in one of three ways, chosen by `prompts`:

    "same"     every row is a run of one problem: draws are pooled; replicates are draws, or whole runs of dependent draws
    "fixed"    the mean over exactly these prompts: replicates are the draws of each prompt
    "sample"   the mean over all prompts like these: replicates are the prompts, whose spread includes the error of the draws

Dependent draws of one run (particles) are never replicates. Letters: P prompts, N or n draws of each, F features.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.estimators.intervals import Statistic, interval, ratio

Prompts = Literal["same", "fixed", "sample"]

PerPrompt = Callable[..., Tensor]
"""`statistic(count [P, n], *columns [P, n]) -> [P]`."""

Bias = Callable[..., Tensor]
"""`bias(*columns [P, n]) -> [P]`, at counts of 1."""

DEPENDENT = (
    "The {n} draws of each prompt depend on each other (particles of one run), so their spread does not show their error, and "
    "{p} prompts give no other replicates. Nothing was estimated; repeat the prompt in at least 2 rows, better 10 "
    '(prompts="same"), or treat different prompts as a sample (prompts="sample").'
)


def per_prompt(draws: Draws) -> list[Draws]:
    """The draws of each prompt as separate `Draws`, without `info`."""
    prompts, n = draws.log_weight.shape
    return [
        Draws(
            draws.x.rows(slice(row * n, row * n + n)),
            draws.log_weight[row : row + 1],
            draws.log_base[row : row + 1],
            draws.estimates_z,
            draws.independent,
            cost=draws.cost // prompts,
        )
        for row in range(prompts)
    ]


def estimate_from_draws(
    draws: Draws,
    statistic: PerPrompt,
    columns: list[Tensor],
    *,
    bias: Bias | None = None,
    prompts: Prompts,
    confidence: float,
    method: str,
    unit: str = "",
) -> Estimate:
    """One number from a per-prompt statistic of columns [P, N], with the replicates that `prompts` names.

    `bias` is the first-order bias of the statistic; it is subtracted where draws are independent.
    """
    if prompts not in get_args(Prompts):
        raise ValueError(f"Unknown prompts={prompts!r}; known: {', '.join(get_args(Prompts))}.")
    require_weights(draws)
    p, n = draws.log_weight.shape
    columns = [column.detach().double().cpu() for column in columns]
    if prompts == "same":
        require_one_prompt(draws)
        columns = [column.reshape(1, p * n) for column in columns]
    if not draws.independent and (prompts == "fixed" or (prompts == "same" and p < 2)):
        raise ValueError(DEPENDENT.format(p=p, n=n))
    offset = bias(*columns) if bias is not None and draws.independent else 0.0
    if bias is not None:
        method += ", bias corrected" if draws.independent else ", bias left in"

    def each(count: Tensor) -> Tensor:
        return statistic(count, *columns) - offset

    total: Statistic
    if prompts == "same":
        replicates, repeats = (p * n, 1) if draws.independent else (p, n)
        total, shape = (lambda count: each(count.repeat_interleave(repeats, 1))[0]), (1, replicates)
        method += f"; {p * n} draws" if draws.independent else f"; {p} runs of {n} draws"
    elif prompts == "fixed":
        total, shape = (lambda count: each(count).mean()), (p, n)
        method += f"; {n} draws for each of {p} fixed prompts"
    else:
        total, shape = ratio(each(torch.ones(p, n, dtype=torch.float64))), (1, p)
        method += f"; {p} prompts as a sample, {n} draws each"
    return interval(total, [shape], confidence=confidence, n=p * n, method=method, unit=unit)


def require_one_prompt(draws: Draws) -> None:
    """Raise unless all rows have the same prompt."""
    different = len(set(draws.prompts().prompt_keys()))
    if different > 1:
        raise ValueError(
            f"The draws belong to {different} different prompts, so they do not estimate one number. Nothing was "
            f'estimated; use prompts="sample" or "fixed" for the mean over prompts, or split them by per_prompt(draws).'
        )


def require_weights(draws: Draws) -> None:
    """Raise unless every prompt has a draw of positive weight."""
    empty = (draws.log_weight == -torch.inf).all(-1)
    if draws.log_weight.numel() == 0 or bool(empty.any()):
        raise ValueError(
            f"{int(empty.sum())} of {len(empty)} prompts have no draw with any weight among {draws.log_weight.shape[1]}: the "
            f"energy forbids them all. Nothing was estimated; draw more, or propose from a base that meets the constraint "
            f"more often."
        )


def check_independent(what: str, independent: bool, n: int, fewest: int = 2) -> None:
    """Raise unless there are at least `fewest` independent draws of each prompt."""
    if not independent or n < fewest:
        problem = f"{n} draws" if independent else f"{n} draws that depend on each other"
        raise ValueError(
            f"{what} needs at least {fewest} independent draws of each prompt, not {problem}. Nothing was estimated; draw more "
            f"with Importance."
        )


def independent_log_weights(draws: Draws, what: str, fewest: int = 2) -> Float[Tensor, "P N"]:
    """The log weights of independent draws that estimate log Z, in float64; raises for any other draws."""
    draws.log_z()  # raises where the sampler discards its normaliser
    require_weights(draws)
    check_independent(what, draws.independent, draws.log_weight.shape[1], fewest)
    return draws.log_weight.detach().double().cpu()


def moments(
    draws: Draws, features: Float[Tensor, "P N F"], *, prompts: Prompts = "same", confidence: float = 0.95
) -> list[Estimate]:
    """E_p[feature] of each feature, self-normalised, so draws need not estimate Z; each interval holds by itself."""
    return [
        estimate_from_draws(
            draws,
            weighted_mean,
            [draws.log_weight, features[..., feature]],
            bias=bias_of_weighted_mean,
            prompts=prompts,
            confidence=confidence,
            method="self-normalised mean, skewness-corrected infinitesimal jackknife",
        )
        for feature in range(features.shape[-1])
    ]


def weighted_mean(
    count: Float[Tensor, "P n"], log_weight: Float[Tensor, "P n"], values: Float[Tensor, "P n"]
) -> Float[Tensor, "P"]:
    """The weighted mean of the values, with each draw counted `count` times; values of weight 0 may be NaN or infinite."""
    weight = (log_weight.double() - log_weight.amax(-1, keepdim=True)).exp()
    values = torch.where(weight > 0, values, 0.0).double()
    return (count * weight * values).sum(-1) / (count * weight).sum(-1)


def bias_of_weighted_mean(log_weight: Float[Tensor, "P n"], values: Float[Tensor, "P n"]) -> Float[Tensor, "P"]:
    """First-order bias of the weighted mean: a draw of large weight also enlarges its own normaliser."""
    share = torch.softmax(log_weight.double(), -1)
    values = torch.where(share > 0, values, 0.0).double()
    return -(share**2 * (values - (share * values).sum(-1, keepdim=True))).sum(-1)
