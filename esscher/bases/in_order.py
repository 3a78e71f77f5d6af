"""A base for every order of a text's positions: what a network that predicts in any order gives to one of them.

    base = in_order(xlnet, [2, 0, 1])        first the token in position 2, then those in positions 0 and 1

Column t of a row is the token that comes t-th in the order, so a prompt is what comes first in it, wherever that stands, and a
point is what follows. Everything that works on a base then works on an order: scores, samplers, estimators, tilting. To fill
gaps, let what is known come first (`known_first`). See docs/why/orders.md.
"""

from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from esscher.bases.network import NetworkBase
from esscher.networks.xlnet import XLNetNetwork, XLNetState
from esscher.space import Sequences


class OrderedNetwork(nn.Module):
    """The network of an XLNet, in one order; its weights are the very ones."""

    order: Tensor

    def __init__(self, network: XLNetNetwork, order: Int[Tensor, "N"]):
        super().__init__()
        self.network, self.max_positions = network, len(order)
        self.register_buffer("order", order, persistent=False)

    def hidden(self, x: Sequences) -> Float[Tensor, "B T W"]:
        return self.network.hidden(x, self.order)

    def output(self, hidden: Float[Tensor, "*S W"]) -> Float[Tensor, "*S V"]:
        return self.network.output(hidden)

    def score(self, hidden: Float[Tensor, "*S W"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return self.network.score(hidden, tokens)

    def score_and_level(
        self, hidden: Float[Tensor, "*S W"], tokens: Int[Tensor, "*S"]
    ) -> tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]:
        return self.network.score_and_level(hidden, tokens)

    def begin(self, prompts: Sequences, room: int) -> tuple[Float[Tensor, "B V"], XLNetState]:
        return self.network.begin(prompts, room, self.order)

    def advance(self, state: XLNetState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], XLNetState]:
        return self.network.advance(state, token)

    def select(self, state: XLNetState, index: Int[Tensor, "K"]) -> XLNetState:
        return self.network.select(state, index)


def in_order(base: NetworkBase, order: Sequence[int]) -> NetworkBase:
    """The base in an order of the positions 0, 1, ...: as many as its longest prompt and point have together."""
    if not isinstance(base.network, XLNetNetwork):
        raise ValueError(
            f"A {type(base.network).__name__} predicts from left to right only. Nothing was made; use a base of kind xlnet."
        )
    if sorted(order) != list(range(len(order))):
        raise ValueError(
            f"An order has each of the positions 0 to {len(order) - 1} once, unlike {list(order)}. Nothing was made."
        )
    if len(order) < base.space.max_length:
        raise ValueError(
            f"An order of {len(order)} positions is too short for points of {base.space.max_length} tokens. Nothing was made; "
            f"give an order of all positions, or a base with a smaller max_length."
        )
    device = next(base.parameters()).device
    network = OrderedNetwork(base.network, torch.tensor(list(order), device=device))
    return NetworkBase(network, base.config, base.space).train(base.training)


def known_first(length: int, gaps: Collection[int]) -> list[int]:
    """The order that fills gaps from left to right: first all other positions, which are the prompt, then the gaps."""
    unknown = sorted(set(gaps))
    if unknown and not (unknown[0] >= 0 and unknown[-1] < length):
        raise ValueError(f"Gaps are positions of a text of {length} tokens, 0 to {length - 1}, not {unknown}.")
    return [*(place for place in range(length) if place not in unknown), *unknown]


def in_place(x: Sequences, order: Sequence[int]) -> Int[Tensor, "B N"]:
    """The tokens of whole rows, prompt and point, where they stand in the text."""
    if x.tokens.shape[1] < len(order) or not bool((x.stop == len(order)).all()):
        raise ValueError(
            f"Rows of {int(x.stop.min())} to {int(x.stop.max())} tokens do not fill an order of {len(order)} positions. "
            f"Nothing was put in place."
        )
    where = torch.tensor(list(order), device=x.tokens.device)
    return torch.empty_like(x.tokens[:, : len(order)]).index_copy(1, where, x.tokens[:, : len(order)])
