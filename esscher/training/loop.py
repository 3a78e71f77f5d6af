"""One run of the trainer, update by update: what it remembers, how it is restored, evaluated, saved and ended.

The trainer (`esscher.training.trainer`) is its face; the parts it moves are players, order, checkpoints.
"""

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from esscher.bases.turns import in_turns
from esscher.estimate import Estimate
from esscher.networks.recompute import recompute
from esscher.objective import Objective
from esscher.randomness import Seeded
from esscher.settings.changes import refuse_change
from esscher.settings.training import Pace, TrainingConfig, learning_rate
from esscher.space import Sequences
from esscher.storage import module_parts
from esscher.training.average import Average, stalled
from esscher.training.batches import Rows, Shuffled, Supply
from esscher.training.checkpoint import Checkpoints, pack, unpack, unpack_weights
from esscher.training.evaluation import HeldOut, HeldOutStream, mean_loss
from esscher.training.history import History
from esscher.training.players import Players
from esscher.training.processes import from_all, from_first, make_equal
from esscher.training.progress import Progress
from esscher.training.streams import Columns, Stream


@dataclass(frozen=True)
class TrainingRecord:
    """What a run did: its numbers in order, its best evaluation, and why it stopped."""

    steps: int
    stopped: str  # "finished" or "patience"
    history: tuple[Mapping[str, Any], ...]
    best: Estimate | None
    best_step: int | None


