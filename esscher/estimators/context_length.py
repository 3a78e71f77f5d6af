"""How far back context helps: the loss by context length, and the relative effective context length of several models.

With l_i(c, t) the loss of model i on token t after the c tokens before it (Dai et al. 2019, appendix C):

    b(c, t) = min_i l_i(c, t)                                     the best of the group with the shorter context
    f_i(c, c') = mean of min(b(c, t), l_i(c', t)) over t in T     T: the share r of tokens where b(c, t) is highest
    g_i(c, c') = 1 - exp(f_i(c, c') - f_i(c, c))                  the perplexity that model i gains over the best of the group

A model's length is the first c after which the next longer context gains less than `THRESHOLD`. It belongs to a group: models
with the same tokens, compared at the same places. Tokens are scored one by one after contexts cut to length, so any base will
do; a base of few positions sees no further than these. Intervals of lengths are of resampled places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.estimate import Estimate
from esscher.estimators.blocks import ratio_of_sums
from esscher.randomness import Rng
from esscher.samplers.scores import beside, by_rows
from esscher.space import Sequences
from esscher.target import Base

THRESHOLD, HARDEST = 0.01, (0.1, 0.5, 1.0)
RESAMPLES = 200


@dataclass(frozen=True)
class ContextLosses:
    """Losses of a group of models at the same places, after contexts of each length, the shortest first."""

    lengths: tuple[int, ...]
    losses: Mapping[str, Float[Tensor, "C n"]]

    @property
    def places(self) -> int:
        return next(iter(self.losses.values())).shape[1]

    def by_length(self, model: str, *, level: float = 0.95) -> list[Estimate]:
        """Nats per token after each length; places in their order are cut into blocks, as a stream is."""
        one = torch.ones(self.places, dtype=torch.float64)
        return [ratio_of_sums(row, one, level=level, of="places", unit="nats per token") for row in self.losses[model]]

    def effective_length(self, model: str, hardest: float, *, level: float = 0.95, rng: Rng) -> Estimate:
        """The relative effective context length; the longest length of all where longer ones would still help."""
        group, which = torch.stack(list(self.losses.values())), list(self.losses).index(model)
        found = self._length(group, which, hardest)
        places = rng.categorical(torch.zeros(1, group.shape[2]), RESAMPLES * group.shape[2])[0].view(RESAMPLES, -1)
        again = torch.tensor([self._length(group[:, :, some], which, hardest) for some in places], dtype=torch.float64)
        low, high = (float(again.quantile(share)) for share in ((1 - level) / 2, (1 + level) / 2))
        method = f"{RESAMPLES} resamples of {group.shape[2]} places, {len(group)} models"
        return Estimate(found, min(low, found), max(high, found), level, group.shape[2], method, "tokens")

    def _length(self, group: Float[Tensor, "M C n"], which: int, hardest: float) -> float:
        for place in range(len(self.lengths) - 1):
            if _gain(group, which, place, hardest) < THRESHOLD:
                return float(self.lengths[place])
        return float(self.lengths[-1])


def _gain(group: Float[Tensor, "M C n"], which: int, shorter: int, hardest: float) -> float:
    """g of the length after the one at this place among the lengths, on the hardest share of tokens."""
    best = group[:, shorter].amin(0)
    hard = best.topk(max(1, round(hardest * len(best)))).indices
    before, after = best[hard].mean(), torch.minimum(best, group[which, shorter + 1])[hard].mean()
    return 1 - float((after - before).exp())


def context_losses(
    base: Base, tokens: Int[Tensor, "N"], places: Int[Tensor, "n"], lengths: Sequence[int], *, sees: int | None = None
) -> Float[Tensor, "C n"]:
    """-log a(token | the c tokens before it) at each place, for each c; the base can read `sees` tokens of context at most."""
    if list(lengths) != sorted(set(lengths)) or not lengths or lengths[0] < 0 or int(places.min()) < lengths[-1]:
        raise ValueError(
            f"Lengths of context grow from 0 or more, and every place has the longest before it: got {list(lengths)}, and a "
            f"place after {int(places.min())} tokens. Nothing was measured."
        )
    found: list[Tensor] = []
    for length in lengths:
        used = length if sees is None else min(length, sees)
        window = places[:, None] + torch.arange(-used, 1)
        row = torch.full((len(places),), used)
        x = Sequences(tokens[window], row, row + 1)
        found.append(-by_rows(lambda rows: base.log_probs(rows).sum(-1), beside(base, x)))
    return torch.stack(found)


def spread_places(count: int, tokens: int, longest: int) -> Int[Tensor, "n"]:
    """Places evenly spread over a text, each with the longest context before it."""
    if tokens <= longest + 1:
        raise ValueError(f"A text of {tokens:,} tokens has no place after {longest:,}. Nothing was measured; give more text.")
    count = min(count, tokens - longest)
    return longest + torch.arange(count) * (tokens - longest) // count
