"""Scores of many sequences in batches that fit the memory, in float64 on the CPU, in the order of the rows. Rows are scored
longest first, so that a batch has little padding."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.bases.logits import refuse_nan
from esscher.core.device import on_device_of
from esscher.core.space import Sequences, refuse_foreign_tokens
from esscher.core.target import Base, Tilted, name_of, prompt_vocab_size
from esscher.samplers.ancestral import rows_at_once

MOST_ROWS = 2**12
ABOVE_ONE = 0.05  # nats by which rounding may lift a log-probability above 0
TOKENS_AT_ONCE = 2**15  # prompts included: layers of 1,536 units take 200 MB each
PAIRS_AT_ONCE = 2**23  # of tokens of one row: the attention matrices of 12 heads take 400 MB


def log_prob(base: Base, x: Sequences) -> Float[Tensor, "B"]:
    """log a(x) of each row, in float64."""
    refuse_foreign_tokens(x, base.space, prompt_vocab_size=prompt_vocab_size(base))
    on_device = on_device_of(x, base)
    scores = score_in_batches(
        lambda rows: _token_scores(base, rows).cpu().double().sum(-1), on_device, at_most=rows_at_once(base.space)
    )
    if len(scores) and float(scores.max()) > ABOVE_ONE:
        raise ValueError(
            f"The base {name_of(base)} gives a sequence the log-probability {float(scores.max()):.4g}, above 0. Nothing was "
            f"kept; its log_probs must be normalised (`esscher.testing.check_base`)."
        )
    return refuse_nan(scores)


def _token_scores(base: Base, rows: Sequences) -> Float[Tensor, "B T"]:
    values = base.log_probs(rows)
    if values.shape != rows.tokens.shape or not values.is_floating_point():
        raise ValueError(
            f"The base {name_of(base)} gives log_probs of shape {list(values.shape)} and {values.dtype} for tokens of shape "
            f"{list(rows.tokens.shape)}: real numbers are wanted, one a token. Nothing was kept; see "
            f"`esscher.testing.check_base`."
        )
    return values


def log_weight(target: Tilted, x: Sequences) -> Float[Tensor, "B"]:
    """-E(x) of each row, in float64."""
    return score_in_batches(lambda rows: target.log_weight(on_device_of(rows, target.energy, target.base)), x)


@torch.no_grad()
def score_in_batches(score: Callable[[Sequences], Tensor], x: Sequences, *, at_most: int = MOST_ROWS) -> Float[Tensor, "B *S"]:
    """Any score of each row, one number or several, in float64; `score` must not depend on padding or on other rows."""
    lengths = x.stop.cpu()
    order = lengths.argsort(descending=True, stable=True)
    scores: Tensor | None = None
    first = 0
    while first < len(x):
        width = int(lengths[order[first]])
        here = order[first : first + min(at_most, max_rows(width))]
        batch = x.rows(here.to(x.tokens.device))
        values = score(Sequences(batch.tokens[:, :width], batch.start, batch.stop)).cpu().double()
        scores = torch.empty(len(x), *values.shape[1:], dtype=torch.float64) if scores is None else scores
        scores[here] = values
        first += len(here)
    return torch.empty(0, dtype=torch.float64) if scores is None else scores


def max_rows(width: int) -> int:
    """Rows of `width` tokens, prompts included, that one batch should hold."""
    width = max(width, 1)
    return max(1, min(MOST_ROWS, TOKENS_AT_ONCE // width, PAIRS_AT_ONCE // width**2))
