"""Which part of `Draws` is an independent replicate.

A per-prompt statistic becomes one number in one of three ways, chosen by the word `prompts`:

    "same"     every row is a run of one problem: draws are pooled; replicates are draws, or whole runs if they depend
    "fixed"    the mean over just these prompts: replicates are the draws of each prompt
    "sample"   the mean over all prompts like these: replicates are the prompts, whose spread holds the draws' error too

Draws of one run that depend on each other (particles) are never replicates.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from esscher.draws import Draws
from esscher.estimate import Estimate
from esscher.estimators.intervals import interval

Prompts = Literal["same", "fixed", "sample"]

PerPrompt = Callable[..., Tensor]
"""`statistic(count [P, n], *columns [P, n]) -> [P]`."""

Bias = Callable[..., Tensor]
"""`bias(*columns [P, n]) -> [P]`, at counts of 1."""


def per_prompt(draws: Draws) -> list[Draws]:
    """The draws of each prompt by themselves, without `info`."""
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


def estimate(
    draws: Draws,
    statistic: PerPrompt,
    columns: list[Tensor],
    *,
    bias: Bias | None = None,
    prompts: Prompts,
    level: float,
    method: str,
    unit: str = "",
) -> Estimate:
    """One number from a per-prompt statistic of columns [P, N], its replicates as `prompts` says.

    `bias` is that of the statistic to first order; it can be taken off where draws are independent.
    """
    check_weights(draws)
    p, n = draws.log_weight.shape
    columns = [column.detach().double().cpu() for column in columns]
    if prompts == "same":
        check_same(draws)
        columns = [column.reshape(1, p * n) for column in columns]
    if bias is not None and draws.independent:
        statistic, method = _unbiased(statistic, bias(*columns)), f"{method}, bias corrected"
    elif bias is not None:
        method += ", bias left in"
    if prompts == "same":
        return _of_runs(draws, statistic, columns, level, method, unit)
    if prompts == "fixed":
        if not draws.independent:
            raise ValueError(DEPENDENT.format(p=p, n=n))
        method = f"{method}; {n} draws for each of {p} fixed prompts"
        return interval(
            lambda count: statistic(count, *columns).mean(), [(p, n)], level=level, draws=p * n, method=method, unit=unit
        )
    if prompts == "sample":
        each = statistic(torch.ones(p, n, dtype=torch.float64), *columns)
        method = f"{method}; {p} prompts as a sample, {n} draws each"
        return interval(
            lambda count: (count[0] * each).sum() / count.sum(), [(1, p)], level=level, draws=p * n, method=method, unit=unit
        )
    raise ValueError(f"Unknown prompts={prompts!r}; known: {', '.join(get_args(Prompts))}.")


def _unbiased(statistic: PerPrompt, bias: Tensor) -> PerPrompt:
    return lambda count, *columns: statistic(count, *columns) - bias


def _of_runs(draws: Draws, statistic: PerPrompt, columns: list[Tensor], level: float, method: str, unit: str) -> Estimate:
    """Columns are [1, P N] here; a run of dependent draws has one count."""
    p, n = draws.log_weight.shape
    if not draws.independent and p < 2:
        raise ValueError(DEPENDENT.format(p=p, n=n))
    replicates = p * n if draws.independent else p

    def pooled(count: Tensor) -> Tensor:
        return statistic(count.repeat_interleave(p * n // replicates, 1), *columns)[0]

    what = f"{p * n} draws" if draws.independent else f"{p} runs of {n} draws"
    return interval(pooled, [(1, replicates)], level=level, draws=p * n, method=f"{method}; {what}", unit=unit)


def check_same(draws: Draws) -> None:
    """All rows have one prompt."""
    different = len(set(draws.prompts().prompt_names()))
    if different > 1:
        raise ValueError(
            f"The draws belong to {different} different prompts, so they do not estimate one number. Nothing was "
            f'estimated; say prompts="sample" or "fixed" for the mean over prompts, or go through per_prompt(draws).'
        )


def check_weights(draws: Draws) -> None:
    """Every prompt has a draw with weight."""
    empty = (draws.log_weight == -torch.inf).all(-1)
    if draws.log_weight.numel() == 0 or bool(empty.any()):
        raise ValueError(
            f"{int(empty.sum())} of {len(empty)} prompts have no draw with any weight among {draws.log_weight.shape[1]}: the "
            f"energy forbids them all. Nothing was estimated; draw more, or propose from a base that meets the constraint "
            f"more often."
        )


DEPENDENT = (
    "The {n} draws of each prompt depend on each other (particles of one run), so their spread tells no error, and there "
    "is nothing else to tell it from with {p} prompts. Nothing was estimated; repeat the prompt in at least 2 rows, better "
    '10 (prompts="same"), or treat different prompts as a sample (prompts="sample").'
)
