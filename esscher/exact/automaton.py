"""Deterministic probabilistic automata: bases whose every quantity can be computed exactly."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.space import Sequences, Space


@dataclass(frozen=True)
class Automaton:
    """State s emits token v with probability exp(emit[s, v]) and moves to move[s, v]; it starts in state 0."""

    emit: Float[Tensor, "S V"]
    move: Int[Tensor, "S V"]
    space: Space

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], Int[Tensor, "B"]]:
        state = torch.zeros(len(prompts), dtype=torch.long)
        for t in range(prompts.tokens.shape[1]):
            state = torch.where(t < prompts.start, self.move[state, prompts.tokens[:, t]], state)
        return self.emit[state], state

    def advance(self, state: Int[Tensor, "B"], token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], Int[Tensor, "B"]]:
        state = self.move[state, token]
        return self.emit[state], state

    def select(self, state: Int[Tensor, "B"], index: Int[Tensor, "K"]) -> Int[Tensor, "K"]:
        return state[index]

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        state = torch.zeros(len(x), dtype=torch.long)
        columns = []
        for t in range(x.tokens.shape[1]):
            columns.append(self.emit[state, x.tokens[:, t]])
            state = self.move[state, x.tokens[:, t]]
        return torch.where(x.counted, torch.stack(columns, 1), 0.0) if columns else torch.zeros(len(x), 0)
