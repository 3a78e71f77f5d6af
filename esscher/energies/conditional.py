"""Log-linear energies whose weights depend on the prompt: E(x | c) = -<weights(c), features(x, c)>.

The weights are what a network makes of the prompt: any `nn.Module` that takes prompts (`Sequences` with empty points) and
gives a row of F numbers for each. A feature sees the whole row, so it may depend on the prompt, too. Weights are computed
once for each different prompt of a batch. Trained by `esscher.objectives.tilted_likelihood`.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.energies.features import Feature, told_apart, values
from esscher.randomness import Rng, Seeded
from esscher.space import Sequences, distinct_prompts


class ConditionalLogLinear(nn.Module):
    """E(x | c) = -<network(c), features(x, c)>; with the vocabulary of the network, if it states one."""

    vocab_size: int

    def __init__(self, features: Sequence[Feature], network: nn.Module):
        super().__init__()
        self.features, self.network = told_apart(features), network
        reads = getattr(network, "vocab_size", None)
        if isinstance(reads, int):
            self.vocab_size = reads

    def weights(self, prompts: Sequences) -> Float[Tensor, "B F"]:
        """The weight of each feature after each prompt."""
        distinct, which = distinct_prompts(prompts)
        found = self.network(distinct)
        if found.shape != (len(distinct), len(self.features)):
            raise ValueError(
                f"The network gave weights of shape {tuple(found.shape)} for {len(distinct)} prompts and {len(self.features)} "
                f"features. Nothing was computed; it must give a row for each prompt, with a number for each feature."
            )
        return found.double()[which]

    def forward(self, x: Sequences) -> Float[Tensor, "B"]:
        return -self._added(x).sum(-1)

    def parts(self, x: Sequences) -> dict[str, Float[Tensor, "B"]]:
        """What each feature adds to -E(x)."""
        added = self._added(x)
        return {feature.name: added[:, place] for place, feature in enumerate(self.features)}

    def _added(self, x: Sequences) -> Float[Tensor, "B F"]:
        return values(self.features, x).to(x.tokens.device) * self.weights(x)


class PromptNetwork(nn.Module):
    """A GRU over the prompt and two layers above it; it begins with weights of 0, at the base itself."""

    def __init__(self, vocab_size: int, outputs: int, width: int = 32):
        super().__init__()
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size + 1, width)  # the last one opens every prompt, so that none is empty
        self.reader = nn.GRU(width, width, batch_first=True)
        self.hidden, self.head = nn.Linear(width, width), nn.Linear(width, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, prompts: Sequences) -> Float[Tensor, "B F"]:
        inside = torch.arange(prompts.tokens.shape[1], device=prompts.tokens.device) < prompts.start[:, None]
        read = nn.functional.pad(torch.where(inside, prompts.tokens, 0), (1, 0), value=self.vocab_size)
        states, _ = self.reader(self.embedding(read))
        last = states[torch.arange(len(read), device=read.device), prompts.start]
        return self.head(torch.tanh(self.hidden(last)))


def prompt_network(vocab_size: int, outputs: int, *, width: int = 32, rng: Rng) -> PromptNetwork:
    """A network of prompts with initial weights drawn from `rng`, which must be `Seeded`: weights are no finite choice."""
    if not isinstance(rng, Seeded):
        raise ValueError(f"Initial weights need chance from a seed, not from {rng!r}. Nothing was built; pass Seeded(seed).")
    with rng.governs_torch():
        return PromptNetwork(vocab_size, outputs, width)
