"""Settings of the recipe on global autoregressive models at each scale: processes, data sizes, sets of features."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from esscher.data.config import MOTIF, DataConfig
from esscher.networks.recurrent_config import LstmConfig
from esscher.training.config import TrainingConfig
from esscher.workflow.config.distil import DistilConfig
from esscher.workflow.config.train import TrainRun

FEATURE_SETS = ("1001111", "1011111", "0111111")
MOTIFS = ("10001011111000", "01011101101", "001001100111", "1011100111001", "100010100011")


@dataclass(frozen=True, kw_only=True)
class GamScale:
    """The settings that differ between scales; the first motif is that of all extra runs, with pure data."""

    base: TrainRun  # the length of strings, the network, and how long it learns at most
    distil: DistilConfig  # `draws` of a student, and `candidates` of the base: half to fit weights, half to estimate log Z
    distil_epochs: int
    motifs: tuple[str, ...]
    sizes: tuple[int, ...]
    mixtures: tuple[float, ...] = (1.0, 0.9)  # shares of strings that hold the motif; 1 is the paper's pure process
    feature_sets: tuple[str, ...] = FEATURE_SETS
    extra_sizes: tuple[int, ...] = ()  # more data sizes, with the first feature set
    descent_epochs: int  # of the stochastic regimes, at most
    early_stop_updates: int  # of bases that are stopped early

    def runs(self, seeds: int) -> Iterator[tuple[TrainRun, tuple[str, ...]]]:
        """All bases with their feature sets; seeds after the first repeat the first motif, pure, with the first feature set."""
        for motif in self.motifs:
            for mixture in self.mixtures:
                for size in self.sizes:
                    yield self._run(motif, size, mixture=mixture), self.feature_sets
        first, features = self.motifs[0], self.feature_sets[:1]
        for seed in range(1, seeds):
            for size in self.sizes:
                yield self._run(first, size, seed=seed), features
        for size in self.extra_sizes:
            yield self._run(first, size), features
        for size in (*self.extra_sizes[-1:], *self.sizes):
            yield self._run(first, size, updates=self.early_stop_updates), features

    def _run(self, motif: str, size: int, *, mixture: float = 1.0, seed: int = 0, updates: int | None = None) -> TrainRun:
        """A base that stops by its patience, or after so many updates."""
        training = replace(self.base.training, evaluate_every=max(1, min(size // self.base.training.batch_size, 50)), seed=seed)
        if updates is not None:
            training = replace(training, steps=updates, patience=None)
        data = replace(self.base.data, source=f"{MOTIF}{motif}", size=size, mixture=mixture)
        return replace(self.base, data=data, training=training)


def kind_of(run: TrainRun) -> str:
    """Whether all strings hold the motif."""
    return "pure" if run.data.mixture == 1 else "mixture"


def run_name(run: TrainRun) -> str:
    """The name of the folder of a run."""
    early = f"-{run.training.steps}updates" if run.training.patience is None else ""
    return f"{run.data.motif}-{kind_of(run)}-{run.data.size}{early}-seed{run.training.seed}"


def _base(*, length: int, width: int, steps: int) -> TrainRun:
    """An LSTM by Adam at 1e-3, stopped by a patience of 20 as in the paper."""
    training = TrainingConfig(batch_size=50, optimizer="adam", steps=steps, patience=20)
    return TrainRun("", data=DataConfig(length=length), base=LstmConfig(width=width), training=training)


SCALES = {
    "smoke": GamScale(
        base=_base(length=12, width=32, steps=60), distil=DistilConfig(draws=1_000, candidates=3_000), distil_epochs=1,
        motifs=("1000101",), sizes=(200,), feature_sets=FEATURE_SETS[:1], descent_epochs=4, early_stop_updates=20,
    ),
    "small": GamScale(
        base=_base(length=30, width=200, steps=2_000), distil=DistilConfig(draws=20_000, candidates=40_000), distil_epochs=2,
        motifs=MOTIFS[:2], sizes=(500, 5000), extra_sizes=(100, 200), descent_epochs=40, early_stop_updates=250,
    ),
    "paper": GamScale(
        base=_base(length=30, width=200, steps=40_000), distil=DistilConfig(draws=20_000, candidates=400_000),
        distil_epochs=20, motifs=MOTIFS, sizes=(500, 1000, 5000, 10000, 20000), extra_sizes=(100, 200), descent_epochs=200,
        early_stop_updates=250,
    ),
}  # fmt: skip
