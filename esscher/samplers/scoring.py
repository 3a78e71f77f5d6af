"""Scores of many sequences in batches that fit the memory, in float64 on the CPU, in the order of the rows. Rows are scored
longest first, so that a batch has little padding."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.bases.logits import refuse_nan
from esscher.core.device import on_device_of
from esscher.core.space import Sequences
from esscher.core.target import Base, Tilted
from esscher.samplers.ancestral import rows_at_once

MOST_ROWS = 2**12
TOKENS_AT_ONCE = 2**15  # prompts included: layers of 1,536 units take 200 MB each
PAIRS_AT_ONCE = 2**23  # of tokens of one row: the attention matrices of 12 heads take 400 MB


def log_prob(base: Base, x: Sequences) -> Float[Tensor, "B"]:
    """log a(x) of each row, in float64."""
    on_device = on_device_of(x, base)
    scores = score_in_batches(
        lambda rows: base.log_probs(rows).cpu().double().sum(-1), on_device, at_most=rows_at_once(base.space)
    )
    return refuse_nan(scores)


def log_weight(target: Tilted, x: Sequences) -> Float[Tensor, "B"]:
    """-E(x) of each row, in float64."""
    return score_in_batches(lambda rows: target.log_weight(on_device_of(rows, target.energy, target.base)), x)


@torch.no_grad()
def score_in_batches(score: Callable[[Sequences], Tensor], x: Sequences, *, at_most: int = MOST_ROWS) -> Float[Tensor, "B"]:
    """Any score of each row, in float64; `score` must not depend on padding or on other rows."""
    lengths = x.stop.cpu()
    order = lengths.argsort(descending=True, stable=True)
    scores = torch.empty(len(x), dtype=torch.float64)
    first = 0
    while first < len(x):
        width = int(lengths[order[first]])
        here = order[first : first + min(at_most, max_rows(width))]
        batch = x.rows(here.to(x.tokens.device))
        scores[here] = score(Sequences(batch.tokens[:, :width], batch.start, batch.stop)).cpu().double()
        first += len(here)
    return scores


def max_rows(width: int) -> int:
    """Rows of `width` tokens, prompts included, that one batch should hold."""
    width = max(width, 1)
    return max(1, min(MOST_ROWS, TOKENS_AT_ONCE // width, PAIRS_AT_ONCE // width**2))
