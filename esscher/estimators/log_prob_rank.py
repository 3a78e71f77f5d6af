"""Softmax bottleneck: the rank of a model's matrix [contexts, tokens] of next-token log-probabilities, and their mean
divergence.

A softmax over vectors of width d has log a(v | c) = h_c . w_v + b_v - log Z_c, a matrix of rank at most d + 1, or d + 2 with
biases (Yang et al. 2018). The numerical rank counts the singular values s > s_1 max(n, V) eps in float64; the model must
compute in float64 too, since the round-off of single precision has full rank. The mean divergence is over ordered pairs of
different contexts; blocks of neighbouring contexts are the replicates.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.device import on_device_of
from esscher.core.estimate import Estimate
from esscher.core.space import Sequences
from esscher.core.target import Base
from esscher.estimators.intervals import BLOCKS, interval
from esscher.heads.chunked_log_softmax import LOGITS_PER_CHUNK
from esscher.samplers.scoring import max_rows


@dataclass(frozen=True)
class LogProbSpectrum:
    """Rank and singular values (descending) of the matrix of log-probabilities, and the mean divergence of two contexts."""

    contexts: int
    vocab_size: int
    rank: Estimate
    singular: Float[Tensor, "K"]
    divergence: Estimate

    @property
    def full(self) -> bool:
        """True where the matrix has full rank."""
        return int(self.rank.value) == min(self.contexts, self.vocab_size)


def singular_curve(singular: Float[Tensor, "K"]) -> tuple[list[float], list[float]]:
    """Singular values relative to the largest, in ascending order, and their empirical distribution function."""
    relative = (singular / singular[0]).flip(0)
    return relative.tolist(), (torch.arange(1, len(relative) + 1) / len(relative)).tolist()


@torch.no_grad()
def next_log_probs(base: Base, tokens: Int[Tensor, "N"], places: Int[Tensor, "n"], length: int) -> Float[Tensor, "n V"]:
    """log a(. | the `length` tokens before each place), in the precision of the base."""
    if length < 0 or len(places) == 0 or int(places.min()) < length or int(places.max()) > len(tokens):
        raise ValueError(
            f"Each of at least 1 place in a text of {len(tokens):,} tokens needs {length} tokens before it: got {len(places)} "
            f"places from {int(places.min()) if len(places) else None} on. Nothing was computed."
        )
    row = torch.full((len(places),), length)
    prompts = Sequences(tokens[places[:, None] + torch.arange(-length, 0)], row, row)
    step = max(1, min(max_rows(length + 1), LOGITS_PER_CHUNK // base.space.vocab_size))
    return torch.cat([base.begin(on_device_of(batch, base))[0].cpu() for batch in prompts.split(step)])


def log_prob_spectrum(log_probs: Float[Tensor, "n V"], *, confidence: float = 0.95) -> LogProbSpectrum:
    """The spectrum of log-probabilities in float64, with a row for each context in the order of the text."""
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
    return LogProbSpectrum(contexts, tokens, rank, singular, mean_divergence(log_probs, confidence=confidence))


def mean_divergence(log_probs: Float[Tensor, "n V"], *, confidence: float = 0.95) -> Estimate:
    """Mean KL(a(. | c) || a(. | c')) over ordered pairs of different contexts, in nats."""
    share = log_probs.exp()
    apart = (share * log_probs).sum(1, keepdim=True) - share @ log_probs.T
    apart.fill_diagonal_(0)
    block = torch.arange(len(apart)) * min(BLOCKS[0], len(apart)) // len(apart)

    def mean(count: Tensor) -> Tensor:
        each = count[0][block]
        return each @ apart @ each / (each.sum().square() - each.square().sum())

    blocks = int(block[-1]) + 1
    method = f"pairs of contexts in {blocks} blocks"
    estimate = interval(
        mean, [(1, blocks)], confidence=confidence, n=len(apart), method=method, unit="nats", counted="contexts"
    )
    return replace(estimate, low=max(0.0, estimate.low)) if estimate.value >= 0 else estimate
