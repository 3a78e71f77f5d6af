"""Bases that have logits: the whole distribution at every position of given sequences, and what is made of it."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.heads.softmax import LOGITS_AT_ONCE
from esscher.space import Sequences
from esscher.target import Base


@runtime_checkable
class LogitBase(Base, Protocol):
    """A base that can tell the whole distribution at every position of given sequences."""

    def logits(self, x: Sequences) -> Float[Tensor, "B T V"]:
        """Unnormalised log-probabilities of every token at position t, given the tokens before t."""
        ...


@runtime_checkable
class LevelBase(Base, Protocol):
    """A base that tells the level of its logits beside its log-probabilities, without keeping the logits."""

    def scores_and_levels(self, x: Sequences) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        """`log_probs`, and the logsumexp of the logits they are of, 0 where x is not counted."""
        ...


def scores_and_levels(base: Base, x: Sequences) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """log a(x_t | x_<t) and the logsumexp of the logits that it is of, 0 where x is not counted, of any base with logits."""
    if isinstance(base, LevelBase):
        return base.scores_and_levels(x)
    if not isinstance(base, LogitBase):
        raise ValueError(
            f"A {type(base).__name__} has no logits, so they have no level. Nothing was computed; use a network base, or a "
            f"model of Hugging Face."
        )
    return of_logits(base.logits(x), x)


def of_logits(logits: Float[Tensor, "B T V"], x: Sequences) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """The same of logits at hand."""
    level = logits.logsumexp(-1)
    score = at_tokens(logits, x) - level
    return torch.where(x.counted, score, 0.0), torch.where(x.counted, level, 0.0)


def in_pieces(x: Sequences, vocab_size: int, length: int) -> list[Sequences]:
    """The rows in as many parts as keep the logits of so many positions of each row small; no rows are one part."""
    at_once = max(1, LOGITS_AT_ONCE // (vocab_size * max(1, length)))
    return [x.rows(slice(first, first + at_once)) for first in range(0, max(1, len(x)), at_once)]


def at_tokens(values: Float[Tensor, "B T V"], x: Sequences) -> Float[Tensor, "B T"]:
    """What is told of the token that stands there, 0 where x is not counted: prompts and padding may hold what is no token."""
    counted = x.counted
    token = torch.where(counted, x.tokens, 0)
    return torch.where(counted, values.gather(-1, token[..., None])[..., 0], 0.0)
