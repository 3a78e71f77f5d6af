"""How far two distributions are apart, from draws of a third that covers both.

Each distribution enters by its log density relative to the law that was drawn from, known up to a constant, so that
target, base and any other model are treated alike. In nats, except the total variation:

    kl          KL(first || second) = E_first[log first - log second]
    reverse_kl  KL(second || first)
    tv          total variation, half the absolute difference, between 0 and 1
    js          Jensen-Shannon, between 0 and log 2

A divergence is infinite, and said to be, where one distribution forbids a draw that the other allows. Draws of the
target itself (Pool, Rejection, Metropolis) serve only as far as the target covers the other distribution.
"""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from esscher.draws import Draws
from esscher.estimate import Estimate
from esscher.estimators.intervals import interval, log_mean
from esscher.estimators.log_z import bias_of_log_mean
from esscher.estimators.moments import bias_of_mean_under, mean_under
from esscher.estimators.replicates import PerPrompt, Prompts, check_same, estimate
from esscher.samplers.scores import log_prob, log_weight
from esscher.target import Base, Tilted

METHOD = "weighted draws, skewness-corrected infinitesimal jackknife"


def divergences(
    target: Tilted, draws: Draws, *, other: Base | None = None, prompts: Prompts = "same", level: float = 0.95
) -> dict[str, Estimate]:
    """The four divergences between the target (first) and `other` (second; by default the target's base)."""
    shape = draws.log_weight.shape
    energy = log_weight(target, draws.x).view(shape)
    first = draws.log_weight.detach().double().cpu()
    base = torch.where(energy == -torch.inf, torch.nan, first - energy)  # log a - log q, lost where P = 0
    if bool(base.isnan().any()):
        base = _proposed_by_base(draws, base)
    second = base if other is None else base + log_prob(other, draws.x).view(shape) - draws.log_base.double().cpu()
    return _each(draws, first, second, prompts, level)


def _proposed_by_base(draws: Draws, base: Float[Tensor, "P N"]) -> Float[Tensor, "P N"]:
    """Forbidden draws have lost their log a - log q; it is 0 for all when it is 0 where it can be seen."""
    seen = base[~base.isnan()]
    if not draws.estimates_z or bool((seen.abs() > 1e-3).any()):
        raise ValueError(
            f"{int(base.isnan().sum())} draws are forbidden by the energy, and they were not proposed by the base, so their "
            f"share under the base is unknown. Nothing was estimated; draw with Importance() from the base."
        )
    return torch.zeros_like(base)


def _each(
    draws: Draws, first: Float[Tensor, "P N"], second: Float[Tensor, "P N"], prompts: Prompts, level: float
) -> dict[str, Estimate]:
    found = {}
    for name, (statistic, columns) in _kinds(first, second).items():
        if _infinite(name, *columns):
            found[name] = _infinity(first.numel(), level)
        else:
            unit = "" if name == "tv" else "nats"
            bias = bias_of_kullback_leibler if name.endswith("kl") else None
            found[name] = estimate(draws, statistic, columns, bias=bias, prompts=prompts, level=level, method=METHOD, unit=unit)
    return found


def _kinds(first: Tensor, second: Tensor) -> Mapping[str, tuple[PerPrompt, list[Tensor]]]:
    return {
        "kl": (kullback_leibler, [first, second]),
        "reverse_kl": (kullback_leibler, [second, first]),
        "tv": (total_variation, [first, second]),
        "js": (jensen_shannon, [first, second]),
    }


def _infinite(name: str, first: Tensor, second: Tensor) -> bool:
    return name.endswith("kl") and bool(((second == -torch.inf) & (first > -torch.inf)).any())


def _infinity(draws: int, level: float) -> Estimate:
    return Estimate(math.inf, math.inf, math.inf, level, draws, "one distribution forbids a draw that the other allows", "nats")


