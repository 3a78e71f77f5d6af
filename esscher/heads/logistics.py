"""A mixture of discretised logistics as a head (Salimans et al. 2017): levels of a channel as bins of a line.

A hidden vector is all of it: for each of K logistics the logit of its share, its mean, and the log of its scale. Level v of L
is the bin between v - 1/2 and v + 1/2 on the line where the levels go from -1 to 1; the first and last bins have no end. As

    sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)),

the logarithm of a bin is a sum of three, exact however small it is, and the bins of a logistic sum to 1. Logits of levels are
log sum_k exp(share_k) P_k(level), so their logsumexp is that of the shares: a level that learns freely.

Letters: K logistics, N vectors; others as in `esscher.space`.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from esscher.heads.head import Logits, placed

LEAST_LOG_SCALE = -7.0


class LogisticsHead(nn.Module):
    """The distribution over levels that vectors of shares, means and log-scales tell; it has no weights."""

    def __init__(self, levels: int):
        super().__init__()
        self.levels = levels

    def logits(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
        share, mean, log_scale = hidden[..., None, :].chunk(3, -1)
        levels = torch.arange(self.levels, device=hidden.device)[:, None]
        return torch.logsumexp(share + log_bins(levels, mean, log_scale, self.levels), -1)

    def score(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return self.score_and_level(hidden, tokens)[0]

    def score_and_level(
        self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]
    ) -> tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]:
        asked = tokens >= 0
        share, mean, log_scale = hidden[asked].chunk(3, -1)
        level = share.logsumexp(-1)
        score = torch.logsumexp(share + log_bins(tokens[asked][:, None], mean, log_scale, self.levels), -1) - level
        return placed(score, asked), placed(level, asked)

    def prepared(self, steps: int) -> Logits:
        return self.logits


def log_bins(
    token: Int[Tensor, "..."], mean: Float[Tensor, "..."], log_scale: Float[Tensor, "..."], levels: int
) -> Float[Tensor, "..."]:
    """The log-probability of the bin of a level under each logistic."""
    if levels == 1:
        return torch.zeros_like(mean + token)
    half, narrow = 1 / (levels - 1), torch.exp(-log_scale.clamp(min=LEAST_LOG_SCALE))
    centred = token.to(mean.dtype) * (2 * half) - 1 - mean
    below = torch.where(token == levels - 1, 0.0, logsigmoid(narrow * (centred + half)))
    above = torch.where(token == 0, 0.0, logsigmoid(-narrow * (centred - half)))
    width = torch.where((token == 0) | (token == levels - 1), 0.0, log1mexp(2 * half * narrow))
    return below + above + width


def log1mexp(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """log(1 - exp(-x)) of positive numbers."""
    small = x < math.log(2)
    return torch.where(small, torch.log(-torch.expm1(-torch.where(small, x, 1.0))), torch.log1p(-torch.exp(-x)))
