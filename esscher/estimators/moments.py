"""Expectations under the target from weighted draws."""

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.draws import Draws
from esscher.estimate import Estimate
from esscher.estimators.replicates import Prompts, estimate


def moments(
    draws: Draws, features: Float[Tensor, "P N F"], *, prompts: Prompts = "same", level: float = 0.95
) -> list[Estimate]:
    """E_p[feature] for each feature, self-normalised: weighted draws need not estimate Z. Each interval stands by itself."""
    return [
        estimate(
            draws,
            mean_under,
            [draws.log_weight, features[..., feature]],
            bias=bias_of_mean_under,
            prompts=prompts,
            level=level,
            method="self-normalised mean, skewness-corrected infinitesimal jackknife",
        )
        for feature in range(features.shape[-1])
    ]


def mean_under(
    count: Float[Tensor, "P n"], log_weight: Float[Tensor, "P n"], values: Float[Tensor, "P n"]
) -> Float[Tensor, "P"]:
    """The weighted mean of the values, each draw counted as told; a value without weight may be anything."""
    weight = (log_weight.double() - log_weight.amax(-1, keepdim=True)).exp()
    values = torch.where(weight > 0, values, 0.0).double()
    return (count * weight * values).sum(-1) / (count * weight).sum(-1)


def bias_of_mean_under(log_weight: Float[Tensor, "P n"], values: Float[Tensor, "P n"]) -> Float[Tensor, "P"]:
    """That of the weighted mean, to first order: a draw of large weight pulls the mean and its own normaliser."""
    share = torch.softmax(log_weight.double(), -1)
    values = torch.where(share > 0, values, 0.0).double()
    return -(share**2 * (values - (share * values).sum(-1, keepdim=True))).sum(-1)
