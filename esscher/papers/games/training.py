"""Training of games: one optimiser a player, Adam without clipping by default."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from esscher.core.estimate import Estimate
from esscher.core.objective import Objective
from esscher.papers.games.networks import Game
from esscher.papers.games.points import Points
from esscher.training.config import OptimizerConfig, TrainingConfig
from esscher.training.trainer import Trainer

ADAM = TrainingConfig(optimizer="adam", max_grad_norm=None)


def players(generator: OptimizerConfig, discriminator: OptimizerConfig) -> dict[str, OptimizerConfig]:
    """The optimisers of a game; the inference net, if there is one, learns like the generator."""
    return {"generator": generator, "discriminator": discriminator, "inference": generator}


def train_game(
    objective: Objective,
    game: Game,
    data: Points,
    training: TrainingConfig,
    optimizers: Mapping[str, OptimizerConfig],
    *,
    seed: int,
    folder: Path,
    names: tuple[str, ...] | None = None,
    validation: Callable[[], Estimate] | None = None,
) -> int:
    """Train the networks of a game, or those of these names, in a folder, resuming there; returns the number of updates."""
    modules = {name: module for name, module in game.modules.items() if names is None or name in names}
    chosen = {name: optimizers[name] for name in modules if name in optimizers}
    return Trainer(replace(training, seed=seed))(
        objective, game, data, modules=modules, optimizer_configs=chosen, validation=validation, folder=folder, resume=True
    ).steps
