"""The hidden vector behind every step of a base: what its output head reads to give the log-probabilities of the next token.

`with_hidden_states(base)` is the same base, whose states carry that vector. Networks of this library record what their head is
given, models of `transformers` what their decoder returns; wrappers (`esscher.core.target.BaseWrapper`) pass the states of the
base inside through. The other bases (n-grams, automata, mixtures, encoder-decoders of `transformers`, networks of images, which
step group by group) have none.
"""

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from esscher.bases.causal_lm import CausalLM, text_config
from esscher.bases.network import NetworkBase
from esscher.core.space import Sequences
from esscher.core.target import Base, BaseWrapper, State
from esscher.heads.head import Head, LogitsFn, LogProbsAndLogsumexp
from esscher.networks.pixel_network import PixelNetwork


class HiddenState(NamedTuple):
    """A state of a base, and the hidden vector of each row."""

    state: State
    hidden: Float[Tensor, "B D"]


class _Recorder:
    """The hidden vectors that were seen last."""

    last: Tensor

    def record(self, hidden: Float[Tensor, "B D"]) -> None:
        self.last = hidden.detach().clone()  # steps of recurrent networks overwrite it


class _RecordingHead(nn.Module):
    """A head that records what it is given, in decoding steps."""

    def __init__(self, head: Head, recorder: _Recorder):
        super().__init__()
        self._head, self._recorder = (head,), recorder  # a tuple, so that its weights are not registered here

    def logits(self, hidden: Float[Tensor, "*S D"]) -> Float[Tensor, "*S V"]:
        self._recorder.record(hidden)
        return self._head[0].logits(hidden)

    def log_probs(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return self._head[0].log_probs(hidden, tokens)

    def log_probs_and_logsumexp(self, hidden: Float[Tensor, "*S D"], tokens: Int[Tensor, "*S"]) -> LogProbsAndLogsumexp:
        return self._head[0].log_probs_and_logsumexp(hidden, tokens)

    def logits_fn(self, steps: int) -> LogitsFn:
        logits = self._head[0].logits_fn(steps)

        def recording(hidden: Tensor) -> Tensor:
            self._recorder.record(hidden)
            return logits(hidden)

        return recording


@dataclass(frozen=True)
class _NetworkWithHidden(BaseWrapper):
    """A base of a network; `base` has a copy of the network that shares its weights and has a recording head."""

    recorder: _Recorder

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        log_prob, state = self.base.begin(prompts)
        return log_prob, HiddenState(state, self.recorder.last)

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        log_prob, after = self.base.advance(state.state, token)
        return log_prob, HiddenState(after, self.recorder.last)

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        return HiddenState(self.base.select(state.state, index), state.hidden.index_select(0, index))


@dataclass(frozen=True)
class _CausalLMWithHidden(_NetworkWithHidden):
    """A model of `transformers`, whose decoder is watched during a step."""

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        with _watched(self.base, self.recorder):
            return super().begin(prompts)

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        with _watched(self.base, self.recorder):
            return super().advance(state, token)


def _watched(base: Any, recorder: _Recorder) -> Any:
    """Within it, the last vector that the decoder returns for each row is recorded."""
    return base.model.base_model.register_forward_hook(
        lambda module, inputs, output: recorder.record(output.last_hidden_state[:, -1])
    )


def with_hidden_states(base: Base) -> Base | None:
    """The base with states that carry hidden vectors (`hidden_of`); None for a base that has none."""
    if isinstance(base, BaseWrapper):
        inner = with_hidden_states(base.base)
        return None if inner is None else replace(base, base=inner)
    if hidden_width(base) is None:
        return None
    recorder = _Recorder()
    if isinstance(base, CausalLM):
        return _CausalLMWithHidden(base, recorder)
    assert isinstance(base, NetworkBase)
    network: Any = copy(base.network)
    network._modules = {**network._modules, "head": _RecordingHead(network.head, recorder)}
    if getattr(network, "compiled_step", None) is not None:
        network.compiled_step, network.static_steps = None, False  # a graph cannot record
    return _NetworkWithHidden(NetworkBase(network, base.config, base.space).train(base.training), recorder)


def hidden_width(base: Base) -> int | None:
    """The width of a base's hidden vectors; None if it has none."""
    if isinstance(base, BaseWrapper):
        return hidden_width(base.base)
    if isinstance(base, CausalLM):
        return int(text_config(base.model).hidden_size) if base.model.base_model is not base.model else None
    if isinstance(base, NetworkBase) and isinstance(getattr(base.network, "head", None), Head):
        return None if isinstance(base.network, PixelNetwork) else int(base.config.width)
    return None


def hidden_of(state: State) -> Float[Tensor, "B D"] | None:
    """The hidden vectors of a state of `with_hidden_states`; None for states of other bases."""
    return state.hidden if isinstance(state, HiddenState) else None


class Steps(NamedTuple):
    """What a base gives before each token of some points; column t belongs to token t of a point, whatever its prompt."""

    log_prob: Float[Tensor, "B L V"]
    hidden: Float[Tensor, "B L D"] | None


@torch.no_grad()
def steps_over(base: Base, x: Sequences) -> Steps:
    """The steps of a base over given points, with hidden vectors if its states carry them. The columns after the end of a row
    are of no use."""
    log_prob, state = base.begin(x.prompts())
    log_probs, hidden = [log_prob], [hidden_of(state)]
    row, last = torch.arange(len(x), device=x.tokens.device), x.tokens.shape[1] - 1
    for t in range((int(x.lengths.max()) if len(x) else 0) - 1):
        column = x.start + t
        token = torch.where(column < x.stop, x.tokens[row, column.clamp(max=last)], 0)
        log_prob, state = base.advance(state, token)
        log_probs.append(log_prob)
        hidden.append(hidden_of(state))
    vectors = [vector for vector in hidden if vector is not None]
    return Steps(torch.stack(log_probs, 1), torch.stack(vectors, 1) if vectors else None)
