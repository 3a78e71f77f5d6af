"""The interfaces of networks: tokens to hidden vectors to logits, for whole sequences, for streams, and in decoding steps.

A `Network` reads a BOS symbol, which is no token of the space, and then the tokens: the hidden vector in column t depends on
the tokens before token t. A `StreamingNetwork` also reads streams segment by segment with a memory: tensors with a row for each
stream. Encoder-decoder networks read prompt and point apart, each after a BOS. Steps and memories have no gradient.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.core.space import Sequences, point_values
from esscher.core.target import State
from esscher.heads.head import LogProbsAndLogsumexp


@runtime_checkable
class Network(Protocol):
    """What `NetworkBase` requires of an `nn.Module`: hidden vectors, their logits, and decoding steps."""

    @property
    def max_positions(self) -> int | None:
        """The length of the longest sequence it can read; None is no limit."""

    def hidden(self, x: Sequences) -> Float[Tensor, "B T D"]:
        """The hidden vector of each token, computed from the tokens before it."""

    def output(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
        """The logits of hidden vectors."""

    def log_probs(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        """The log-probability of one token per hidden vector, 0 where it is below 0; never holds all logits."""

    def log_probs_and_logsumexp(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> LogProbsAndLogsumexp:
        """`log_probs` and the logsumexp of the logits, both 0 where a token is below 0."""

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], State]:
        """The logits after each prompt, and a state with space for `max_new_tokens` tokens."""

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        """The logits after one more token; may modify the state."""

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        """A copy of the chosen rows of a state."""


@runtime_checkable
class EncoderNetwork(Network, Protocol):
    """A network that can also attend to later positions."""

    def encode(self, x: Sequences) -> Float[Tensor, "B U D"]:
        """Bidirectional vectors of the BOS symbol and of each token: each depends on the whole row."""


CompiledStep = Callable[[Any, Any, Tensor], Tensor]  # of a network, a state and tokens


@runtime_checkable
class CapturableNetwork(Network, Protocol):
    """A network whose decoding step can be one graph (`esscher.bases.network.compile_steps`)."""

    static_steps: bool
    """Whether states have tensors of fixed shapes and addresses, as graphs need them; read by `begin`."""

    compiled_step: CompiledStep | None
    """`step_logits` of the class as a graph, not bound to this network, so that a copy of the network runs its own weights."""

    def step_logits(self, state: State, token: Int[Tensor, "B"]) -> Float[Tensor, "B V"]:
        """The logits after one more token; modifies the tensors of the state."""


def run_step(network: Any, state: Any, token: Int[Tensor, "B"]) -> Float[Tensor, "B V"]:
    """`step_logits` of a `CapturableNetwork`, compiled if it is."""
    step = network.compiled_step or type(network).step_logits
    logits: Tensor = step(network, state, token)
    return logits


@runtime_checkable
class PenalizedNetwork(Protocol):
    """A network, or a base made of one, whose training loss has a penalty term."""

    def penalty(self) -> Float[Tensor, ""] | None:
        """The penalty of the last training pass, returned once; None if there is none."""


@runtime_checkable
class DataDependentInit(Protocol):
    """A network whose initial weights depend on data."""

    def data_dependent_init(self, x: Sequences) -> None:
        """Set them from a batch of sequences."""


Memory = tuple[Tensor, ...]
"""The memory of a network: tensors with a row for each stream, without gradient."""


@runtime_checkable
class StreamingNetwork(Network, Protocol):
    """A network that carries a memory from one segment of a stream to the next."""

    @property
    def bos(self) -> int:
        """The symbol before the first token."""

    def init_memory(self, rows: int) -> Memory:
        """The memory at the start of `rows` streams."""

    def read(self, inputs: Int[Tensor, "B L"], memory: Memory) -> tuple[Float[Tensor, "B L D"], Memory]:
        """The hidden vector after each input, and the memory after all of them."""


@runtime_checkable
class ResumableNetwork(StreamingNetwork, Protocol):
    """A streaming network whose decoding steps may start from a memory, which is faster than `read`."""

    @property
    def can_resume(self) -> bool:
        """Whether its settings allow it."""

    def resume(self, inputs: Int[Tensor, "B L"], memory: Memory, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], State]:
        """The logits after further inputs, and a state with space for `max_new_tokens` tokens."""


def prepend_bos(x: Sequences, bos: int) -> Int[Tensor, "B U"]:
    """The BOS symbol and the tokens of each row; padding becomes token 0."""
    return torch.nn.functional.pad(torch.where(x.inside, x.tokens, 0), (1, 0), value=bos)


def shift_right(x: Sequences, bos: int) -> Int[Tensor, "B L"]:
    """The BOS symbol and the tokens of each point but the last; padding becomes token 0."""
    longest = int(x.lengths.max()) if len(x) else 0
    tokens = point_values(x, x.tokens, max(0, longest - 1))
    return torch.nn.functional.pad(tokens, (1, 0), value=bos)[:, :longest]


def unpadded(inputs: Int[Tensor, "B U"], stop: Int[Tensor, "B"]) -> Bool[Tensor, "B U"] | None:
    """True at the BOS symbol and the first `stop` tokens of each row; None where there is no padding."""
    inside = torch.arange(inputs.shape[1], device=inputs.device) <= stop[:, None]
    return None if bool(inside.all()) else inside
