"""Scores of many sequences, a few rows at a time, handed back on the CPU, where estimators work."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.samplers.ancestral import rows_at_once
from esscher.space import Sequences, Space
from esscher.target import Base, Tilted


def log_prob(base: Base, x: Sequences) -> Float[Tensor, "B"]:
    """log a(x) of each row, in float64."""
    return _by_rows(lambda rows: base.log_probs(rows).double().sum(-1), x, base.space)


def log_weight(target: Tilted, x: Sequences) -> Float[Tensor, "B"]:
    """-E(x) of each row, in float64."""
    return _by_rows(target.log_weight, x, target.space)


@torch.no_grad()
def _by_rows(score: Callable[[Sequences], Tensor], x: Sequences, space: Space) -> Float[Tensor, "B"]:
    step = rows_at_once(space)
    return torch.cat([score(x.rows(slice(first, first + step))).double().cpu() for first in range(0, len(x), step)])
