"""Any network as a base: scoring in one pass, decoding steps on the state of the network. Steps never apply dropout.

A permutation language model (XLNet) is a base for any fixed order of positions (docs/why/orders.md). Column t of a row is then
the t-th token of the order: a prompt holds the first tokens of the order, wherever they stand in the text, and a point those
that follow. For infilling, put the known positions first.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from esscher.bases.logits import check_length
from esscher.core.config import CompileSteps, to_dict
from esscher.core.device import device_of
from esscher.core.memory import check_settings_fit, numbers_in
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, require_seeded
from esscher.core.space import Sequences, Space
from esscher.core.target import State
from esscher.heads.chunked_log_softmax import accumulation_dtype, no_autocast, step_log_probs
from esscher.networks.deq import DeqNetwork
from esscher.networks.network import CapturableNetwork, Memory, Network, PenalizedNetwork, StreamingNetwork
from esscher.networks.registry import NETWORKS, NetworkConfig
from esscher.networks.transformer_config import DeqConfig
from esscher.networks.transformer_xl import TransformerXLNetwork
from esscher.networks.xlnet import FactorizationOrder, XLNetNetwork, XLNetState, prepend_visible_symbol


class NetworkBase(nn.Module):
    """The distribution over the points of a space that a network defines."""

    def __init__(self, network: Network, config: NetworkConfig, space: Space):
        super().__init__()
        self.network, self.config, self.space = network, config, space

    @property
    def max_positions(self) -> int | None:
        """The length of the longest sequence it can read; None is no limit."""
        return self.network.max_positions

    @property
    def prompt_vocab_size(self) -> int:
        """How many tokens a prompt may have; networks of images read classes there, too."""
        return int(getattr(self.network, "prompt_vocab_size", self.space.vocab_size))

    def logits(self, x: Sequences) -> Float[Tensor, "B T V"]:
        """Logits of all tokens at position t given the tokens before t; 0 in columns that are padding in all rows."""
        logits = self.network.output(self._hidden(x))
        logits = logits.to(accumulation_dtype(logits.dtype))
        return pad(logits, (0, 0, 0, x.tokens.shape[1] - logits.shape[1]))

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        hidden, labels = self._hidden_and_labels(x)
        return pad(self.network.log_probs(hidden, labels), (0, x.tokens.shape[1] - hidden.shape[1]))

    def log_probs_and_logsumexp(self, x: Sequences) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        hidden, labels = self._hidden_and_labels(x)
        log_probs, logsumexp = self.network.log_probs_and_logsumexp(hidden, labels)
        rest = (0, x.tokens.shape[1] - hidden.shape[1])
        return pad(log_probs, rest), pad(logsumexp, rest)

    def log_probs_in_order(
        self, inputs: Int[Tensor, "B T"], factorization_order: FactorizationOrder, labels: Int[Tensor, "B Q"]
    ) -> Float[Tensor, "B Q"]:
        """The log-probability of each label at its target, 0 where it is below 0, given inputs in a factorization order."""
        network = self.any_order
        with_bos = prepend_visible_symbol(torch.full_like(inputs[:, 0], network.bos), inputs, factorization_order)
        return network.log_probs(network.target_hidden(*with_bos, None, 0)[0], labels)

    @torch.no_grad()
    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        longest, max_new_tokens = int(prompts.start.max()) if len(prompts) else 0, self.space.max_length
        self._check_length(longest + max_new_tokens, f"a prompt of {longest} tokens with a point of up to {max_new_tokens}")
        with no_autocast(prompts.tokens.device):
            logits, state = self.network.begin(prompts.prompts(), max_new_tokens)
            return step_log_probs(logits), state

    @torch.no_grad()
    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        with no_autocast(token.device):
            logits, state = self.network.advance(state, token)
            return step_log_probs(logits), state

    @torch.no_grad()
    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        return self.network.select(state, index)

    def penalty(self) -> Float[Tensor, ""] | None:
        """The penalty of the last training pass of the network, returned once; None if there is none."""
        return self.network.penalty() if isinstance(self.network, PenalizedNetwork) else None

    def init_memory(self, rows: int) -> Memory:
        """The memory at the start of `rows` streams: the last symbol of each, and the memory of the network."""
        network = self.streaming
        last = torch.full((rows,), network.bos, device=next(self.parameters()).device)
        return (last, *network.init_memory(rows))

    def read(self, memory: Memory, tokens: Int[Tensor, "B L"]) -> tuple[Float[Tensor, "B L"], Memory]:
        """log a(token | all before it in its stream) for the next segment of each stream, and the memory after it."""
        hidden, after = self.hidden_and_memory(memory, tokens)
        return self.network.log_probs(hidden, tokens), after

    def hidden_and_memory(self, memory: Memory, tokens: Int[Tensor, "B L"]) -> tuple[Float[Tensor, "B L D"], Memory]:
        """The hidden vector before each token of the next segment of each stream, and the memory after the segment."""
        last, *network_memory = memory
        hidden, network_memory_after = self.streaming.read(torch.cat([last[:, None], tokens], 1)[:, :-1], tuple(network_memory))
        return hidden, (tokens[:, -1].clone() if tokens.shape[1] else last, *self.in_weight_dtype(network_memory_after))

    def in_weight_dtype(self, memory: Memory) -> Memory:
        """A memory in the dtype of the weights, which decoding steps need, whatever autocast made of it."""
        dtype = next(self.parameters()).dtype
        return tuple(part.to(dtype) if part.is_floating_point() else part for part in memory)

    @property
    def streaming(self) -> StreamingNetwork:
        if not isinstance(self.network, StreamingNetwork):
            raise ValueError(
                f"A {type(self.network).__name__} has no memory from one segment of a stream to the next. Nothing was "
                f"computed; cut the text into chunks, or use a base with a memory."
            )
        return self.network

    @property
    def any_order(self) -> XLNetNetwork:
        if not isinstance(self.network, XLNetNetwork):
            raise ValueError(f"A {type(self.network).__name__} predicts in one order only; use a base of kind xlnet.")
        return self.network

    def _hidden(self, x: Sequences) -> Float[Tensor, "B U D"]:
        """The hidden vectors of the columns that are not padding in all rows."""
        longest = int(x.stop.max()) if len(x) else 0
        self._check_length(longest, f"a sequence of {longest} tokens")
        return self.network.hidden(Sequences(x.tokens[:, :longest], x.start, x.stop))

    def _hidden_and_labels(self, x: Sequences) -> tuple[Float[Tensor, "B U D"], Int[Tensor, "B U"]]:
        """`_hidden`, and the tokens of the points, -1 elsewhere."""
        hidden = self._hidden(x)
        used = hidden.shape[1]
        return hidden, x.tokens[:, :used].masked_fill(~x.counted[:, :used], -1)

    def _check_length(self, length: int, what: str) -> None:
        check_length(self.max_positions, length, what, f"train a base with max_positions = {length} or more")


def compile_steps(base: Any, setting: CompileSteps = "auto", *, backend: str | Callable[..., Any] = "inductor") -> bool:
    """Compile the decoding steps of a base with `torch.compile`, on CUDA as CUDA graphs; returns whether they are. The first
    step of each batch size and of each 64 positions is slow. With `auto`, a base whose steps are no graph stays as it is:
    DEQ (its iterations depend on the data), XLNet, encoder-decoders, pixel networks, and what is no network."""
    device = device_of(base)
    on_cuda = device is not None and device.type == "cuda"
    if setting == "off" or (setting == "auto" and not (on_cuda and find_spec("triton"))):
        return False
    network = base.network if isinstance(base, NetworkBase) else base
    if not isinstance(network, CapturableNetwork) or isinstance(network, DeqNetwork):
        if setting == "auto":
            return False
        raise ValueError(
            f"The steps of a {type(network).__name__} cannot be captured in one graph. Nothing was compiled; use compile=auto "
            f"or off."
        )
    options: dict[str, Any] = {"mode": "reduce-overhead"} if backend == "inductor" and on_cuda else {}
    compiled = torch.compile(type(network).step_logits, backend=backend, **options)

    def compiled_or_plain(network: CapturableNetwork, state: Any, token: Tensor) -> Tensor:
        try:
            return compiled(network, state, token)
        except torch._dynamo.exc.TorchDynamoException as error:  # before anything ran: the state is as it was
            current_progress().say(f"Steps are not compiled, and run kernel by kernel: {error}")
            network.compiled_step = None
            return network.step_logits(state, token)

    network.static_steps, network.compiled_step = True, compiled_or_plain if setting == "auto" else compiled
    return True


def with_attention_span(base: NetworkBase, *, attention_span: int | None = None, clamp_len: int | None = None) -> NetworkBase:
    """A Transformer-XL or DEQ with another attention span for scoring and sampling, and another largest distinct distance; None
    keeps it. The network is modified in place."""
    if not isinstance(base.network, TransformerXLNetwork):
        raise ValueError(
            f"A {type(base.network).__name__} has no attention span. "
            "Nothing was computed; leave attention_span and clamp_len out."
        )
    base.network.set_attention_span(attention_span, clamp_len)
    attention_span, clamp_len = base.network.config.attention_span, base.network.config.clamp_len
    config: Any = base.config
    config = replace(config, attention_span=attention_span, clamp_len=clamp_len)
    return NetworkBase(base.network, config, base.space).train(base.training)


def with_prompt_tokens(base: NetworkBase, prompt_tokens: int) -> NetworkBase:
    """The same network on the rest of points of one length, whose first `prompt_tokens` tokens become a prompt."""
    left = base.space.max_length - prompt_tokens
    if base.space.eos is not None or prompt_tokens < 0 or left < 1:
        raise ValueError(
            f"The first {prompt_tokens} tokens of {base.space} cannot be a prompt: points must have one length, and "
            f"keep a token. Nothing was changed."
        )
    return NetworkBase(base.network, base.config, replace(base.space, max_length=left)).train(base.training)


def with_unrolled_layers(base: NetworkBase, unrolled: int) -> NetworkBase:
    """A DEQ-Transformer as `unrolled` tied layers, or, with 0, as their fixed point: pretraining by layers continues as
    training of the fixed point. The network is modified in place."""
    if not isinstance(base.network, DeqNetwork) or not isinstance(base.config, DeqConfig):
        raise ValueError(f"Only a DEQ-Transformer can be unrolled, not a {type(base.network).__name__}. Nothing was changed.")
    base.network.unroll(unrolled)
    return NetworkBase(base.network, replace(base.config, unrolled=unrolled), base.space).train(base.training)


class FixedOrderNetwork(nn.Module):
    """An XLNet network with a fixed factorization order; it shares the weights."""

    order: Tensor

    def __init__(self, network: XLNetNetwork, order: Int[Tensor, "N"]):
        super().__init__()
        self.network, self.max_positions = network, len(order)
        self.register_buffer("order", order, persistent=False)
        self.output, self.advance, self.select = network.output, network.advance, network.select
        self.log_probs, self.log_probs_and_logsumexp = network.log_probs, network.log_probs_and_logsumexp

    def hidden(self, x: Sequences) -> Float[Tensor, "B T W"]:
        return self.network.hidden(x, self.order)

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], XLNetState]:
        return self.network.begin(prompts, max_new_tokens, self.order)


def with_factorization_order(base: NetworkBase, order: Sequence[int]) -> NetworkBase:
    """The base with an order of the positions 0, 1, ... of the longest prompt and point together; it shares the weights."""
    if sorted(order) != list(range(len(order))):
        raise ValueError(f"An order has each position from 0 to {len(order) - 1} once, unlike {list(order)}. Nothing was made.")
    if len(order) < base.space.max_length:
        raise ValueError(
            f"An order of {len(order)} positions is too short for points of {base.space.max_length} tokens. Nothing was made; "
            f"give an order of all positions, or a base with a smaller max_length."
        )
    device = next(base.parameters()).device
    network = FixedOrderNetwork(base.any_order, torch.tensor(list(order), device=device))
    return NetworkBase(network, base.config, base.space).train(base.training)


def infilling_order(length: int, gaps: Collection[int]) -> list[int]:
    """The order for infilling: all known positions, which are the prompt, then the gaps from left to right."""
    last = sorted(set(gaps))
    if last and not (last[0] >= 0 and last[-1] < length):
        raise ValueError(f"Gaps are positions of a text of {length} tokens, 0 to {length - 1}, not {last}. Nothing was made.")
    return [*(position for position in range(length) if position not in last), *last]


def to_text_order(x: Sequences, order: Sequence[int]) -> Int[Tensor, "B N"]:
    """The tokens of whole rows, prompt and point, in the order of the text."""
    if x.tokens.shape[1] < len(order) or not bool((x.stop == len(order)).all()):
        raise ValueError(
            f"Rows of {int(x.stop.min())} to {int(x.stop.max())} tokens do not fill an order of {len(order)}. "
            "Nothing was reordered."
        )
    position, tokens = torch.tensor(list(order), device=x.tokens.device), x.tokens[:, : len(order)]
    return torch.empty_like(tokens).index_copy(1, position, tokens)


def build_base(config: NetworkConfig, space: Space, *, rng: Rng) -> NetworkBase:
    """A base with initial weights drawn from `rng`, which must be a `SeededRng`."""
    with require_seeded(rng).fork_torch_rng():
        return NetworkBase(build_network(config, space.vocab_size), config, space)


def build_network(config: NetworkConfig, vocab_size: int) -> Any:
    """A network with initial weights from the global generator of torch; refused if the machine has no memory for them."""
    what, numbers = f"A network of kind {NETWORKS.kind_of(config)}", [vocab_size, *numbers_in(to_dict(config))]
    check_settings_fit(what, config, numbers, lambda settings: NETWORKS.build(settings, vocab_size))
    return NETWORKS.build(config, vocab_size)
