"""Cross-entropy of one long text under a base with a memory, and how far back context helps.

`stream_log_probs` scores each token once, after all tokens before it that the memory holds. For speed it reads the text in
several columns; column i reads tokens i * step ... (i + 1) * step + warm, and the first `warm` tokens of a column after the
first fill its memory without being scored. Left out: dynamic evaluation.

`ContextLosses` has the loss by context length and the relative effective context length of several models. With l_i(c, t) the
loss of model i on token t after the c tokens before it (Dai et al. 2019, appendix C):

    b(c, t) = min_i l_i(c, t)                                     the best of the group with the shorter context
    f_i(c, c') = mean of min(b(c, t), l_i(c', t)) over t in T     T: the share r of tokens where b(c, t) is highest
    g_i(c, c') = 1 - exp(f_i(c, c') - f_i(c, c))                  the perplexity that model i gains over the best of the group

A model's length is the first c after which the next longer context gains less than `THRESHOLD`. It is relative to a group of
models with the same tokens, compared at the same places; intervals of lengths resample the places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.bases.network import NetworkBase
from esscher.core.device import on_device_of
from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng
from esscher.core.space import Sequences
from esscher.core.target import Base
from esscher.estimators.intervals import BLOCKS, block_correlation, choose_blocks, correlation_threshold, ratio_of_sums
from esscher.estimators.perplexity import TestSetMode, check_test, nonnegative
from esscher.samplers.scoring import score_in_batches

SEGMENT, WARM = 128, 1024
THRESHOLD, HARDEST_SHARES = 0.01, (0.1, 0.5, 1.0)
RESAMPLES = 200


@torch.no_grad()
def stream_log_probs(
    base: NetworkBase, tokens: Int[Tensor, "N"], *, streams: int = 1, segment: int = SEGMENT, warm: int = WARM
) -> Float[Tensor, "N"]:
    """log a(token | all before it) of each token, in float64, read in `streams` columns by segments of `segment` tokens."""
    if len(tokens) == 0 or streams < 1 or segment < 1 or warm < 0:
        raise ValueError(
            f"Tokens, streams and segment are at least 1 and warm at least 0: got {len(tokens)} tokens, streams = {streams}, "
            f"segment = {segment}, warm = {warm}. Nothing was measured."
        )
    rows, step = _stream_columns(tokens, streams, warm)
    device = next(base.parameters()).device
    memory, pieces = base.init_memory(len(rows)), []
    for piece in torch.split(rows, segment, 1):
        log_probs, memory = base.read(memory, piece.to(device))
        pieces.append(log_probs.cpu().double())
    score = torch.cat(pieces, 1)
    return torch.cat([score[0], score[1:, score.shape[1] - step :].flatten()])[: len(tokens)]


def stream_cross_entropy(
    log_prob: Float[Tensor, "N"], units: Mapping[str, Tensor], *, test: TestSetMode = "sample", confidence: float = 0.95
) -> dict[str, Estimate]:
    """Nats per unit of a text whose tokens have these log-probabilities; `units` has the number of units of each token. With
    test="sample", blocks of neighbouring tokens are the replicates; with test="fixed", the number is exact."""
    check_test(test)
    estimates = {}
    for name, size in units.items():
        unit = f"nats per {name}"
        if test == "fixed":
            value = float(-log_prob.sum() / size.sum())
            estimates[name] = Estimate.exact(value, method="exact, fixed text", unit=unit)
        else:
            estimates[name] = nonnegative(ratio_of_sums(-log_prob, size.double(), confidence=confidence, unit=unit))
    return estimates


def stream_warnings(log_prob: Float[Tensor, "N"], size: Tensor) -> list[str]:
    """Warnings about an interval from too few tokens or from correlated blocks."""
    blocks = choose_blocks(-log_prob, size.double())
    correlation = block_correlation(-log_prob, size.double(), blocks)
    if len(log_prob) < 2 * BLOCKS[0]:
        return [f"{len(log_prob)} tokens are too few for an interval over blocks; give more text."]
    if correlation <= correlation_threshold(blocks):
        return []
    return [
        f"Neighbouring blocks of {len(log_prob) // blocks:,} tokens correlate ({correlation:.2f}), so the interval is too "
        f"short; more text makes longer blocks."
    ]


def _stream_columns(tokens: Int[Tensor, "N"], streams: int, warm: int) -> tuple[Int[Tensor, "S W"], int]:
    """The columns and their step; the text is padded by token 0, which is not scored."""
    warm = min(warm, len(tokens) - 1) if streams > 1 else 0
    step = -(-(len(tokens) - warm) // streams)
    padded = torch.nn.functional.pad(tokens, (0, warm + streams * step - len(tokens)))
    return padded.unfold(0, warm + step, step), step


@dataclass(frozen=True)
class ContextLosses:
    """Losses of a group of models at the same places, after contexts of each length in ascending order."""

    lengths: tuple[int, ...]
    losses: Mapping[str, Float[Tensor, "C n"]]

    @property
    def places(self) -> int:
        return next(iter(self.losses.values())).shape[1]

    def by_length(self, model: str, *, confidence: float = 0.95) -> list[Estimate]:
        """Nats per token after each length, with blocks of neighbouring places as replicates."""
        size = torch.ones(self.places, dtype=torch.float64)
        return [
            ratio_of_sums(row, size, confidence=confidence, counted="places", unit="nats per token")
            for row in self.losses[model]
        ]

    def effective_length(self, model: str, hardest: float, *, confidence: float = 0.95, rng: Rng) -> Estimate:
        """The relative effective context length on the `hardest` share of tokens; the longest where it still gains."""
        group, which = torch.stack(list(self.losses.values())), list(self.losses).index(model)
        value = self._length(group, which, hardest)
        places = rng.categorical(torch.zeros(1, group.shape[2]), RESAMPLES * group.shape[2])[0].view(RESAMPLES, -1)
        again = torch.tensor([self._length(group[:, :, sample], which, hardest) for sample in places], dtype=torch.float64)
        low, high = (float(again.quantile(share)) for share in ((1 - confidence) / 2, (1 + confidence) / 2))
        method = f"{RESAMPLES} resamples, {len(group)} models"
        return Estimate(value, min(low, value), max(high, value), confidence, self.places, method, "tokens", "places")

    def _length(self, group: Float[Tensor, "M C n"], which: int, hardest: float) -> float:
        for number, length in enumerate(self.lengths[:-1]):
            best = group[:, number].amin(0)
            hard = best.topk(max(1, round(hardest * len(best)))).indices
            before, after = best[hard].mean(), torch.minimum(best, group[which, number + 1])[hard].mean()
            if 1 - float((after - before).exp()) < THRESHOLD:
                return float(length)
        return float(self.lengths[-1])


def context_losses(
    base: Base, tokens: Int[Tensor, "N"], places: Int[Tensor, "n"], lengths: Sequence[int], *, max_context: int | None = None
) -> Float[Tensor, "C n"]:
    """-log a(token | the c tokens before it) at each place, for each length c, cut to `max_context` tokens."""
    if list(lengths) != sorted(set(lengths)) or not lengths or lengths[0] < 0 or int(places.min()) < lengths[-1]:
        raise ValueError(
            f"Lengths of context ascend from 0 or more, and every place has the longest before it: got {list(lengths)}, and a "
            f"place after {int(places.min())} tokens. Nothing was measured."
        )
    losses: list[Tensor] = []
    for length in lengths:
        used = length if max_context is None else min(length, max_context)
        window = places[:, None] + torch.arange(-used, 1)
        row = torch.full((len(places),), used)
        x = Sequences(tokens[window], row, row + 1)
        losses.append(-score_in_batches(lambda rows: base.log_probs(rows).sum(-1), on_device_of(x, base)))
    return torch.stack(losses)


def spread_places(count: int, tokens: int, longest: int) -> Int[Tensor, "n"]:
    """`count` places evenly spread over a text of `tokens`, each with at least `longest` tokens before it."""
    if tokens <= longest + 1:
        raise ValueError(f"A text of {tokens:,} tokens has no place after {longest:,}. Nothing was measured; give more text.")
    count = min(count, tokens - longest)
    return longest + torch.arange(count) * (tokens - longest) // count
