"""Steps of a network by whole passes: each step reads all tokens anew, and keeps nothing of the weights.

The states of a network hold its weights as they are laid out for steps (`esscher.networks.stepping`), which is fast where the
weights are all here. Where they are not (`esscher.bases.sharding`), steps go this way: the same distribution, because
stepping equals scoring, at the price of a pass over the whole prefix for each token.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.networks.network import Network
from esscher.space import Sequences


@dataclass(frozen=True)
class Reread:
    """The steps of a network; its state is what was read so far."""

    network: Network

    def begin(self, prompts: Sequences, room: int) -> tuple[Float[Tensor, "B V"], Sequences]:
        """The logits after each prompt, and the prompts."""
        return self._after(prompts), prompts

    def advance(self, state: Sequences, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], Sequences]:
        """The logits after one more token of each row."""
        read = _longer(state, token)
        return self._after(read), read

    def select(self, state: Sequences, index: Int[Tensor, "K"]) -> Sequences:
        """The chosen rows."""
        return state.rows(index)

    def _after(self, x: Sequences) -> Float[Tensor, "B V"]:
        """The logits after all tokens of each row, dropping nothing."""
        modes = [(module, module.training) for module in self.network.modules()]  # type: ignore[attr-defined]
        self.network.eval()  # type: ignore[attr-defined]
        try:
            hidden = self.network.hidden(_longer(x, torch.zeros_like(x.stop)))
            return self.network.output(hidden[torch.arange(len(x), device=x.stop.device), x.stop])
        finally:
            for module, training in modes:
                module.training = training


def _longer(x: Sequences, token: Int[Tensor, "B"]) -> Sequences:
    """Each row with one more token after its point."""
    tokens = torch.nn.functional.pad(x.tokens, (0, max(0, int(x.stop.max()) + 1 - x.tokens.shape[1]) if len(x) else 0))
    return Sequences(tokens.scatter(1, x.stop[:, None], token[:, None]), x.start, x.stop + 1)
