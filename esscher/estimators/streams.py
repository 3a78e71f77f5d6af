"""The log-probability of every token of one long text under a base with a memory, and the cross-entropy of the text.

Each token is scored once, after all that stands before it as far as the memory goes. For speed the text can be read in several
columns at once. A column after the first begins `warm` tokens before its place, and scores none of these: they fill its memory.

    column 0   scored scored scored scored                     N = warm + streams * step tokens
    column 1          warm   scored scored ...                 column i reads tokens i * step ... (i + 1) * step + warm

So every token has at least `warm` tokens of context, or all there are; with one column, all there are. What it leaves out:
learning while reading.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.bases.network import NetworkBase
from esscher.estimate import Estimate
from esscher.estimators.blocks import BLOCKS, blocks_for, by_chance, dependence, ratio_of_sums
from esscher.estimators.perplexity import Test, check_test, clipped

SEGMENT, WARM = 128, 1024


@torch.no_grad()
def read_stream(
    base: NetworkBase, tokens: Int[Tensor, "N"], *, streams: int = 1, segment: int = SEGMENT, warm: int = WARM
) -> Float[Tensor, "N"]:
    """log a(token | all before it) of each token, in float64, read in `streams` columns, `segment` tokens of each at a time."""
    if len(tokens) == 0 or streams < 1 or segment < 1 or warm < 0:
        raise ValueError(
            f"A stream of at least one token is read in at least one column, one token or more at a time, after 0 or more: "
            f"got {len(tokens)} tokens, streams = {streams}, segment = {segment}, warm = {warm}. Nothing was measured."
        )
    rows, step = _columns(tokens, streams, warm)
    device = next(base.parameters()).device
    memory, pieces = base.open(len(rows)), []
    for piece in torch.split(rows, segment, 1):
        found, memory = base.read(memory, piece.to(device))
        pieces.append(found.double().cpu())
    score = torch.cat(pieces, 1)
    return torch.cat([score[0], score[1:, score.shape[1] - step :].flatten()])[: len(tokens)]


def stream_cross_entropy(
    log_prob: Float[Tensor, "N"], units: Mapping[str, Tensor], *, test: Test = "sample", level: float = 0.95
) -> dict[str, Estimate]:
    """Nats per unit of a text whose tokens have these log-probabilities; `units` tell how many each token is worth.

    As a sample, blocks of neighbouring tokens are the replicates; fixed, the text is all there is and the number exact.
    """
    check_test(test)
    found = {}
    for name, size in units.items():
        unit = f"nats per {name}"
        if test == "fixed":
            value = float(-log_prob.sum() / size.sum())
            found[name] = Estimate.exact(value, method="exact, fixed text", unit=unit)
        else:
            found[name] = clipped(ratio_of_sums(-log_prob, size.double(), level=level, unit=unit))
    return found


def doubts(log_prob: Float[Tensor, "N"], size: Tensor) -> list[str]:
    """What the reader must know before believing the interval."""
    blocks = blocks_for(-log_prob, size.double())
    found = dependence(-log_prob, size.double(), blocks)
    if len(log_prob) < 2 * BLOCKS[0]:
        return [f"{len(log_prob)} tokens are too few for an interval that respects dependence; give more text."]
    if found <= by_chance(blocks):
        return []
    return [
        f"Neighbouring blocks of {len(log_prob) // blocks:,} tokens are alike (correlation {found:.2f}), so the interval is "
        f"too short; more text makes longer blocks."
    ]


def _columns(tokens: Int[Tensor, "N"], streams: int, warm: int) -> tuple[Int[Tensor, "S W"], int]:
    """The columns, each `step` tokens further than the one before; token 0 stands after the text's end, and is not scored."""
    warm = min(warm, len(tokens) - 1) if streams > 1 else 0
    step = -(-(len(tokens) - warm) // streams)
    padded = torch.nn.functional.pad(tokens, (0, warm + streams * step - len(tokens)))
    return padded.unfold(0, warm + step, step), step
