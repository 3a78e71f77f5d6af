"""A base in the midst of streams: its points are what comes next in each, so that objectives learn from streams unchanged.

A memory has a row for each stream (`esscher.bases.network`). Rows of points are the streams, or as many for each stream,
side by side, as draws of it are. Scoring changes nothing: `memory_after` tells the memory that follows a segment, and remembers
it from the scoring of that segment.

Where segments overlap, only the tokens that the next one does not hold again enter the memory (`keeps`).

What it leaves out: prompts of different lengths in one batch of steps; what stands before a segment is in the memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import log_softmax

from esscher.bases.network import NetworkBase
from esscher.networks.network import Memory, ResumingNetwork, StreamingNetwork
from esscher.networks.xlnet import Arrangement, XLNetNetwork, after_lead
from esscher.space import Sequences, Space
from esscher.target import State


class Carried:
    """A network base after a memory."""

    def __init__(self, base: NetworkBase, memory: Memory, keeps: int | None = None):
        self.base, self.memory, self.keeps = base, memory, keeps
        self._read: tuple[Tensor, Memory] | None = None  # the tokens scored last, and the memory after them
        self._arranged: Memory | None = None  # the memory after inputs in an order, which may not be what is told of x
        network = base.network  # whose steps are its own, or read one token after the other
        self._resumes = isinstance(network, ResumingNetwork) and network.resumes

    @property
    def space(self) -> Space:
        return self.base.space

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        hidden, tokens = self._follow(x)
        return self.base.network.score(hidden, tokens.masked_fill(~x.counted, -1))

    def scores_and_levels(self, x: Sequences) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        """`log_probs`, and the level of the logits they are of."""
        hidden, tokens = self._follow(x)
        return self.base.network.score_and_level(hidden, tokens.masked_fill(~x.counted, -1))

    def logits(self, x: Sequences) -> Float[Tensor, "B T V"]:
        """Unnormalised log-probabilities of every token at position t, given the memory and the tokens before t."""
        return self.base.network.output(self._follow(x)[0])

    @property
    def any_order(self) -> XLNetNetwork:
        return self.base.any_order

    def arranged(self, inputs: Int[Tensor, "B T"], arrangement: Arrangement, asked: Int[Tensor, "B Q"]) -> Float[Tensor, "B Q"]:
        """The log-probability of each asked token in the place of a target, 0 where it is below 0, given the memory, and inputs
        in an order."""
        (last, *own), network = self._memory(len(inputs)), self.any_order
        keeps = inputs.shape[1] if self.keeps is None else self.keeps
        hidden, after = network.predicted(*after_lead(last, inputs, arrangement), tuple(own), keeps)
        if len(inputs) == self._rows:
            self._arranged = inputs[:, keeps - 1].clone(), *after
        return network.score(hidden, asked)

    def penalty(self) -> Float[Tensor, ""] | None:
        """What the last training pass of the network adds to its loss, told once."""
        return self.base.penalty()

    @torch.no_grad()
    def memory_after(self, x: Sequences) -> Memory:
        """The memory that follows a segment of every stream."""
        if len(x) != self._rows or int(x.start.sum()) > 0 or not bool((x.stop == x.tokens.shape[1]).all()):
            raise ValueError(
                f"A segment has as many tokens of each of {self._rows} streams, and no prompt; got {len(x)} rows with points "
                f"of {int(x.lengths.min())} to {int(x.lengths.max())} tokens. Nothing was carried on."
            )
        if self._arranged is not None:
            return self._arranged
        if self._read is None or not torch.equal(self._read[0], x.tokens):
            self._follow(x)
        assert self._read is not None
        return self._read[1]

    @torch.no_grad()
    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        length = int(prompts.start.max()) if len(prompts) else 0
        if not bool((prompts.start == length).all()):
            raise ValueError(
                f"In the midst of streams all prompts have one length, not {int(prompts.start.min())} to {length} tokens. "
                f"Nothing was drawn; draw after one length at a time."
            )
        last, *own = self._memory(len(prompts))
        inputs = torch.cat([last[:, None], prompts.tokens[:, :length]], 1)
        with self._whole() as network:
            if self._resumes:
                assert isinstance(network, ResumingNetwork)
                logits, state = network.resume(inputs, tuple(own), self.space.max_length)
                return log_softmax(logits, -1), state
            hidden, after = network.read(inputs, tuple(own))
            return log_softmax(self.base.network.output(hidden[:, -1]), -1), after

    @torch.no_grad()
    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        if self._resumes:
            logits, after = self.base.network.advance(state, token)
            return log_softmax(logits, -1), after
        with self._whole() as network:
            hidden, after = network.read(token[:, None], state)
            return log_softmax(self.base.network.output(hidden[:, -1]), -1), after

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        if self._resumes:
            return self.base.network.select(state, index)
        return tuple(part.index_select(0, index) for part in state)

    @property
    def _rows(self) -> int:
        return len(self.memory[0])

    def _memory(self, rows: int) -> Memory:
        """The memory of so many rows, each stream's side by side."""
        if self._rows == 0 or rows % self._rows:
            raise ValueError(
                f"{rows} rows cannot stand for {self._rows} streams. Nothing was computed; give as many rows for each stream."
            )
        times = rows // self._rows
        return self.memory if times == 1 else tuple(part.repeat_interleave(times, 0) for part in self.memory)

    def _follow(self, x: Sequences) -> tuple[Float[Tensor, "B T D"], Int[Tensor, "B T"]]:
        """Hidden vectors before each token, and the tokens, padding being token 0."""
        tokens = torch.where(x.inside, x.tokens, 0)
        hidden, after = self.base.follow(self._memory(len(x)), tokens)
        if len(x) == self._rows:
            self._read = tokens, after
        return hidden, tokens

    @contextmanager
    def _whole(self) -> Iterator[StreamingNetwork]:
        """The network without dropout: steps always draw from the whole of it."""
        training = self.base.training
        self.base.eval()
        try:
            yield self.base.streaming
        finally:
            self.base.train(training)
