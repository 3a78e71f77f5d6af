"""How long translations are: their words, of those of the references."""

from collections.abc import Sequence

import torch

from esscher.estimate import Estimate
from esscher.estimators.intervals import interval


def word_ratio(hypotheses: Sequence[str], references: Sequence[str]) -> Estimate:
    """The words of all translations over those of all references, for other lines like these."""
    ours, theirs = (
        torch.tensor([len(line.split()) for line in side], dtype=torch.float64) for side in (hypotheses, references)
    )
    if float(theirs.sum()) == 0:
        raise ValueError("The references hold no word. Nothing was computed; give the right translations.")
    return interval(
        lambda times: (times[0] * ours).sum() / (times[0] * theirs).sum(), [(1, len(ours))], level=0.95, draws=len(ours),
        method=f"ratio of sums over {len(ours):,} lines",
    )  # fmt: skip
