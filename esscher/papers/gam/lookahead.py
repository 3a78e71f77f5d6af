"""A proposal for strings that must contain a motif, from a base that seldom writes it.

    q(x_t | x_<t)  ~  r(x_t | x_<t) psi(x_<=t),      psi(prefix) = floor + (1 - floor) P(coin tosses complete the motif)

Rejection from r needs hundreds of candidates for each string if the motif is rare. Candidates of q contain the motif with
probability 1 - `OTHER` where r is coin tosses, and their weights p(x) / q(x) make rejection follow the same distribution.
psi is never 0, so q reaches every string that r reaches; the end symbol completes nothing.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.device import widest, widest_float
from esscher.core.space import Sequences
from esscher.core.target import BaseWrapper, State
from esscher.exact.counting import kmp_transitions

OTHER = 0.1  # probability of strings without the motif under q, where r is coin tosses


class LookaheadState(NamedTuple):
    """The state of the base, how much of the motif each row has, and how many tokens are left."""

    base: State
    progress: Int[Tensor, "B"]
    tokens_left: int


@dataclass(frozen=True)
class Lookahead(BaseWrapper):
    """The proposal q of a base r for a motif of tokens; prompts are not read by psi."""

    motif: tuple[int, ...]

    @cached_property
    def next_progress(self) -> Int[Tensor, "S V"]:
        """The transitions of the motif; its last state stays."""
        moves = torch.tensor(kmp_transitions(self.motif, self.space.vocab_size))
        moves[-1] = len(self.motif)
        return moves

    @cached_property
    def log_psi(self) -> Float[Tensor, "T S"]:
        """log psi by the number of symbols still to come and the progress."""
        symbols = [token for token in range(self.space.vocab_size) if token != self.space.eos]
        hit = torch.zeros(len(self.motif) + 1, dtype=torch.float64)
        hit[-1] = 1.0
        rows = [hit]
        for _ in range(self.space.max_length):
            rows.append(rows[-1][self.next_progress[:, symbols]].mean(1))
        table = torch.stack(rows)
        floor = OTHER / (1 - OTHER) * table[-1, 0]
        return torch.log(floor + (1 - floor) * table)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], LookaheadState]:
        log_prob, state = self.base.begin(prompts)
        progress = torch.zeros(len(prompts), dtype=torch.long, device=log_prob.device)
        return self._step(log_prob, LookaheadState(state, progress, self.space.max_length))

    def advance(self, state: LookaheadState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], LookaheadState]:
        log_prob, base = self.base.advance(state.base, token)
        progress = self.next_progress.to(token.device)[state.progress, token]
        return self._step(log_prob, LookaheadState(base, progress, max(0, state.tokens_left - 1)))

    def select(self, state: LookaheadState, index: Int[Tensor, "K"]) -> LookaheadState:
        return LookaheadState(self.base.select(state.base, index), state.progress[index], state.tokens_left)

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        """By steps over x."""
        log_prob, state = self.begin(x.prompts())
        row, columns = torch.arange(len(x), device=x.tokens.device), x.tokens.shape[1]
        result = torch.zeros(x.tokens.shape, dtype=log_prob.dtype, device=log_prob.device)
        for position in range(int(x.lengths.max()) if len(x) else 0):
            at = (x.start + position).clamp(max=columns - 1)
            token = x.tokens[row, at]
            inside = x.start + position < x.stop
            result[row[inside], at[inside]] = log_prob[row[inside], token[inside]]
            log_prob, state = self.advance(state, token)
        return result

    def _step(self, log_prob: Float[Tensor, "B V"], state: LookaheadState) -> tuple[Float[Tensor, "B V"], LookaheadState]:
        table = self.log_psi.to(log_prob.device, widest_float(log_prob.device))
        log_psi = table[max(0, state.tokens_left - 2)][self.next_progress.to(log_prob.device)[state.progress]]
        if self.space.eos is not None:
            log_psi[:, self.space.eos] = table[0, state.progress]
        return torch.log_softmax(widest(log_prob) + log_psi, -1), state
