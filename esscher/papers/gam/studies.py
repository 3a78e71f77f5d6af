"""Settings of the recipe on global autoregressive models at each scale: processes, data sizes, sets of features."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from esscher.data.config import DataConfig
from esscher.networks.recurrent_config import LstmConfig
from esscher.training.config import TrainingConfig
from esscher.workflow.config.train import TrainRun

FEATURE_SETS = ("1001111", "1011111", "0111111")
MOTIFS = ("10001011111000", "01011101101", "001001100111", "1011100111001", "100010100011")
BATCH_SIZE = 50


@dataclass(frozen=True, kw_only=True)
class MotifRun:
    """A motif process, how many strings of it a base learns from, and for how many updates (None: a patience of 20)."""

    motif: str
    size: int
    mixture: float = 1.0  # share of strings that hold the motif; 1 is the paper's pure process
    updates: int | None = None
    seed: int = 0

    @property
    def kind(self) -> str:
        return "pure" if self.mixture == 1 else "mixture"

    @property
    def training_label(self) -> str:
        return "to the end" if self.updates is None else f"{self.updates} updates"

    @property
    def name(self) -> str:
        early = "" if self.updates is None else f"-{self.updates}updates"
        return f"{self.motif}-{self.kind}-{self.size}{early}-seed{self.seed}"


@dataclass(frozen=True, kw_only=True)
class GamScale:
    """The settings that differ between scales; the first motif is that of all extra runs, with pure data."""

    length: int
    width: int
    max_updates: int  # of a base
    draws: int  # of a base: half to fit weights, half to estimate log Z, all to distil from
    distil_sequences: int  # strings that a student learns from
    distil_epochs: int
    motifs: tuple[str, ...]
    sizes: tuple[int, ...]
    mixtures: tuple[float, ...] = (1.0, 0.9)
    feature_sets: tuple[str, ...] = FEATURE_SETS
    extra_sizes: tuple[int, ...] = ()  # more data sizes, with the first feature set
    descent_epochs: int  # of the stochastic regimes, at most
    early_stop_updates: int  # of bases that are stopped early

    def runs(self, seeds: int) -> Iterator[tuple[MotifRun, tuple[str, ...]]]:
        """All runs with their feature sets; seeds after the first repeat the first motif, pure, with the first feature set."""
        for motif in self.motifs:
            for mixture in self.mixtures:
                for size in self.sizes:
                    yield MotifRun(motif=motif, mixture=mixture, size=size), self.feature_sets
        first, features = self.motifs[0], self.feature_sets[:1]
        for seed in range(1, seeds):
            for size in self.sizes:
                yield MotifRun(motif=first, size=size, seed=seed), features
        for size in self.extra_sizes:
            yield MotifRun(motif=first, size=size), features
        for size in (*self.extra_sizes[-1:], *self.sizes):
            yield MotifRun(motif=first, size=size, updates=self.early_stop_updates), features


SCALES = {
    "smoke": GamScale(
        length=12, width=32, max_updates=60, draws=3_000, distil_sequences=1_000, distil_epochs=1, motifs=("1000101",),
        sizes=(200,), feature_sets=FEATURE_SETS[:1], descent_epochs=4, early_stop_updates=20,
    ),
    "small": GamScale(
        length=30, width=200, max_updates=2_000, draws=40_000, distil_sequences=20_000, distil_epochs=2, motifs=MOTIFS[:2],
        sizes=(500, 5000), extra_sizes=(100, 200), descent_epochs=40, early_stop_updates=250,
    ),
    "paper": GamScale(
        length=30, width=200, max_updates=40_000, draws=400_000, distil_sequences=20_000, distil_epochs=20, motifs=MOTIFS,
        sizes=(500, 1000, 5000, 10000, 20000), extra_sizes=(100, 200), descent_epochs=200, early_stop_updates=250,
    ),
}  # fmt: skip


def base_run(source: MotifRun, scale: GamScale, folder: Path) -> TrainRun:
    """An LSTM by Adam at 1e-3, stopped by a patience of 20 as in the paper, or after a number of updates."""
    return TrainRun(
        out=str(folder),
        data=DataConfig(source=f"motif:{source.motif}", size=source.size, length=scale.length, mixture=source.mixture),
        base=LstmConfig(width=scale.width),
        training=TrainingConfig(
            batch_size=BATCH_SIZE,
            evaluate_every=max(1, min(source.size // BATCH_SIZE, 50)),
            optimizer="adam",
            seed=source.seed,
            steps=source.updates or scale.max_updates,
            patience=20 if source.updates is None else None,
        ),
    )
