"""Weighted draws as plain ones: each draw as many times as its share of the weight says."""

import torch

from esscher.draws import Draws
from esscher.randomness import Rng
from esscher.space import Sequences


def resample(draws: Draws, count: int, *, rng: Rng) -> Sequences:
    """`count` points for each prompt, prompt-major; a draw of share s appears count * s times on average.

    The whole part of count * s is certain, only the rest is chance, so equal weights give every draw once.
    """
    share = torch.softmax(draws.log_weight.double(), -1)
    if bool(share.isnan().any()):
        raise ValueError("A prompt has no draw of any weight: its energies are all infinite. Nothing was kept.")
    expected = count * share
    certain = (expected + 1e-9).floor()  # rounding must not turn a whole number into chance
    missing = (count - certain.sum(-1)).long()
    left = torch.where(missing[:, None] > 0, (expected - certain).clamp(min=0), 1.0)  # where none is missing, none is used
    chosen = rng.categorical(left.log(), max(1, int(missing.max())))
    times = certain.long()
    for row, number in enumerate(missing.tolist()):
        times[row] += torch.bincount(chosen[row, :number], minlength=times.shape[1])
    return draws.x.rows(torch.arange(len(draws.x)).repeat_interleave(times.view(-1)).to(draws.x.tokens.device))
