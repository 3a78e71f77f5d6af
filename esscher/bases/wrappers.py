"""Bases made from other bases: restricted, continued, shortened, multiplied, or conditioned on a memory. All have exact
log-probabilities. Left out: conditions on later tokens, which a base cannot normalise exactly."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import log_softmax, pad

from esscher.bases.logits import LogitBase, eval_mode, gather_tokens, split_rows
from esscher.bases.network import NetworkBase
from esscher.core.space import Sequences, Space
from esscher.core.target import Base, BaseWrapper, State, Tilted, drops_tokens
from esscher.heads.chunked_log_softmax import no_autocast, step_log_probs
from esscher.networks.network import Memory, ResumableNetwork
from esscher.networks.xlnet import FactorizationOrder, XLNetNetwork, prepend_visible_symbol


@dataclass(frozen=True)
class FirstTokenRestricted(BaseWrapper):
    """A base given that the first token of the point is one of the allowed ones."""

    allowed: Bool[Tensor, "V"]

    def __post_init__(self) -> None:
        if self.allowed.shape != (self.space.vocab_size,) or not bool(self.allowed.any()):
            raise ValueError(
                f"The mask of allowed first tokens has {self.space.vocab_size} entries, at least one of them True; here "
                f"{int(self.allowed.sum())} of {self.allowed.numel()} are allowed. Nothing was drawn."
            )

    @property
    def drops_tokens(self) -> bool:
        return not bool(self.allowed.all()) or drops_tokens(self.base)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        log_prob, state = self.base.begin(prompts)
        return torch.log_softmax(self._masked(log_prob), -1), state

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        log_probs = self.base.log_probs(x)
        log_mass = torch.logsumexp(self._masked(self.base.begin(x.prompts())[0]), -1)
        token = pad(x.tokens, (0, 1)).gather(1, x.start[:, None])[:, 0]
        change = torch.where(self.allowed.to(token.device)[token], -log_mass, -torch.inf)
        column = torch.arange(log_probs.shape[1], device=log_probs.device)
        first = x.counted & (column == x.start[:, None])
        return log_probs + torch.where(first, change[:, None], 0.0)

    def _masked(self, log_prob: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        return log_prob.masked_fill(~self.allowed.to(log_prob.device), -torch.inf)


@dataclass(frozen=True)
class Continuation(BaseWrapper):
    """The rest of points whose first `prefix_length` tokens, none of them the end symbol, are the last tokens of the prompt.
    The base reads the prefix step by step, not as a prompt, and the rest has at most `max_length - prefix_length` tokens."""

    prefix_length: int

    def __post_init__(self) -> None:
        longest = self.base.space.max_length
        if not 0 <= self.prefix_length < longest:
            raise ValueError(
                f"A prefix of {self.prefix_length} tokens leaves no token of points of at most {longest}. Nothing was made; "
                f"choose a prefix_length from 0 to {longest - 1}."
            )

    @property
    def space(self) -> Space:
        return replace(self.base.space, max_length=self.base.space.max_length - self.prefix_length)

    def with_prefix_in_point(self, x: Sequences) -> Sequences:
        """The same rows as points of the base: the prefix is part of the point, not of the prompt."""
        if len(x) and int(x.start.min()) < self.prefix_length:
            raise ValueError(
                f"A prompt has {int(x.start.min())} tokens, and its last {self.prefix_length} are the prefix of the point. "
                f"Nothing was computed; give prompts that end with the prefix."
            )
        return Sequences(x.tokens, x.start - self.prefix_length, x.stop)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        points = self.with_prefix_in_point(prompts)
        log_prob, state = self.base.begin(points.prompts())
        row = torch.arange(len(points), device=points.tokens.device)
        for position in range(self.prefix_length):
            log_prob, state = self.base.advance(state, points.tokens[row, points.start + position])
        return log_prob, state

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        log_probs = self.base.log_probs(self.with_prefix_in_point(x))
        return torch.where(x.counted, log_probs, torch.zeros((), dtype=log_probs.dtype, device=log_probs.device))


def tilted_continuation(target: Tilted, prefix_length: int) -> Tilted:
    """A tilted model after the first tokens of a point; the energy reads the whole point."""
    rest = Continuation(target.base, prefix_length)
    return Tilted(rest, lambda x: target.energy(rest.with_prefix_in_point(x)))


@dataclass(frozen=True)
class WithMaxLength(BaseWrapper):
    """The same base with points of at most `max_length` tokens: longer points are cut."""

    max_length: int

    def __post_init__(self) -> None:
        if not 1 <= self.max_length <= self.base.space.max_length:
            raise ValueError(f"max_length is from 1 to the base's {self.base.space.max_length:,}, not {self.max_length:,}.")

    @property
    def space(self) -> Space:
        return replace(self.base.space, max_length=self.max_length)


def with_max_length(base: Base, max_length: int | None) -> Base:
    """The base with points of at most `max_length` tokens; the base itself if its points are not longer, or for None."""
    return base if max_length is None or max_length >= base.space.max_length else WithMaxLength(base, max_length)


class ProductOfExperts(nn.Module):
    """p(x_t | x_<t) ~ a(x_t | x_<t) b(x_t | x_<t): a fixed base `a` and a `correction` `b` that learns by maximum likelihood
    (RALM; Deng et al., 2020). It is the control for an energy over whole sequences: as many parameters, but it sees no further
    than a base. Its parameters are those of the correction, which is a base itself and saved as one."""

    correction: Any

    def __init__(self, base: LogitBase, correction: LogitBase):
        super().__init__()
        if base.space != correction.space:
            raise ValueError(
                f"A base over {base.space} cannot be corrected by one over {correction.space}. "
                "Nothing was made; they must be equal."
            )
        self.correction = correction
        self._fixed_base = (base,)  # a tuple, so that its weights are not registered here

    @property
    def space(self) -> Space:
        return self._fixed_base[0].space

    def logits(self, x: Sequences) -> Float[Tensor, "B T V"]:
        with torch.no_grad():
            fixed = log_softmax(self._fixed_base[0].logits(x), -1)
        return fixed + self.correction.logits(x)

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        return torch.cat([self._score(piece) for piece in split_rows(x, self.space.vocab_size, x.tokens.shape[1])])

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        return _multiply_steps(self._fixed_base[0].begin(prompts), self.correction.begin(prompts))

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        return _multiply_steps(self._fixed_base[0].advance(state[0], token), self.correction.advance(state[1], token))

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        return self._fixed_base[0].select(state[0], index), self.correction.select(state[1], index)

    def _score(self, x: Sequences) -> Float[Tensor, "B T"]:
        if x.tokens.numel() == 0:
            return torch.zeros(x.tokens.shape, device=x.tokens.device)
        return gather_tokens(log_softmax(self.logits(x), -1), x)


def _multiply_steps(step: tuple[Tensor, State], correction: tuple[Tensor, State]) -> tuple[Float[Tensor, "B V"], State]:
    return log_softmax(step[0] + correction[0], -1), (step[1], correction[1])


class WithMemory:
    """A network base conditioned on the memory of earlier segments of each stream; points are the next segments.

    The memory has a row for each stream (`NetworkBase.init_memory`). A batch has the same number of rows for each stream, next
    to each other. Scoring leaves the memory as it is; `memory_after` returns the memory after a segment. If segments overlap,
    only the first `memory_tokens` tokens of a segment enter the memory. All prompts of a batch of steps have one length.
    """

    def __init__(self, base: NetworkBase, memory: Memory, memory_tokens: int | None = None):
        self.base, self.memory, self.memory_tokens = base, memory, memory_tokens
        self._last_scored: tuple[Tensor, Memory] | None = None  # the tokens scored last, and the memory after them
        self._memory_after_order: Memory | None = None  # the memory after inputs in a factorization order
        network = base.network
        self._resumes = isinstance(network, ResumableNetwork) and network.can_resume

    @property
    def space(self) -> Space:
        return self.base.space

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        hidden, tokens = self._hidden_and_tokens(x)
        return self.base.network.log_probs(hidden, tokens.masked_fill(~x.counted, -1))

    def log_probs_and_logsumexp(self, x: Sequences) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        hidden, tokens = self._hidden_and_tokens(x)
        return self.base.network.log_probs_and_logsumexp(hidden, tokens.masked_fill(~x.counted, -1))

    def logits(self, x: Sequences) -> Float[Tensor, "B T V"]:
        return self.base.network.output(self._hidden_and_tokens(x)[0])

    @property
    def any_order(self) -> XLNetNetwork:
        return self.base.any_order

    def log_probs_in_order(
        self, inputs: Int[Tensor, "B T"], factorization_order: FactorizationOrder, labels: Int[Tensor, "B Q"]
    ) -> Float[Tensor, "B Q"]:
        (last, *network_memory), network = self._memory(len(inputs)), self.any_order
        memory_tokens = inputs.shape[1] if self.memory_tokens is None else self.memory_tokens
        hidden, after = network.target_hidden(
            *prepend_visible_symbol(last, inputs, factorization_order), tuple(network_memory), memory_tokens
        )
        if len(inputs) == self._rows:
            self._memory_after_order = inputs[:, memory_tokens - 1].clone(), *self.base.in_weight_dtype(after)
        return network.log_probs(hidden, labels)

    def penalty(self) -> Float[Tensor, ""] | None:
        return self.base.penalty()

    @torch.no_grad()
    def memory_after(self, x: Sequences) -> Memory:
        """The memory after a segment of every stream; kept from its scoring, if it was the last one scored."""
        if len(x) != self._rows or int(x.start.sum()) > 0 or not bool((x.stop == x.tokens.shape[1]).all()):
            raise ValueError(
                f"A segment has equally many tokens of each of {self._rows} streams, and no prompt; got {len(x)} rows with "
                f"points of {int(x.lengths.min())} to {int(x.lengths.max())} tokens. The memory is unchanged."
            )
        if self._memory_after_order is not None:
            return self._memory_after_order
        if self._last_scored is None or not torch.equal(self._last_scored[0], x.tokens):
            self._hidden_and_tokens(x)
        assert self._last_scored is not None
        return self._last_scored[1]

    @torch.no_grad()
    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        length = int(prompts.start.max()) if len(prompts) else 0
        if not bool((prompts.start == length).all()):
            raise ValueError(
                f"After a memory all prompts have one length, not {int(prompts.start.min())} to {length} tokens. Nothing was "
                f"drawn; draw after prompts of one length at a time."
            )
        last, *network_memory = self._memory(len(prompts))
        inputs = torch.cat([last[:, None], prompts.tokens[:, :length]], 1)
        with eval_mode(self.base):
            network = self.base.streaming
            if self._resumes:
                assert isinstance(network, ResumableNetwork)
                with no_autocast(inputs.device):
                    logits, state = network.resume(inputs, tuple(network_memory), self.space.max_length)
                    return step_log_probs(logits), state
            return self._read(inputs, tuple(network_memory))

    @torch.no_grad()
    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        if self._resumes:
            return self.base.advance(state, token)
        with eval_mode(self.base):
            return self._read(token[:, None], state)

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        if self._resumes:
            return self.base.select(state, index)
        return tuple(part.index_select(0, index) for part in state)

    @property
    def _rows(self) -> int:
        return len(self.memory[0])

    def _read(self, inputs: Int[Tensor, "B L"], memory: Memory) -> tuple[Float[Tensor, "B V"], Memory]:
        """The log-probabilities of the token after the inputs, and the memory after them."""
        with no_autocast(inputs.device):
            hidden, after = self.base.streaming.read(inputs, memory)
            return step_log_probs(self.base.network.output(hidden[:, -1])), after

    def _memory(self, rows: int) -> Memory:
        """The memory repeated for so many rows, those of a stream next to each other."""
        if self._rows == 0 or rows % self._rows:
            raise ValueError(
                f"{rows} rows cannot be divided equally among {self._rows} streams. "
                "Nothing was computed; give each equally many."
            )
        times, memory = rows // self._rows, self.base.in_weight_dtype(self.memory)
        return memory if times == 1 else tuple(part.repeat_interleave(times, 0) for part in memory)

    def _hidden_and_tokens(self, x: Sequences) -> tuple[Float[Tensor, "B T D"], Int[Tensor, "B T"]]:
        """The hidden vector before each token, and the tokens, with token 0 in padding."""
        tokens = torch.where(x.inside, x.tokens, 0)
        hidden, after = self.base.hidden_and_memory(self._memory(len(x)), tokens)
        if len(x) == self._rows:
            self._last_scored = tokens, after
        return hidden, tokens
