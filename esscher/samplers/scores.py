"""Scores of many sequences, a few rows at a time, handed back on the CPU, where estimators work.

How many rows go together is a matter of memory: a network holds some numbers for each token it reads, and attention some
for each pair of tokens. Rows of different lengths are scored longest first, so that the rows of one pass are of nearly equal
length and little padding is read; the answers come in the order of the rows.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.samplers.ancestral import rows_at_once
from esscher.space import Sequences
from esscher.target import Base, Tilted

MOST_ROWS = 2**12
TOKENS_AT_ONCE = 2**15  # prompts count: an encoder with layers of 1,536 units takes 200 MB for each of them
PAIRS_AT_ONCE = 2**23  # of tokens of one row: 400 MB, where attention of 12 heads is not computed piece by piece


def log_prob(base: Base, x: Sequences) -> Float[Tensor, "B"]:
    """log a(x) of each row, in float64."""
    return by_rows(lambda rows: base.log_probs(rows).double().sum(-1), x, at_most=rows_at_once(base.space))


def log_weight(target: Tilted, x: Sequences) -> Float[Tensor, "B"]:
    """-E(x) of each row, in float64."""
    return by_rows(target.log_weight, x)


def beside(base: Base, x: Sequences) -> Sequences:
    """The rows on the device of the base's weights, where it has any."""
    device = next((p.device for p in base.parameters()), None) if isinstance(base, torch.nn.Module) else None
    return x if device is None else x.to(device)


@torch.no_grad()
def by_rows(score: Callable[[Sequences], Tensor], x: Sequences, *, at_most: int = MOST_ROWS) -> Float[Tensor, "B"]:
    """Any score of each row, in float64; `score` must not care for padding or for the other rows."""
    lengths = x.stop.cpu()
    order = lengths.argsort(descending=True, stable=True)
    found = torch.empty(len(x), dtype=torch.float64)
    first = 0
    while first < len(x):
        width = int(lengths[order[first]])
        here = order[first : first + min(at_most, rows_of(width))]
        some = x.rows(here.to(x.tokens.device))
        found[here] = score(Sequences(some.tokens[:, :width], some.start, some.stop)).double().cpu()
        first += len(here)
    return found


def rows_of(width: int) -> int:
    """Rows of so many tokens, prompts included, that one pass should hold."""
    width = max(width, 1)
    return max(1, min(MOST_ROWS, TOKENS_AT_ONCE // width, PAIRS_AT_ONCE // width**2))
