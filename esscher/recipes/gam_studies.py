"""What the recipe on global autoregressive models studies, by scale: processes, sizes of the data, sets of features."""

from collections.abc import Iterator
from dataclasses import dataclass

FTS = ("1001111", "1011111", "0111111")
MOTIFS = ("10001011111000", "01011101101", "001001100111", "1011100111001", "100010100011")


@dataclass(frozen=True)
class Source:
    """A process, how much of it is seen, and for how many updates; None: until 20 evaluations bring nothing."""

    motif: str
    mixture: float  # the share of strings that hold the motif; 1 is the paper's pure process
    size: int
    updates: int | None
    seed: int

    @property
    def kind(self) -> str:
        return "pure" if self.mixture == 1 else "mixture"

    @property
    def trained(self) -> str:
        return "to the end" if self.updates is None else f"{self.updates} updates"

    @property
    def name(self) -> str:
        brief = "" if self.updates is None else f"-{self.updates}updates"
        return f"{self.motif}-{self.kind}-{self.size}{brief}-seed{self.seed}"


@dataclass(frozen=True)
class Scale:
    """What differs between the scales."""

    length: int
    width: int
    updates: int  # of a base, at most
    draws: int  # of a base: half to fit weights by, half to estimate log Z by, all to distil from
    distilled: int  # strings that a student learns from
    distil_epochs: int
    motifs: tuple[str, ...]
    sizes: tuple[int, ...]
    mixtures: tuple[float, ...]
    fts: tuple[str, ...]
    few: tuple[int, ...]  # more sizes for the first motif, pure, with the first features
    descent: int  # epochs of the stochastic regimes, at most
    brief: int  # updates of bases that are stopped early, for the first motif, pure

    def cells(self, seeds: int) -> Iterator[tuple[Source, tuple[str, ...]]]:
        """All sources with their feature sets; seeds after the first repeat the first motif, pure, first features."""
        for motif in self.motifs:
            for mixture in self.mixtures:
                for size in self.sizes:
                    yield Source(motif, mixture, size, None, 0), self.fts
        for seed in range(1, seeds):
            for size in self.sizes:
                yield Source(self.motifs[0], 1.0, size, None, seed), self.fts[:1]
        for size in self.few:
            yield Source(self.motifs[0], 1.0, size, None, 0), self.fts[:1]
        for size in (*self.few[-1:], *self.sizes):
            yield Source(self.motifs[0], 1.0, size, self.brief, 0), self.fts[:1]


SCALES = {
    "smoke": Scale(12, 32, 60, 3_000, 1_000, 1, ("1000101",), (200,), (1.0, 0.9), FTS[:1], (), 4, 20),
    "small": Scale(30, 200, 2_000, 40_000, 20_000, 2, MOTIFS[:2], (500, 5000), (1.0, 0.9), FTS, (100, 200), 40, 250),
    "paper": Scale(
        30, 200, 40_000, 400_000, 20_000, 20, MOTIFS, (500, 1000, 5000, 10000, 20000), (1.0, 0.9), FTS, (100, 200), 200, 250
    ),
}
