"""A permutation language model (XLNet) as a base that factorizes sequences in any fixed order of their positions.

    base = with_factorization_order(xlnet, [2, 0, 1])    # first the token at position 2, then those at positions 0 and 1

Column t of a row is the t-th token of the order: a prompt holds the first tokens of the order, wherever they stand in the
text, and a point those that follow. So scores, samplers, estimators and tilting work in any order. For infilling, put the
known positions first (`infilling_order`). See docs/why/orders.md.
"""

from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from esscher.bases.network import NetworkBase
from esscher.core.space import Sequences
from esscher.networks.xlnet import XLNetNetwork, XLNetState


class FixedOrderNetwork(nn.Module):
    """An XLNet network with a fixed factorization order; it shares the weights."""

    order: Tensor

    def __init__(self, network: XLNetNetwork, order: Int[Tensor, "N"]):
        super().__init__()
        self.network, self.max_positions = network, len(order)
        self.register_buffer("order", order, persistent=False)
        self.output, self.log_probs, self.log_probs_and_logsumexp = (
            network.output,
            network.log_probs,
            network.log_probs_and_logsumexp,
        )
        self.advance, self.select = network.advance, network.select

    def hidden(self, x: Sequences) -> Float[Tensor, "B T W"]:
        return self.network.hidden(x, self.order)

    def begin(self, prompts: Sequences, max_new_tokens: int) -> tuple[Float[Tensor, "B V"], XLNetState]:
        return self.network.begin(prompts, max_new_tokens, self.order)


def with_factorization_order(base: NetworkBase, order: Sequence[int]) -> NetworkBase:
    """The base with an order of the positions 0, 1, ... of the longest prompt and point together; it shares the weights."""
    if not isinstance(base.network, XLNetNetwork):
        raise ValueError(
            f"A {type(base.network).__name__} predicts from left to right only. Nothing was made; use a base of kind xlnet."
        )
    if sorted(order) != list(range(len(order))):
        raise ValueError(
            f"An order holds each position from 0 to {len(order) - 1} once, unlike {list(order)}. Nothing was made."
        )
    if len(order) < base.space.max_length:
        raise ValueError(
            f"An order of {len(order)} positions is too short for points of {base.space.max_length} tokens. Nothing was made; "
            f"give an order of all positions, or a base with a smaller max_length."
        )
    device = next(base.parameters()).device
    network = FixedOrderNetwork(base.network, torch.tensor(list(order), device=device))
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
            f"Rows of {int(x.stop.min())} to {int(x.stop.max())} tokens do not fill an order of {len(order)} positions. "
            f"Nothing was reordered."
        )
    position, tokens = torch.tensor(list(order), device=x.tokens.device), x.tokens[:, : len(order)]
    return torch.empty_like(tokens).index_copy(1, position, tokens)
