"""Learnt twists: a small network that predicts log E[exp(-E(x))] over the base's continuations of a prefix.

    log psi(prefix, next) = offset + one number for each next token, from the hidden vector of the base after the prefix

The number is that of the prefix and the next token together, so one product a token gives it for the whole vocabulary: the
*proposal* a(next | prefix) psi(prefix, next) / norm (`TwistedBase`), and the weight of the longer prefix (`Particles`). With
the exact twist every draw has the weight Z. `offset` moves with a constant of the energy; the network does not. A base without
hidden vectors (`esscher.bases.hidden_states`) is read by a recurrent network of the twist's own, the `memory`.

`esscher.training.twist_learning` learns a twist. Letters: D width of a hidden vector, R of the memory, L positions of a point.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from esscher.bases.hidden_states import Steps, hidden_of, hidden_width, steps_over, with_hidden_states
from esscher.core.randomness import Rng, require_seeded
from esscher.core.space import Sequences, Space, point_values, scatter_point_values
from esscher.core.target import Base, State, prompt_vocab_size
from esscher.energies.config import TwistConfig
from esscher.networks.network import prepend_bos

DEFAULT_MEMORY = 64  # width of the memory of a base without hidden vectors


class LearntTwist(nn.Module):
    """log psi(prefix, next) - offset, for every next token; 0 before it has learnt."""

    def __init__(self, config: TwistConfig, sizes: "TwistSizes", offset: float = 0.0):
        super().__init__()
        self.config, self.sizes, self.offset = config, sizes, offset
        width, memory = config.width, config.memory or 0
        self.position = nn.Embedding(sizes.max_length, width)
        nn.init.normal_(self.position.weight, std=0.02)
        if sizes.hidden is not None:
            self.from_hidden = nn.Linear(sizes.hidden, width, bias=False)
        if memory:
            self.embedding = nn.Embedding(sizes.prompt_vocab_size + 1, memory)  # the last one is the BOS symbol
            self.gru = nn.GRU(memory, memory, batch_first=True)
            self.from_memory = nn.Linear(memory, width, bias=False)
        self.inner = nn.Linear(width, width)
        self.output = nn.Linear(width, sizes.vocab_size)
        for weight in self.output.parameters():
            nn.init.zeros_(weight)

    def forward(
        self, hidden: Float[Tensor, "*S D"] | None, memory: Float[Tensor, "*S R"] | None, position: Int[Tensor, "*S"]
    ) -> Float[Tensor, "*S V"]:
        """For prefixes with these vectors, of `position` tokens."""
        x = self.position(position.clamp(max=self.sizes.max_length - 1))
        if self.sizes.hidden is not None:
            assert hidden is not None
            x = x + self.from_hidden(layer_norm(hidden.to(x.dtype), hidden.shape[-1:]))
        if memory is not None:
            x = x + self.from_memory(memory)
        return self.output(gelu(self.inner(gelu(x))))

    def over(self, x: Sequences, hidden: Float[Tensor, "B L D"] | None) -> Float[Tensor, "B L V"]:
        """Before each token of some points, from the hidden vectors there (`steps_over`)."""
        length = int(x.lengths.max())
        position = torch.arange(length, device=x.tokens.device).expand(len(x), -1)
        if not self.config.memory:
            return self(hidden, None, position)
        vectors = self.gru(self.embedding(prepend_bos(x, self.sizes.prompt_vocab_size)[:, :-1]))[0]
        column = (x.start[:, None] + position).clamp(max=vectors.shape[1] - 1)
        return self(hidden, vectors.gather(1, column[..., None].expand(-1, -1, vectors.shape[2])), position)

    def begin_memory(self, prompts: Sequences) -> Float[Tensor, "B R"] | None:
        """The memory after each prompt; None if the twist has none."""
        if not self.config.memory:
            return None
        vectors = self.gru(self.embedding(prepend_bos(prompts.prompts(), self.sizes.prompt_vocab_size)))[0]
        return vectors[torch.arange(len(prompts), device=vectors.device), prompts.start]

    def advance_memory(self, memory: Float[Tensor, "B R"] | None, token: Int[Tensor, "B"]) -> Float[Tensor, "B R"] | None:
        """The memory after one more token."""
        if memory is None:
            return None
        weights = (getattr(self.gru, name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"))
        return torch.gru_cell(self.embedding(token), memory, *weights)


@dataclass(frozen=True)
class TwistSizes:
    """The sizes of the base that a twist belongs to; `hidden` is the width of its hidden vectors, None if it has none."""

    vocab_size: int
    prompt_vocab_size: int
    max_length: int
    hidden: int | None

    @classmethod
    def of(cls, base: Base) -> "TwistSizes":
        return cls(base.space.vocab_size, prompt_vocab_size(base), base.space.max_length, hidden_width(base))


def build_twist(config: TwistConfig, base: Base, *, rng: Rng) -> LearntTwist:
    """A twist of this base that has learnt nothing: its proposal is the base. `rng` must be a `SeededRng`."""
    sizes = TwistSizes.of(base)
    memory = config.memory if config.memory is not None else 0 if sizes.hidden is not None else DEFAULT_MEMORY
    if sizes.hidden is None and not memory:
        raise ValueError(
            f"A {type(base).__name__} has no hidden vectors, so a twist without a memory would know only the length of a "
            f"prefix. Nothing was made; give the twist a memory, such as memory={DEFAULT_MEMORY}."
        )
    with require_seeded(rng).fork_torch_rng():
        return LearntTwist(replace(config, memory=memory), sizes)


@dataclass(frozen=True)
class TwistedState:
    """The state of the base, what the twist reads, and the log-probabilities and log twist of every next token."""

    state: State
    memory: Float[Tensor, "B R"] | None
    position: Int[Tensor, "B"]
    log_base: Float[Tensor, "B V"]
    log_twist: Float[Tensor, "B V"]


@dataclass(frozen=True)
class TwistedBase:
    """The proposal of a twist, q(next | prefix) = a(next | prefix) psi(prefix, next) / norm: a base over the same space, which
    gives no point probability 0 that its base can reach. It serves every sampler that takes a proposal."""

    base: Base
    twist: LearntTwist

    def __post_init__(self) -> None:
        if (sizes := TwistSizes.of(self.base)) != self.twist.sizes:
            raise ValueError(
                f"The twist was made for a base with {self.twist.sizes}, and this one has {sizes}. Nothing was computed; learn "
                f"a twist for this base."
            )

    @cached_property
    def _inner(self) -> Base:
        """The base with hidden vectors, if the twist reads them."""
        inner = self.base if self.twist.sizes.hidden is None else with_hidden_states(self.base)
        assert inner is not None
        return inner

    @property
    def space(self) -> Space:
        return self.base.space

    @property
    def prompt_vocab_size(self) -> int:
        return prompt_vocab_size(self.base)

    @torch.no_grad()
    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], TwistedState]:
        return self._step(self._inner.begin(prompts), self.twist.begin_memory(prompts), torch.zeros_like(prompts.start))

    @torch.no_grad()
    def advance(self, state: TwistedState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], TwistedState]:
        memory = self.twist.advance_memory(state.memory, token)
        return self._step(self._inner.advance(state.state, token), memory, state.position + 1)

    def select(self, state: TwistedState, index: Int[Tensor, "K"]) -> TwistedState:
        memory = None if state.memory is None else state.memory[index]
        rows = (memory, state.position[index], state.log_base[index], state.log_twist[index])
        return TwistedState(self._inner.select(state.state, index), *rows)

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        """By steps over x, because a pass over whole sequences gives no hidden vectors of wrapped bases."""
        log_base, log_twist = self.steps_over(x)
        tokens = point_values(x, x.tokens, log_base.shape[1])
        log_prob = torch.log_softmax(log_base + log_twist, -1).gather(2, tokens[..., None])[..., 0]
        return scatter_point_values(x, log_prob)

    def steps_over(self, x: Sequences) -> tuple[Float[Tensor, "B L V"], Float[Tensor, "B L V"]]:
        """The log-probabilities of the base and the log twist of every token, before each token of the points of x; the twist
        has gradients."""
        steps = self.base_steps(x)
        return steps.log_prob, self.twist.over(x, steps.hidden)

    def base_steps(self, x: Sequences) -> Steps:
        """What the twist reads of the base before each token of the points of x."""
        return steps_over(self._inner, x)

    def _step(
        self, step: tuple[Float[Tensor, "B V"], State], memory: Tensor | None, position: Int[Tensor, "B"]
    ) -> tuple[Float[Tensor, "B V"], TwistedState]:
        log_base, state = step
        log_twist = self.twist(hidden_of(state), memory, position)
        return torch.log_softmax(log_base + log_twist, -1), TwistedState(state, memory, position, log_base, log_twist)
