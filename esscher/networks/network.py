"""What a network is: tokens to hidden vectors to logits, in one pass or in steps.

A `Network` turns sequences into hidden vectors, one before each token, and hidden vectors into logits; or it
takes single steps. What stands before the first token is its opening symbol, which is no token of the space.

A `StreamingNetwork` also reads endless streams, segment after segment, and carries a memory from one to the next: tensors
with a row for each stream, without gradient.

What it leaves out: gradients through steps, and through a memory.
"""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from esscher.space import Sequences
from esscher.target import State


@runtime_checkable
class Network(Protocol):
    """What `NetworkBase` asks of an `nn.Module`: a pass in two halves, hidden vectors and their logits; and steps."""

    @property
    def max_positions(self) -> int | None:
        """The longest sequence it can read, if it has a limit."""
        ...

    def hidden(self, x: Sequences) -> Float[Tensor, "B T D"]:
        """The vector before each token, made of the tokens before it."""
        ...

    def output(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
        """The logits of hidden vectors."""
        ...

    def score(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        """The log-probability of one token after each hidden vector, 0 where it is below 0; all logits are never kept."""
        ...

    def score_and_level(
        self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]
    ) -> tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]:
        """The same, and the logsumexp of the logits, both 0 where a token is below 0."""
        ...

    def begin(self, prompts: Sequences, room: int) -> tuple[Float[Tensor, "B V"], State]:
        """The logits after each prompt, and a state with room for so many more tokens."""
        ...

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        """The logits after one more token; may write into the state."""
        ...

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        """The chosen rows of a state, copied."""
        ...


@runtime_checkable
class EncoderNetwork(Network, Protocol):
    """A network that can also look ahead, so that it reads a row from both sides."""

    def surveyed(self, x: Sequences) -> Float[Tensor, "B U D"]:
        """The vectors of the opening symbol and of each token when all of a row is seen from everywhere."""
        ...


@runtime_checkable
class Penalised(Protocol):
    """A network, or a base made of one, whose training passes have a price beside the likelihood."""

    def penalty(self) -> Float[Tensor, ""] | None:
        """What the last training pass adds to its loss, told once; None where that is nothing."""
        ...


@runtime_checkable
class Settled(Protocol):
    """A network whose initial weights depend on data."""

    def settle(self, x: Sequences) -> None:
        """Set them by some sequences."""
        ...


Memory = tuple[Tensor, ...]
"""What a network keeps of streams it has read: tensors with a row for each stream, without gradient."""


@runtime_checkable
class StreamingNetwork(Network, Protocol):
    """A network that goes on from one segment of a stream to the next."""

    @property
    def opening(self) -> int:
        """The symbol that it reads before the first token."""
        ...

    def open(self, rows: int) -> Memory:
        """The memory of so many streams of which nothing was read."""
        ...

    def read(self, inputs: Int[Tensor, "B L"], memory: Memory) -> tuple[Float[Tensor, "B L D"], Memory]:
        """The vector after each input, and the memory that then holds them."""
        ...


@runtime_checkable
class ResumingNetwork(StreamingNetwork, Protocol):
    """One that may also go on from a memory by the steps that follow `begin`, which are faster than reading."""

    @property
    def resumes(self) -> bool:
        """Whether it may, with the settings it has."""
        ...

    def resume(self, inputs: Int[Tensor, "B L"], memory: Memory, room: int) -> tuple[Float[Tensor, "B V"], State]:
        """The logits after further inputs, and a state with room for so many more tokens."""
        ...
