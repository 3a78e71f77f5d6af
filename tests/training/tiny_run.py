"""A tiny base with dropout and ragged data, that tests of training share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from esscher.bases.network import NetworkBase, build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space
from esscher.core.storage import digest, module_tensors
from esscher.core.target import Tilted
from esscher.data.splits import draw_splits
from esscher.networks.recurrent_config import LstmConfig
from esscher.objectives.likelihood import Likelihood
from esscher.training.config import TrainingConfig
from esscher.training.trainer import Trainer, TrainingRecord

SPACE = Space(4, 6, eos=0)
# 40 sequences in batches of 8: evaluations and saves fall inside epochs, and never on the same step throughout
SETTINGS = TrainingConfig(
    steps=17, batch_size=8, gradient_accumulation_steps=2, learning_rate=0.02, evaluate_every=4, save_every=3, log_every=2,
    schedule="cosine", warmup_steps=3, weight_decay=0.01, seed=5,
)  # fmt: skip


def new_base(*, dropout: float = 0.3, width: int = 6, seed: int = 1) -> NetworkBase:
    return build_base(LstmConfig(width=width, layers=2, dropout=dropout), SPACE, rng=SeededRng(seed))


def toy_data() -> tuple[Sequences, Sequences]:
    sets = draw_splits(new_base(dropout=0.0, seed=9), 40, test=60, rng=SeededRng(2))
    return sets.train, sets.test


def fingerprint(base: NetworkBase) -> str:
    return digest(module_tensors(base))


@dataclass(frozen=True)
class Watched:
    """The likelihood, which tells of every call before it answers."""

    told: Callable[[], None] = field(default=lambda: None)
    objective: Likelihood = field(default_factory=Likelihood)

    def __call__(self, target, data, *, rng, step=0):
        self.told()
        return self.objective(target, data, rng=rng, step=step)


def run(base: NetworkBase, folder=None, *, resume=False, told=None, config=SETTINGS, dataset=None) -> TrainingRecord:
    train, held_out = toy_data() if dataset is None else dataset
    objective = Watched() if told is None else Watched(told)
    return Trainer(config)(objective, Tilted(base), train, modules=base, validation=held_out, folder=folder, resume=resume)
