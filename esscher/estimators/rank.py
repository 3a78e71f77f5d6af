"""How much the next-token distributions of a model can differ: the rank of their logarithms, and their mean divergence.

Rows of the matrix are contexts, columns tokens, entries log a(token | context). A softmax over vectors of width d has

    log a(v | c) = h_c . w_v + b_v - log Z_c,

a matrix of rank at most d + 1, or d + 2 with biases b, whatever the data (Yang et al. 2018): the softmax bottleneck. The
numerical rank counts the singular values above the level of round-off, s > s_1 max(n, V) eps, in float64; the model must
have computed in float64, too, because single precision is noise of full rank at that level.

The mean divergence is over ordered pairs of different contexts; contexts that stand near each other in a text are one
replicate of its interval.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.estimate import Estimate
from esscher.estimators.blocks import BLOCKS
from esscher.estimators.intervals import interval
from esscher.heads.softmax import LOGITS_AT_ONCE
from esscher.samplers.scores import beside, rows_of
from esscher.space import Sequences
from esscher.target import Base


@dataclass(frozen=True)
class Spread:
    """The spread of next-token distributions: rank, singular values from the largest on, mean divergence of two contexts."""

    contexts: int
    vocab_size: int
    rank: Estimate
    singular: Float[Tensor, "K"]
    divergence: Estimate

    @property
    def full(self) -> bool:
        """Whether the rank is as high as the size of the matrix allows."""
        return int(self.rank.value) == min(self.contexts, self.vocab_size)

    def curve(self) -> tuple[list[float], list[float]]:
        """Singular values over the largest, the smallest first, and the share of all that are not above each."""
        return singular_curve(self.singular)


def singular_curve(singular: Float[Tensor, "K"]) -> tuple[list[float], list[float]]:
    """Singular values over the largest, the smallest first, and the share of all that are not above each."""
    across = (singular / singular[0]).flip(0)
    return across.tolist(), (torch.arange(1, len(across) + 1) / len(across)).tolist()


@torch.no_grad()
def next_log_probs(base: Base, tokens: Int[Tensor, "N"], places: Int[Tensor, "n"], length: int) -> Float[Tensor, "n V"]:
    """log a(every token | the `length` tokens before each place), as precise as the base computes."""
    if length < 0 or len(places) == 0 or int(places.min()) < length or int(places.max()) > len(tokens):
        raise ValueError(
            f"Every place of a text of {len(tokens):,} tokens has {length} before it, and there is at least one: got "
            f"{len(places)} places from {int(places.min()) if len(places) else None} on. Nothing was computed."
        )
    row = torch.full((len(places),), length)
    prompts = Sequences(tokens[places[:, None] + torch.arange(-length, 0)], row, row)
    step = max(1, min(rows_of(length + 1), LOGITS_AT_ONCE // base.space.vocab_size))
    return torch.cat([base.begin(beside(base, some))[0].cpu() for some in prompts.split(step)])


def spread_of(log_probs: Float[Tensor, "n V"], *, level: float = 0.95) -> Spread:
    """The spread of distributions given as logarithms in float64, a row for each context in the order of the text."""
    if log_probs.dtype != torch.float64 or len(log_probs) < 2:
        raise ValueError(
            f"A numerical rank needs at least 2 contexts in float64, not {len(log_probs)} in {log_probs.dtype}, whose "
            f"round-off has full rank. Nothing was computed; let the model compute in float64."
        )
    forbidden = int(log_probs.isinf().sum())
    if forbidden:
        raise ValueError(f"{forbidden:,} probabilities are 0, so their logarithms have no rank. Nothing was computed.")
    singular = torch.linalg.svdvals(log_probs)
    above = int((singular > singular[0] * max(log_probs.shape) * torch.finfo(torch.float64).eps).sum())
    rank = Estimate.exact(float(above), method="singular values above round-off")
    contexts, tokens = log_probs.shape
    return Spread(contexts, tokens, rank, singular, mean_divergence(log_probs, level=level))


def mean_divergence(log_probs: Float[Tensor, "n V"], *, level: float = 0.95) -> Estimate:
    """Mean KL(a(. | c) || a(. | c')) over ordered pairs of different contexts, in nats."""
    share = log_probs.exp()
    apart = (share * log_probs).sum(1, keepdim=True) - share @ log_probs.T
    apart.fill_diagonal_(0)
    block = torch.arange(len(apart)) * min(BLOCKS[0], len(apart)) // len(apart)

    def mean(count: Tensor) -> Tensor:
        each = count[0][block]
        return each @ apart @ each / (each.sum().square() - each.square().sum())

    blocks = int(block[-1]) + 1
    method = f"pairs of {len(apart):,} contexts in {blocks} blocks"
    found = interval(mean, [(1, blocks)], level=level, draws=len(apart), method=method, unit="nats")
    return replace(found, low=max(0.0, found.low)) if found.value >= 0 else found
