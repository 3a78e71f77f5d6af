"""Training of any objective on any target, one player or several, resumed to the bit.

    record = Trainer(TrainingConfig(steps=500))(Likelihood(), Tilted(base), data, modules=base, folder="runs/first")

All chance of an update is `Seeded(seed).stream("step", step, "rank", rank)`, and the order of the data is a
function of the seed, so a run is its weights, its optimisers' tensors and its step: what a checkpoint holds. Data are
sequences, other rows (`Points`, for games of networks; `Labelled`, for fine-tuning), or a `Stream`, which a base with a
memory reads in order; its memories are in the checkpoint, too.
A run that was killed and resumed ends with the weights of a run that was not. See `docs/why/resume.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from esscher.objective import Objective
from esscher.settings.training import Pace, TrainingConfig
from esscher.space import Sequences
from esscher.training.batches import Rows
from esscher.training.evaluation import HeldOut, HeldOutStream, Validation
from esscher.training.loop import Loop, Task, TrainingRecord
from esscher.training.processes import connect
from esscher.training.progress import choose_progress
from esscher.training.streams import Stream

Target = TypeVar("Target")


@dataclass(frozen=True)
class Trainer:
    """Trains with the settings of a config; `quiet` shows nothing."""

    config: TrainingConfig
    quiet: bool = False

    def __call__(
        self,
        objective: Objective[Target, Any, Any],
        target: Target,
        data: Sequences | Stream | Rows,
        *,
        modules: nn.Module | Mapping[str, nn.Module],
        paces: Mapping[str, Pace] | None = None,
        validation: Validation | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> TrainingRecord:
        """Minimise the objective over the modules, in place, each player at its pace; with a `folder`, save there and resume
        from there."""
        players = {"model": modules} if isinstance(modules, nn.Module) else modules
        if isinstance(validation, Sequences | Stream):
            held_out = HeldOut if isinstance(validation, Sequences) else HeldOutStream
            validation = held_out(objective, validation)  # type: ignore[arg-type]
        task = Task(objective, target, data, players, validation, None if folder is None else Path(folder), paces or {})
        accelerator = connect(self.config, task.folder)
        progress = choose_progress(self.quiet)
        loop = Loop(self.config, task, accelerator, progress)
        loop.restore(resume)
        progress.begin(loop.step, loop.steps)
        try:
            while not loop.over():
                loop.update()
                loop.look()
            return loop.finish()
        finally:
            progress.end()
