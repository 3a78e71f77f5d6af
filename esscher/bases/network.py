"""Any network as a base, written once: scoring in one pass, stepping on the network's own state.

Dropout acts in training mode and on scoring only: `begin` and `advance` always draw from the whole network.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import log_softmax, pad

from esscher.bases.config import (
    AttentiveLstmConfig,
    AwdLstmConfig,
    BaseConfig,
    DeqConfig,
    EnasConfig,
    EncoderDecoderConfig,
    GatedPixelCnnConfig,
    PixelCnnConfig,
    PixelCnnPlusPlusConfig,
    RecurrentConfig,
    TransformerConfig,
    TransformerXLConfig,
    TrellisNetConfig,
    XLNetConfig,
)
from esscher.networks.attentive_lstm import AttentiveLstmNetwork
from esscher.networks.awd_lstm import AwdLstmNetwork
from esscher.networks.deq import DeqNetwork
from esscher.networks.enas import EnasNetwork
from esscher.networks.encoder_decoder import EncoderDecoderNetwork
from esscher.networks.gated_pixelcnn import GatedPixelCnnNetwork
from esscher.networks.network import Memory, Network, Penalised, StreamingNetwork
from esscher.networks.pixel_network import PixelNetwork
from esscher.networks.pixelcnn import PixelCnnNetwork
from esscher.networks.pixelcnn_plus import PixelCnnPlusPlusNetwork
from esscher.networks.recurrent import RecurrentNetwork
from esscher.networks.transformer import TransformerNetwork
from esscher.networks.transformer_xl import TransformerXLNetwork
from esscher.networks.trellisnet import TrellisNetwork
from esscher.networks.xlnet import Arrangement, XLNetNetwork, after_lead
from esscher.randomness import Rng, Seeded
from esscher.space import Sequences, Space
from esscher.target import State

AnyNetwork = (
    RecurrentNetwork
    | AwdLstmNetwork
    | EnasNetwork
    | TrellisNetwork
    | TransformerNetwork
    | TransformerXLNetwork
    | XLNetNetwork
    | EncoderDecoderNetwork
    | AttentiveLstmNetwork
    | PixelNetwork
)
NETWORKS: dict[type, Callable[..., AnyNetwork]] = {
    RecurrentConfig: RecurrentNetwork,
    AwdLstmConfig: AwdLstmNetwork,
    EnasConfig: EnasNetwork,
    TrellisNetConfig: TrellisNetwork,
    TransformerConfig: TransformerNetwork,
    TransformerXLConfig: TransformerXLNetwork,
    DeqConfig: DeqNetwork,
    XLNetConfig: XLNetNetwork,
    EncoderDecoderConfig: EncoderDecoderNetwork,
    AttentiveLstmConfig: AttentiveLstmNetwork,
    PixelCnnConfig: PixelCnnNetwork,
    GatedPixelCnnConfig: GatedPixelCnnNetwork,
    PixelCnnPlusPlusConfig: PixelCnnPlusPlusNetwork,
}


class NetworkBase(nn.Module):
    """The distribution that a network gives to the points of a space."""

    def __init__(self, network: Network, config: BaseConfig, space: Space):
        super().__init__()
        self.network, self.config, self.space = network, config, space

    @property
    def max_positions(self) -> int | None:
        """The longest sequence it can read, if it has a limit."""
        return self.network.max_positions

    def logits(self, x: Sequences) -> Float[Tensor, "B T V"]:
        """Logits of every token at position t given the tokens before t; columns that are padding in all rows hold 0."""
        logits = self.network.output(self._hidden(x))
        return pad(logits, (0, 0, 0, x.tokens.shape[1] - logits.shape[1]))

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        hidden, asked = self._hidden_and_asked(x)
        return pad(self.network.score(hidden, asked), (0, x.tokens.shape[1] - hidden.shape[1]))

    def scores_and_levels(self, x: Sequences) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        """`log_probs`, and the level of the logits they are of, 0 where x is not counted."""
        hidden, asked = self._hidden_and_asked(x)
        score, level = self.network.score_and_level(hidden, asked)
        rest = (0, x.tokens.shape[1] - hidden.shape[1])
        return pad(score, rest), pad(level, rest)

    def arranged(self, inputs: Int[Tensor, "B T"], arrangement: Arrangement, asked: Int[Tensor, "B Q"]) -> Float[Tensor, "B Q"]:
        """The log-probability of each asked token in the place of a target, 0 where it is below 0, given inputs in an order."""
        network = self.any_order
        given = after_lead(torch.full_like(inputs[:, 0], network.opening), inputs, arrangement)
        return network.score(network.predicted(*given, None, 0)[0], asked)

    @torch.no_grad()
    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        longest, room = int(prompts.start.max()) if len(prompts) else 0, self.space.max_length
        self._check_length(longest + room, f"a prompt of {longest} tokens with a point of up to {room}")
        logits, state = self.network.begin(prompts.prompts(), room)
        return log_softmax(logits, -1), state

    @torch.no_grad()
    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        logits, state = self.network.advance(state, token)
        return log_softmax(logits, -1), state

    @torch.no_grad()
    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        return self.network.select(state, index)

    def penalty(self) -> Float[Tensor, ""] | None:
        """What the last training pass of the network adds to its loss, told once."""
        return self.network.penalty() if isinstance(self.network, Penalised) else None

    def open(self, rows: int) -> Memory:
        """The memory of so many streams of which nothing was read: the last symbol of each, and the network's own."""
        network = self.streaming
        last = torch.full((rows,), network.opening, device=next(self.parameters()).device)
        return (last, *network.open(rows))

    def read(self, memory: Memory, tokens: Int[Tensor, "B L"]) -> tuple[Float[Tensor, "B L"], Memory]:
        """log a(token | all before it in its stream) for the next segment of each stream, and the memory after it."""
        hidden, after = self.follow(memory, tokens)
        return self.network.score(hidden, tokens), after

    def follow(self, memory: Memory, tokens: Int[Tensor, "B L"]) -> tuple[Float[Tensor, "B L D"], Memory]:
        """The hidden vector before each token of the next segment of each stream, and the memory after the segment."""
        last, *own = memory
        hidden, own_after = self.streaming.read(torch.cat([last[:, None], tokens], 1)[:, :-1], tuple(own))
        return hidden, (tokens[:, -1].clone() if tokens.shape[1] else last, *own_after)

    @property
    def streaming(self) -> StreamingNetwork:
        if not isinstance(self.network, StreamingNetwork):
            raise ValueError(
                f"A {type(self.network).__name__} carries nothing from one segment of a stream to the next. Nothing was "
                f"computed; cut the text into chunks, or use a base with a memory."
            )
        return self.network

    @property
    def any_order(self) -> XLNetNetwork:
        if not isinstance(self.network, XLNetNetwork):
            raise ValueError(
                f"A {type(self.network).__name__} predicts in one order only. Nothing was computed; use a base of kind xlnet."
            )
        return self.network

    def _hidden(self, x: Sequences) -> Float[Tensor, "B U D"]:
        """The hidden vectors of the columns that any row uses."""
        longest = int(x.stop.max()) if len(x) else 0
        self._check_length(longest, f"a sequence of {longest} tokens")
        return self.network.hidden(Sequences(x.tokens[:, :longest], x.start, x.stop))

    def _hidden_and_asked(self, x: Sequences) -> tuple[Float[Tensor, "B U D"], Int[Tensor, "B U"]]:
        """The same, and the tokens of the points, -1 elsewhere."""
        hidden = self._hidden(x)
        used = hidden.shape[1]
        return hidden, x.tokens[:, :used].masked_fill(~x.counted[:, :used], -1)

    def _check_length(self, length: int, what: str) -> None:
        limit = self.network.max_positions
        if limit is not None and length > limit:
            raise ValueError(
                f"The network has {limit} positions and was given {what}. Nothing was computed; shorten the sequences, "
                f"or train a base with max_positions = {length} or more."
            )


