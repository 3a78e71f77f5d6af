"""The mean of a long series whose neighbours depend on each other, with an interval that respects it.

The series is cut into blocks of neighbours; blocks much longer than the dependence reaches are nearly independent replicates,
which single entries are not (`docs/why/streams.md` has the coverage of both). There are 40 blocks; where neighbouring ones
are still alike, 20; and else 10, which is as far as it goes: `dependence` tells what is left then. Left out: dependence that
reaches over a tenth of the series, which makes the interval too short.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.estimate import Estimate
from esscher.estimators.intervals import interval

BLOCKS = (40, 20, 10)


def blocked(series: Float[Tensor, "N"], blocks: int) -> Float[Tensor, "K"]:
    """The sums of blocks of neighbours, of nearly one length; of fewer where the series is shorter."""
    return torch.stack([block.sum() for block in series.double().tensor_split(max(1, min(blocks, len(series))))])


def dependence(total: Float[Tensor, "N"], size: Float[Tensor, "N"], blocks: int) -> float:
    """Correlation of neighbouring blocks: near 0 when they are long enough, and by chance alone up to `by_chance`."""
    above, below = blocked(total, blocks), blocked(size, blocks)
    rest = above - below * above.sum() / below.sum()
    spread = float(rest.square().sum())
    return float((rest[1:] * rest[:-1]).sum()) / spread if spread > 0 else 0.0


def by_chance(blocks: int) -> float:
    """The correlation of independent neighbours that chance seldom exceeds."""
    return 2 / math.sqrt(blocks)


def blocks_for(total: Float[Tensor, "N"], size: Float[Tensor, "N"]) -> int:
    """The most blocks whose neighbours are no more alike than by chance; the fewest, if all are."""
    return next((blocks for blocks in BLOCKS if dependence(total, size, blocks) <= by_chance(blocks)), BLOCKS[-1])


def ratio_of_sums(
    total: Float[Tensor, "N"], size: Float[Tensor, "N"], *, level: float, of: str = "tokens", unit: str = ""
) -> Estimate:
    """sum of `total` / sum of `size` for all series like this one; without two blocks there is no interval."""
    blocks = blocks_for(total, size)
    above, below = blocked(total, blocks), blocked(size, blocks)
    if len(above) < 2:
        return Estimate(
            float(above.sum() / below.sum()), -math.inf, math.inf, level, len(total), "one block: no interval", unit
        )

    def ratio(count: Tensor) -> Tensor:
        return (count[0] * above).sum() / (count[0] * below).sum()

    method = f"{len(above)} blocks of {len(total) // len(above):,} {of}"
    return interval(ratio, [(1, len(above))], level=level, draws=len(total), method=method, unit=unit)