def kullback_leibler(
    count: Float[Tensor, "P n"], first: Float[Tensor, "P n"], second: Float[Tensor, "P n"]
) -> Float[Tensor, "P"]:
    """KL(first || second) from their log densities relative to the draws' law."""
    return mean_under(count, first, first - second) - log_mean(count, first) + log_mean(count, second)


def bias_of_kullback_leibler(first: Float[Tensor, "P n"], second: Float[Tensor, "P n"]) -> Float[Tensor, "P"]:
    """The biases of its three parts."""
    return bias_of_mean_under(first, first - second) - bias_of_log_mean(first) + bias_of_log_mean(second)


def total_variation(
    count: Float[Tensor, "P n"], first: Float[Tensor, "P n"], second: Float[Tensor, "P n"]
) -> Float[Tensor, "P"]:
    """Half the mean absolute difference of the two normalised weights, within [0, 1]."""
    one = (first - log_mean(count, first)[..., None]).exp()
    two = (second - log_mean(count, second)[..., None]).exp()
    return ((count * (one - two).abs()).sum(-1) / count.sum(-1) / 2).clamp(0, 1)


def jensen_shannon(
    count: Float[Tensor, "P n"], first: Float[Tensor, "P n"], second: Float[Tensor, "P n"]
) -> Float[Tensor, "P"]:
    """The mean divergence of both from their mixture, within [0, log 2]."""
    one, two = first - log_mean(count, first)[..., None], second - log_mean(count, second)[..., None]

    def to_mixture(log_own: Tensor, log_other: Tensor) -> Tensor:
        gap = torch.where(log_own > -torch.inf, log_other - log_own, 0.0)
        return (count * log_own.exp() * (math.log(2) - softplus(gap))).sum(-1) / count.sum(-1)

    return ((to_mixture(one, two) + to_mixture(two, one)) / 2).clamp(0, math.log(2))


def quasi_rejection_gap(
    draws: Draws, log_bound: float, *, prompts: Prompts = "same", level: float = 0.95
) -> dict[str, Estimate]:
    """The four divergences between the target (first) and the law of `QuasiRejection(log_bound)` (second).

    From all candidates that were proposed, so any other bound can be asked for as well, before paying for it.
    """
    if "proposed_log_weight" not in draws.info:
        raise ValueError(
            "These draws do not tell what was proposed. Nothing was estimated; draw with QuasiRejection or Rejection."
        )
    proposed, prompt = draws.info["proposed_log_weight"].double().cpu(), draws.info["proposed_prompt"].cpu()
    rows = [proposed[prompt == row][None] for row in range(len(draws.log_weight))]
    if prompts == "same":
        check_same(draws)
        rows = [torch.cat(rows, 1)]
    names = _kinds(proposed, proposed)
    return {
        name: _ragged(name, [_kinds(row, row.clamp(max=log_bound))[name] for row in rows], prompts, level) for name in names
    }


def _ragged(name: str, kinds: list[tuple[PerPrompt, list[Tensor]]], prompts: Prompts, level: float) -> Estimate:
    """The mean over prompts that were proposed different numbers of candidates."""
    sizes = [columns[0].shape[1] for _, columns in kinds]
    unit, method = "" if name == "tv" else "nats", f"{METHOD}; {sum(sizes)} candidates"
    bias = [bias_of_kullback_leibler(*columns) if name.endswith("kl") else 0.0 for _, columns in kinds]

    def each(*counts: Tensor) -> Tensor:
        parts = zip(counts, kinds, bias, strict=True)
        return torch.cat([statistic(count, *columns) - off for count, (statistic, columns), off in parts])

    if prompts != "sample":
        sources = [(1, size) for size in sizes]
        return interval(lambda *c: each(*c).mean(), sources, level=level, draws=sum(sizes), method=method, unit=unit)
    found = each(*[torch.ones(1, size, dtype=torch.float64) for size in sizes])
    method += f", {len(sizes)} prompts as a sample"
    sources = [(1, len(sizes))]
    return interval(lambda c: (c[0] * found).sum() / c.sum(), sources, level=level, draws=sum(sizes), method=method, unit=unit)