@dataclass(frozen=True)
class Task:
    """What is to be trained, on what, and where it is saved."""

    objective: Objective[Any, Any, Any]
    target: Any
    data: Sequences | Stream | Rows
    modules: Mapping[str, nn.Module]
    validation: HeldOut | HeldOutStream | Callable[[], Estimate] | None
    folder: Path | None
    paces: Mapping[str, Pace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        held_out = self.validation.data if isinstance(self.validation, HeldOut | HeldOutStream) else self.data
        if len(self.data) == 0 or len(held_out) == 0:
            raise ValueError(
                "There is no sequence or point to train on, or none to validate by. Nothing was trained; give some."
            )


@dataclass
class _Standing:
    """What a run remembers from one update to the next, besides its tensors."""

    step: int = 0
    best: Estimate | None = None
    best_step: int | None = None
    waited: int = 0  # evaluations since the best
    loss: float = 0.0  # summed since the last entry of the history
    updates: int = 0  # so many of them
    evaluations: list[float] = field(default_factory=list)
    averaged_from: int | None = None  # the step where the evaluations stalled

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "_Standing":
        best = values["best"]
        return cls(**{**values, "best": None if best is None else Estimate(**best)})


class Loop:
    """One call of the trainer."""

    def __init__(self, config: TrainingConfig, task: Task, accelerator: Accelerator, progress: Progress):
        self.config, self.task, self.accelerator, self.progress = config, task, accelerator, progress
        for module in task.modules.values():
            module.to(accelerator.device)
        make_equal(list(task.modules.values()))
        for module in task.modules.values():
            _arrange(module, config)
        self.players = Players(task.modules, task.paces, config, accelerator)
        self.supply = _supply(task, config, accelerator)
        self.steps = config.steps or self.supply.steps(config.epochs or config.usual_epochs)
        self.evaluate_every = config.evaluate_every or self.supply.steps(1)
        self.average = Average(task.modules, None if config.average is None else round(config.average * self.steps))
        self.save_every = config.save_every or self.evaluate_every
        self.main = accelerator.is_main_process
        self.checkpoints = None if task.folder is None else Checkpoints(task.folder / "checkpoints")
        self.history = History(task.folder / "history.jsonl" if task.folder is not None and self.main else None)
        self.standing = _Standing()
        self.kept: dict[str, dict[str, Tensor]] = {}  # the best weights, when there is no folder
        if config.tracker is not None:
            accelerator.init_trackers("esscher", config=_flat(asdict(config)))

    @property
    def step(self) -> int:
        return self.standing.step

    def restore(self, resume: bool) -> None:
        """Go to the last checkpoint; a folder that has one is never overwritten by a run that does not resume."""
        last = None if self.checkpoints is None else self.checkpoints.last()
        if self.checkpoints is None or last is None:
            if resume:
                self.progress.say("Training starts at the beginning.")
            if self.history.file is not None:
                self.history.file.unlink(missing_ok=True)
            return
        if not resume:
            raise FileExistsError(
                f"{self.checkpoints.folder} holds {last.name} of a run. Nothing was trained or changed; resume it, or choose "
                f"another folder."
            )
        saved = self.checkpoints.read(last)
        refuse_change("The run", saved.state["settings"], self._settings())
        unpack(saved, self.players.modules, self.players.optimisers, last)
        self.supply.restore(saved.carried)
        self.average.restore(saved.carried)
        self.standing = _Standing.from_dict(saved.state["standing"])
        if self.standing.averaged_from is not None:
            self.average.begin = self.standing.averaged_from
        self.history.restore(self.step)
        if saved.state["versions"] != _versions():
            self.progress.say(f"Saved with {saved.state['versions']}, resumed with {_versions()}: bits may differ.")
        self.progress.say(f"Resumed at step {self.step} of {self.steps}.")

    def over(self) -> bool:
        return self.step >= self.steps or self._impatient()

    def update(self) -> None:
        """One step: all passes, one move of every player."""
        rng = Seeded(self.config.seed).stream("step", self.step, "rank", self.accelerator.process_index)
        rate = self.supply.scale(self.step) * learning_rate(self.config, self.step, self.steps)
        tokens = self.supply.tokens(self.step)
        self.players.clear()
        self.players.train(True)
        with rng.governs_torch():
            for target, part in self.supply.parts(self.step):
                with in_turns(), self.accelerator.autocast():
                    loss = self.task.objective(target, part, rng=rng, step=self.step)
                self.players.add(loss)
        value, metrics = self.players.update(rate)
        self._refuse_divergence(value, metrics)
        self.standing.step += 1
        self.average.add(self.step)
        self.standing.loss += value
        self.standing.updates += 1
        self.progress.update(self.step, value, tokens)
        if self.step % self.config.log_every == 0 or self.step == self.steps:
            mean = self.standing.loss / self.standing.updates
            self.standing.loss, self.standing.updates = 0.0, 0
            self._log({"loss": mean, **metrics, "learning_rate": rate})

    def look(self) -> None:
        """Evaluate and save, where it is time to."""
        last = self.step == self.steps
        better = False
        if self.task.validation is not None and (last or self.step % self.evaluate_every == 0):
            better = self._evaluate()
        if last or better or self._impatient() or self.step % self.save_every == 0:
            self._save(better)

    def finish(self) -> TrainingRecord:
        """Leave the players with the weights that were asked for, ready to be used."""
        if self.config.keep_best and self.standing.best_step not in (None, self.step):
            best = None if self.checkpoints is None else self.checkpoints.best()
            if self.checkpoints is not None and best is not None:
                saved = self.checkpoints.read(best)
                unpack_weights(saved, self.players.modules, best)
                self.average.restore(saved.carried)
                self.average.settle()
            self._return_to_kept()
        else:
            self.average.settle()
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.players.clear()
        self.players.train(False)
        stopped = "patience" if self._impatient() else "finished"
        standing, history = self.standing, tuple(from_first(self.history.entries))
        return TrainingRecord(self.step, stopped, history, standing.best, standing.best_step)

    def _evaluate(self) -> bool:
        """Compare with the best so far; the same verdict on all processes."""
        with self.average.in_place():
            return self._compare()

    def _compare(self) -> bool:
        self.players.train(False)
        found = self._validate()
        standing = self.standing
        better = standing.best is None or found.value < standing.best.value
        if better:
            standing.best, standing.best_step, standing.waited = found, self.step, 0
            if self.checkpoints is None:
                modules = self.players.modules.items()
                self.kept = {name: {k: v.clone() for k, v in module_parts(module).items()} for name, module in modules}
        else:
            standing.waited += 1
        standing.evaluations.append(found.value)
        self._begin_average()
        self._log({"validation": found.value, "validation_low": found.low, "validation_high": found.high})
        self.progress.evaluated(self.step, found, better)
        return better

    @torch.no_grad()
    def _return_to_kept(self) -> None:
        for name, kept in self.kept.items():
            for tensor, best in zip(module_parts(self.players.modules[name]).values(), kept.values(), strict=True):
                tensor.copy_(best)

    def _begin_average(self) -> None:
        """Average from here on, if the evaluations stalled and that was asked for."""
        patience, standing = self.config.average_after, self.standing
        if patience is not None and self.average.begin is None and stalled(standing.evaluations, patience):
            standing.averaged_from = self.average.begin = self.step
            self.progress.say(f"Evaluations stalled: weights are averaged from step {self.step:,} on.")

    def _validate(self) -> Estimate:
        """Held-out data are shared by the processes; any other number is the first one's to find."""
        validation, accelerator = self.task.validation, self.accelerator
        assert validation is not None
        if not isinstance(validation, HeldOut | HeldOutStream):
            with in_turns():
                number = validation() if self.main else None
            return from_first(number)
        with in_turns():
            losses = validation.losses(
                self.task.target,
                batch_size=self.config.batch_size,
                device=accelerator.device,
                step=self.step,
                only=slice(accelerator.process_index, None, accelerator.num_processes),
                rng=Seeded(self.config.seed).stream("validation"),
            )
        every = [loss for some in from_all(losses) for loss in some]
        return mean_loss(every, draws=len(validation.data))

    def _save(self, better: bool) -> None:
        if self.checkpoints is not None:
            state = {"standing": asdict(self.standing), "settings": self._settings(), "versions": _versions()}
            carried = {**self.supply.saved(), **self.average.saved()}
            saved = pack(self.players.modules, self.players.optimisers, state, carried)
            if self.main:
                self.checkpoints.save(self.step, saved, best=better)
            self.accelerator.wait_for_everyone()

    def _settings(self) -> dict[str, Any]:
        """What must not change between a run and its resumption."""
        paces = {name: asdict(pace) for name, pace in self.task.paces.items()}
        data = {"data": self.supply.fingerprint(), "processes": self.accelerator.num_processes}
        return {**asdict(self.config), **data, **({"paces": paces} if paces else {})}

    def _refuse_divergence(self, value: float, metrics: Mapping[str, float]) -> None:
        if not (math.isfinite(value) and math.isfinite(metrics["gradient"])):
            last = None if self.checkpoints is None else self.checkpoints.last()
            kept = "Nothing was saved" if last is None else f"The checkpoint {last.name} is kept"
            raise RuntimeError(
                f"Training diverged at step {self.step}: the loss is {value}, the gradient {metrics['gradient']}. The weights "
                f"before this step are unchanged. {kept}; lower learning_rate or clip, or raise warmup."
            )

    def _impatient(self) -> bool:
        return self.config.patience is not None and self.standing.waited >= self.config.patience

    def _log(self, numbers: Mapping[str, float]) -> None:
        self.history.add({"step": self.step, **numbers})
        if self.config.tracker is not None:
            self.accelerator.log(dict(numbers), step=self.step)


def _arrange(module: nn.Module, config: TrainingConfig) -> None:
    """Let a module keep less, and share it out, where that is asked for."""
    if config.recompute:
        recompute(module)
    if config.sharded:
        from esscher.bases.sharding import shard  # which takes seconds to load

        shard(module)


def _supply(task: Task, config: TrainingConfig, accelerator: Accelerator) -> Supply:
    """Sequences or other rows in a shuffled order, or a stream in columns."""
    if isinstance(task.data, Stream):
        return Columns(task.data, task.target, config, accelerator)
    return Shuffled(task.data, task.target, config, accelerator)


def _versions() -> dict[str, str]:
    """What the last bits depend on, besides the settings."""
    return {"python": platform.python_version(), "torch": torch.__version__, "threads": str(torch.get_num_threads())}


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as trackers take them."""
    return {key: value if isinstance(value, int | float | str | bool) else str(value) for key, value in values.items()}
