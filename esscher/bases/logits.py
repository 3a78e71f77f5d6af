"""Bases with logits, the whole next-token distribution at every position, and helpers that such bases share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.core.space import Sequences
from esscher.core.target import Base
from esscher.heads.chunked_log_softmax import LOGITS_PER_CHUNK


@runtime_checkable
class LogitBase(Base, Protocol):
    """A base that returns the whole next-token distribution at every position of given sequences."""

    def logits(self, x: Sequences) -> Float[Tensor, "B T V"]:
        """Unnormalised log-probabilities of every token at position t, given the tokens before t."""
        ...


@runtime_checkable
class LogsumexpBase(Base, Protocol):
    """A base that returns the logsumexp of its logits beside its log-probabilities, without keeping the logits."""

    def log_probs_and_logsumexp(self, x: Sequences) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        """`log_probs`, and the logsumexp of the logits at each position, 0 where x is not counted."""
        ...


def log_probs_and_logsumexp(base: Base, x: Sequences) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """log a(x_t | x_<t) and the logsumexp of the logits at t, 0 where x is not counted, for any base with logits."""
    if isinstance(base, LogsumexpBase):
        return base.log_probs_and_logsumexp(x)
    return log_probs_from_logits(require_logits(base, "A logsumexp").logits(x), x)


def require_logits(base: Base, what: str) -> LogitBase:
    """The base, if it has logits; `what` needs them."""
    if isinstance(base, LogitBase):
        return base
    raise ValueError(
        f"{what} needs the whole next-token distribution at every position, and a {type(base).__name__} has no `logits`. "
        f"Nothing was computed; use a network base, or a Hugging Face model."
    )


def log_probs_from_logits(logits: Float[Tensor, "B T V"], x: Sequences) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """The log-probabilities of the tokens of x and the logsumexp of the logits, 0 where x is not counted."""
    logsumexp = logits.logsumexp(-1)
    log_probs = gather_tokens(logits, x) - logsumexp
    return torch.where(x.counted, log_probs, 0.0), torch.where(x.counted, logsumexp, 0.0)


def split_rows(x: Sequences, vocab_size: int, length: int) -> list[Sequences]:
    """The rows in parts whose logits, `length` positions of each row, stay small; an empty batch is one part."""
    at_once = max(1, LOGITS_PER_CHUNK // (vocab_size * max(1, length)))
    return x.split(at_once) or [x]


def gather_tokens(values: Float[Tensor, "B T V"], x: Sequences) -> Float[Tensor, "B T"]:
    """The value of the token of x at each position, 0 where x is not counted; padding may hold anything."""
    counted = x.counted
    token = torch.where(counted, x.tokens, 0)
    return torch.where(counted, values.gather(-1, token[..., None])[..., 0], 0.0)


def check_length(limit: int | None, length: int, what: str, advice: str = "choose a smaller max_length") -> None:
    """Refuse sequences of `length` tokens for a model with fewer positions; None is no limit."""
    if limit is not None and length > limit:
        raise ValueError(
            f"The model has {limit} positions and was given {what}. Nothing was computed; shorten the sequences, or {advice}."
        )


def refuse_nan(log_probs: Tensor) -> Tensor:
    """The log-probabilities of sequences, if all of them are numbers."""
    wrong = int(log_probs.isnan().sum())
    if wrong:
        raise ValueError(
            f"The log-probability of {wrong} of {log_probs.numel()} sequences is not a number. Nothing was kept. Weights in "
            f"float16 overflow above 65,504: use bfloat16 or float32; or training has diverged: use an earlier checkpoint."
        )
    return log_probs


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Within it, a module and its submodules are in evaluation mode; afterwards each is in the mode it was in."""
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
