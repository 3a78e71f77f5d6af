"""Divergences between two distributions, from draws of a third that covers both.

Each distribution enters by its log density relative to the law of the draws, known up to a constant, so that target, base
and any other model are treated alike. In nats, except the total variation:

    kl          KL(first || second) = E_first[log first - log second]
    reverse_kl  KL(second || first)
    tv          total variation, half the absolute difference, between 0 and 1
    js          Jensen-Shannon, between 0 and log 2

A KL divergence is infinite, and reported so, where a draw has probability 0 under its second distribution only. Draws of the
target itself (SIR, Rejection, Metropolis) serve only as far as the target covers the other distribution.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.target import Base, Tilted
from esscher.estimators.expectations import (
    PerPrompt,
    Prompts,
    bias_of_weighted_mean,
    estimate_from_draws,
    require_one_prompt,
    weighted_mean,
)
from esscher.estimators.intervals import interval, log_mean, ratio
from esscher.estimators.log_z import bias_of_log_mean
from esscher.samplers.scoring import log_prob, log_weight

METHOD = "weighted draws, skewness-corrected infinitesimal jackknife"

Columns = Float[Tensor, "P n"]


def divergences(
    target: Tilted, draws: Draws, *, other: Base | None = None, prompts: Prompts = "same", confidence: float = 0.95
) -> dict[str, Estimate]:
    """The four divergences between the target (first) and `other` (second; by default the target's base)."""
    shape = draws.log_weight.shape
    negative_energy = log_weight(target, draws.x).view(shape)
    first = draws.log_weight.detach().double().cpu()
    base = torch.where(negative_energy == -torch.inf, torch.nan, first - negative_energy)  # log a - log q
    forbidden = base.isnan()
    if bool(forbidden.any()):  # their log a - log q is lost; it is 0 for all draws if it is 0 for the others
        if not draws.estimates_z or bool((base[~forbidden].abs() > 1e-3).any()):
            raise ValueError(
                f"The energy forbids {int(forbidden.sum())} draws that were not proposed by the base, so their share under the "
                f"base is unknown. Nothing was estimated; draw with Importance() from the base."
            )
        base = torch.zeros_like(base)
    second = base if other is None else base + log_prob(other, draws.x).view(shape) - draws.log_base.double().cpu()
    estimates = {}
    for name, (statistic, (left, right)) in _kinds(first, second).items():
        kl, unit = name.endswith("kl"), "" if name == "tv" else "nats"
        if kl and bool(((right == -torch.inf) & (left > -torch.inf)).any()):
            method = "one distribution forbids a draw that the other allows"
            estimates[name] = Estimate(math.inf, math.inf, math.inf, confidence, first.numel(), method, unit)
        else:
            bias = bias_of_kullback_leibler if kl else None
            estimates[name] = estimate_from_draws(
                draws, statistic, [left, right], bias=bias, prompts=prompts, confidence=confidence, method=METHOD, unit=unit
            )
    return estimates


def _kinds(first: Tensor, second: Tensor) -> dict[str, tuple[PerPrompt, tuple[Tensor, Tensor]]]:
    """By name, the statistic of each divergence and its two columns."""
    return {
        "kl": (kullback_leibler, (first, second)),
        "reverse_kl": (kullback_leibler, (second, first)),
        "tv": (total_variation, (first, second)),
        "js": (jensen_shannon, (first, second)),
    }


def kullback_leibler(count: Columns, first: Columns, second: Columns) -> Float[Tensor, "P"]:
    """KL(first || second) from log densities relative to the law of the draws."""
    return weighted_mean(count, first, first - second) - log_mean(count, first) + log_mean(count, second)


def bias_of_kullback_leibler(first: Columns, second: Columns) -> Float[Tensor, "P"]:
    """First-order bias of `kullback_leibler`."""
    return bias_of_weighted_mean(first, first - second) - bias_of_log_mean(first) + bias_of_log_mean(second)


def total_variation(count: Columns, first: Columns, second: Columns) -> Float[Tensor, "P"]:
    """Half the mean absolute difference of the normalised weights, in [0, 1]."""
    p = (first - log_mean(count, first)[..., None]).exp()
    q = (second - log_mean(count, second)[..., None]).exp()
    return ((count * (p - q).abs()).sum(-1) / count.sum(-1) / 2).clamp(0, 1)


def jensen_shannon(count: Columns, first: Columns, second: Columns) -> Float[Tensor, "P"]:
    """The mean divergence of both from their mixture, in [0, log 2]."""
    log_p, log_q = first - log_mean(count, first)[..., None], second - log_mean(count, second)[..., None]

    def to_mixture(log_density: Tensor, log_other: Tensor) -> Tensor:
        gap = torch.where(log_density > -torch.inf, log_other - log_density, 0.0)
        return (count * log_density.exp() * (math.log(2) - softplus(gap))).sum(-1) / count.sum(-1)

    return ((to_mixture(log_p, log_q) + to_mixture(log_q, log_p)) / 2).clamp(0, math.log(2))


def quasi_rejection_gap(
    draws: Draws, log_bound: float, *, prompts: Prompts = "same", confidence: float = 0.95
) -> dict[str, Estimate]:
    """The four divergences between the target (first) and the law of `QuasiRejection(log_bound)` (second).

    They come from all proposed candidates, so a bound can be judged before any sampling with it.
    """
    if "proposed_log_weight" not in draws.info:
        raise ValueError(
            "These draws do not hold their proposed candidates. Nothing was estimated; draw with QuasiRejection or Rejection."
        )
    proposed, prompt = draws.info["proposed_log_weight"].double().cpu(), draws.info["proposed_prompt"].cpu()
    rows = [proposed[prompt == row][None] for row in range(len(draws.log_weight))]
    if prompts == "same":
        require_one_prompt(draws)
        rows = [torch.cat(rows, 1)]
    return {
        name: _unequal_candidates(name, [_kinds(row, row.clamp(max=log_bound))[name] for row in rows], prompts, confidence)
        for name in _kinds(proposed, proposed)
    }


def _unequal_candidates(
    name: str, kinds: list[tuple[PerPrompt, tuple[Tensor, Tensor]]], prompts: Prompts, confidence: float
) -> Estimate:
    """The mean over prompts with different numbers of proposed candidates."""
    sizes = [columns[0].shape[1] for _, columns in kinds]
    unit, method, n = "" if name == "tv" else "nats", METHOD, sum(sizes)
    bias = [bias_of_kullback_leibler(*columns) if name.endswith("kl") else 0.0 for _, columns in kinds]

    def each(*counts: Tensor) -> Tensor:
        parts = zip(counts, kinds, bias, strict=True)
        return torch.cat([statistic(count, *columns) - off for count, (statistic, columns), off in parts])

    if prompts == "sample":
        statistic = ratio(each(*[torch.ones(1, size, dtype=torch.float64) for size in sizes]))
        sources, method = [(1, len(sizes))], f"{METHOD}, {len(sizes)} prompts as a sample"
    else:
        statistic, sources = (lambda *counts: each(*counts).mean()), [(1, size) for size in sizes]
    return interval(statistic, sources, confidence=confidence, n=n, method=method, unit=unit, counted="candidates")
