"""A tiny base with dropout on a stream, with everything that a run on streams can have."""

import torch
from tiny_run import Watched

from esscher.bases.network import NetworkBase, build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.core.target import Tilted
from esscher.networks.recurrent_config import LstmConfig
from esscher.training.config import TrainingConfig
from esscher.training.stream_batches import TokenStream
from esscher.training.trainer import Trainer, TrainingRecord

SPACE = Space(5, 9)
# columns of 62 tokens in segments of about 9: epochs, evaluations and saves end at different steps
SETTINGS = TrainingConfig(
    steps=19, batch_size=8, gradient_accumulation_steps=2, learning_rate=0.02, evaluate_every=4, save_every=3, log_every=2,
    schedule="cosine", warmup_steps=3, swa_start=0.4, seed=5,
)  # fmt: skip


def new_base(*, dropout: float = 0.3, width: int = 6, seed: int = 1) -> NetworkBase:
    return build_base(LstmConfig(width=width, layers=2, dropout=dropout, embedding=4), SPACE, rng=SeededRng(seed))


def text(count: int, seed: int = 2) -> torch.Tensor:
    """Tokens that depend on the one before."""
    steps = torch.randint(3, (count,), generator=torch.Generator().manual_seed(seed))
    return steps.cumsum(0) % 5


def run(base, folder=None, *, resume=False, told=None, config=SETTINGS, segment=9) -> TrainingRecord:
    objective = Watched() if told is None else Watched(told)
    return Trainer(config)(
        objective,
        Tilted(base),
        TokenStream(text(500), segment, "random"),
        modules=base,
        validation=TokenStream(text(700, seed=3), 9),
        folder=folder,
        resume=resume,
    )
