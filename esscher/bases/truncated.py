"""Temperature, top-k and nucleus (top-p) truncation of any base, as a normalised base with exact log-probabilities.

At every step the base's log-probabilities are divided by `temperature`, the `top_k` likeliest tokens are kept, of these the
fewest that hold `top_p` of the probability, and the kept ones are normalised. A dropped token scores -inf, so it is no proposal
for importance sampling of its base. Log-probabilities are ranked after rounding to `RANK_RESOLUTION` nats, ties by token, so
that scoring and stepping keep the same tokens except where a sum of probabilities is within round-off of `top_p`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.bases.logits import LogitBase, gather_tokens, split_rows
from esscher.core.device import widest
from esscher.core.space import Sequences
from esscher.core.target import Base, BaseWrapper, State, drops_tokens

RANK_RESOLUTION = 2.0**-12


@dataclass(frozen=True)
class Truncated(BaseWrapper):
    """A base truncated to its likelier tokens; None leaves a bound out."""

    top_k: int | None = None
    top_p: float | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k keeps at least one token, not {self.top_k}; None keeps all.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is a probability above 0, not {self.top_p}; None keeps all.")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"The temperature is above 0 and finite, not {self.temperature}; for greedy choice take top_k=1.")

    @property
    def drops_tokens(self) -> bool:
        """Whether some tokens may have probability 0."""
        return self.top_k is not None or self.top_p is not None or drops_tokens(self.base)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        log_prob, state = self.base.begin(prompts)
        return self._truncate(log_prob), state

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        log_prob, state = self.base.advance(state, token)
        return self._truncate(log_prob), state

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        pieces = split_rows(x, self.space.vocab_size, x.tokens.shape[1])
        return torch.cat([gather_tokens(self.logits(piece), piece) for piece in pieces])

    def logits(self, x: Sequences) -> Float[Tensor, "B T V"]:
        """Log-probabilities of every token where x is counted, 0 elsewhere; in one pass if the base has logits."""
        if isinstance(self.base, LogitBase):
            return torch.where(x.counted[..., None], self._truncate(self.base.logits(x)), 0.0)
        log_prob, state = self.begin(x.prompts())
        log_probs = log_prob.new_zeros(*x.tokens.shape, self.space.vocab_size)
        longest = int(x.lengths.max()) if len(x) else 0
        for t in range(longest):
            rows = (x.start + t < x.stop).nonzero()[:, 0]
            column = x.start[rows] + t
            log_probs[rows, column] = log_prob[rows]
            if t + 1 < longest:
                token = torch.zeros_like(x.start).index_put((rows,), x.tokens[rows, column])
                log_prob, state = self.advance(state, token)
        return log_probs

    def _truncate(self, log_prob: Float[Tensor, "*S V"]) -> Float[Tensor, "*S V"]:
        scaled = log_prob / self.temperature
        if self.top_k is not None and self.top_k < self.space.vocab_size:
            scaled = scaled.masked_fill(~_likeliest(scaled, self.top_k), -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            scaled = scaled.masked_fill(~_nucleus(scaled, self.top_p), -torch.inf)
        return torch.log_softmax(scaled, -1)


def _rank(log_prob: Float[Tensor, "*S V"]) -> Float[Tensor, "*S V"]:
    return (log_prob.detach() / RANK_RESOLUTION).round()


def _likeliest(log_prob: Float[Tensor, "*S V"], count: int) -> Bool[Tensor, "*S V"]:
    """True for the first `count` tokens by rank; ties go to the smaller token."""
    rank = _rank(log_prob)
    last = rank.topk(count, -1).values[..., -1:]
    above, equal = rank > last, rank == last
    return above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def _nucleus(log_prob: Float[Tensor, "*S V"], mass: float) -> Bool[Tensor, "*S V"]:
    """True for the fewest tokens by rank, ties going to the smaller token, whose probability is at least `mass`."""
    order = _rank(log_prob).argsort(dim=-1, descending=True, stable=True)
    share = torch.softmax(widest(log_prob.detach()), -1).gather(-1, order)
    before = share.cumsum(-1) - share
    return torch.zeros_like(log_prob, dtype=torch.bool).scatter(-1, order, before < mass)


def truncated(base: Base, *, top_k: int | None = None, top_p: float | None = None, temperature: float = 1.0) -> Base:
    """The base truncated by these settings; the base itself if they truncate nothing."""
    if (top_k, top_p, temperature) == (None, None, 1.0):
        return base
    if isinstance(base, Truncated):
        raise ValueError(
            f"The energy was fitted on a base of temperature {base.temperature:g}, top_k {base.top_k} and top_p {base.top_p}: "
            f"they are part of the tilted model. Nothing was drawn; leave temperature, top_k and top_p out, or tilt again."
        )
    return Truncated(base, top_k, top_p, temperature)
