"""Weighted draws as plain ones: each draw as many times as its share of the weight says."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.draws import Draws
from esscher.randomness import Rng
from esscher.space import Sequences


def ancestors(log_weight: Float[Tensor, "P N"], count: int, *, rng: Rng) -> Int[Tensor, "P {count}"]:
    """`count` columns for each row, in order; a column of share s appears count * s times on average.

    The whole part of count * s is certain, only the rest is chance, so equal weights give every column once.
    """
    share = torch.softmax(log_weight.double(), -1)
    if bool(share.isnan().any()):
        raise ValueError("A prompt has no draw of any weight: its energies are all infinite. Nothing was kept.")
    expected = count * share
    certain = (expected + 1e-9).floor()  # rounding must not turn a whole number into chance
    missing = (count - certain.sum(-1)).long()
    left = torch.where(missing[:, None] > 0, (expected - certain).clamp(min=0), 1.0)  # where none is missing, none is used
    most = int(missing.max()) if len(missing) else 0
    chosen = rng.categorical(left.log(), max(1, most))
    used = torch.arange(chosen.shape[1], device=chosen.device) < missing[:, None]
    times = certain.long().scatter_add(1, chosen, used.long())
    column = torch.arange(times.shape[1], device=times.device).expand(times.shape)
    return column.reshape(-1).repeat_interleave(times.view(-1)).view(-1, count)


def resample(draws: Draws, count: int, *, rng: Rng) -> Sequences:
    """`count` points for each prompt, prompt-major; a draw of share s appears count * s times on average."""
    column = ancestors(draws.log_weight, count, rng=rng)
    first = torch.arange(len(column))[:, None] * draws.log_weight.shape[1]
    return draws.x.rows((first + column).view(-1).to(draws.x.tokens.device))