def with_sight(base: NetworkBase, *, reach: int | None = None, clamp: int | None = None) -> NetworkBase:
    """A Transformer-XL of the same weights that sees as far back as `reach` when scoring and drawing; distances over `clamp`
    are taken for `clamp`. It is the given network, changed."""
    if not isinstance(base.network, TransformerXLNetwork):
        raise ValueError(
            f"Only a Transformer-XL can be told how far to see, not a {type(base.network).__name__}. Nothing was computed; "
            f"leave reach and clamp out."
        )
    base.network.look(reach, clamp)
    config, seen = base.config, base.network.config
    told = replace(config, reach=seen.reach, clamp=seen.clamp) if isinstance(config, DeqConfig) else seen
    return NetworkBase(base.network, told, base.space).train(base.training)


def with_given(base: NetworkBase, given: int) -> NetworkBase:
    """The same network on what is left of points whose first `given` tokens are a prompt: of an image, what is to be completed.
    Points must have one length."""
    left = base.space.max_length - given
    if base.space.eos is not None or given < 0 or left < 1:
        raise ValueError(
            f"Of {base.space} the first {given} tokens cannot be given: points must have one length, and keep a token. "
            f"Nothing was changed."
        )
    return NetworkBase(base.network, base.config, replace(base.space, max_length=left)).train(base.training)


def with_unrolled(base: NetworkBase, unrolled: int) -> NetworkBase:
    """A DEQ-Transformer of the same weights that is so many tied layers, or, with 0, their fixed point: so training by layers
    goes on as training of the fixed point. It is the given network, changed."""
    if not isinstance(base.network, DeqNetwork) or not isinstance(base.config, DeqConfig):
        raise ValueError(f"Only a DEQ-Transformer is unrolled, not a {type(base.network).__name__}. Nothing was changed.")
    base.network.unroll(unrolled)
    return NetworkBase(base.network, replace(base.config, unrolled=unrolled), base.space).train(base.training)


def build_base(config: BaseConfig, space: Space, *, rng: Rng) -> NetworkBase:
    """A base with initial weights drawn from `rng`, which must be `Seeded`: weights are no finite choice."""
    if not isinstance(rng, Seeded):
        raise ValueError(f"Initial weights need chance from a seed, not from {rng!r}. Nothing was built; pass Seeded(seed).")
    with rng.governs_torch():
        return NetworkBase(build_network(config, space.vocab_size), config, space)


def build_network(config: BaseConfig, vocab_size: int) -> AnyNetwork:
    """A network with initial weights from torch's own generator."""
    return NETWORKS[type(config)](config, vocab_size)
