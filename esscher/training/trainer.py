"""Training of any objective on any target, with one module or several, resumed bit for bit (`docs/why/resume.md`).

    record = Trainer(TrainingConfig(steps=500))(Likelihood(), Tilted(base), data, modules=base, folder="runs/first")

The randomness of an update is `SeededRng(seed).stream("step", step, "rank", rank)`, and the order of the data is a function of
the seed, so a checkpoint holds weights, optimizers' tensors, step, and the memories of a `TokenStream`.
"""

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esscher.bases.fsdp import gather_in_lockstep, shard
from esscher.core.config import refuse_change
from esscher.core.device import device_of, place
from esscher.core.estimate import Estimate
from esscher.core.folder_lock import locked_folder
from esscher.core.interruption import Interrupted, stop_requested, stops_at_boundaries
from esscher.core.objective import Objective
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences
from esscher.core.storage import local_module_tensors
from esscher.networks.gradient_checkpointing import enable_gradient_checkpointing
from esscher.training.batches import RowData, ShuffledBatches
from esscher.training.checkpoint import (
    RESTORE_BEST,
    CheckpointManager,
    History,
    collect_state,
    restore_state,
    restore_weights,
)
from esscher.training.collectives import all_gather_objects, broadcast_object, broadcast_parameters, make_accelerator
from esscher.training.config import OptimizerConfig, TrainingConfig, learning_rate
from esscher.training.evaluation import HeldOut, mean_loss
from esscher.training.optimizers import Optimizers, WeightAverage, has_stalled
from esscher.training.run_status import StatusWriter
from esscher.training.stream_batches import StreamBatches, TokenStream


@dataclass(frozen=True)
class TrainingRecord:
    """The history of a run, its best evaluation, and why it stopped."""

    steps: int
    stopped: str  # "finished" or "patience"
    history: tuple[Mapping[str, Any], ...]
    best: Estimate | None
    best_step: int | None


@dataclass
class TrainerState:
    """The state of a run from one update to the next, besides its tensors."""

    step: int = 0
    best: Estimate | None = None
    best_step: int | None = None
    waited: int = 0  # evaluations since the best
    loss: float = 0.0  # summed since the last entry of the history
    updates: int = 0  # number of losses in that sum
    evaluations: list[float] = field(default_factory=list)
    averaged_from: int | None = None  # step from which weights are averaged, where the evaluations stalled

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainerState":
        best = values["best"]
        return cls(**{**values, "best": None if best is None else Estimate(**best)})


class TrainingLoop:
    """One run: its updates, evaluations, checkpoints and end; the arguments are those of `Trainer`."""

    def __init__(
        self,
        config: TrainingConfig,
        objective: Objective,
        target: Any,
        data: Sequences | TokenStream | RowData,
        modules: Mapping[str, nn.Module],
        optimizer_configs: Mapping[str, OptimizerConfig],
        validation: HeldOut | Callable[[], Estimate] | None,
        folder: Path | None,
        sample: Callable[[Rng], Sequence[str]] | None = None,
    ):
        if len(data) == 0 or (isinstance(validation, HeldOut) and len(validation.data) == 0):
            raise ValueError("There are no data to train on, or none to validate with. Nothing was trained; give some.")
        self.config, self.validation, self.sample = config, validation, sample
        device = device_of(*modules.values()) or torch.device("cpu")
        self.accelerator = accelerator = make_accelerator(config, folder, device)
        self.progress = current_progress()
        for module in modules.values():
            place(module, device)
        target, self.objective = place(target, device), place(objective, device)
        self.target = target
        if isinstance(validation, HeldOut):
            self.validation = replace(validation, objective=place(validation.objective, device))
        broadcast_parameters(list(modules.values()))
        for module in modules.values():
            if config.gradient_checkpointing:
                enable_gradient_checkpointing(module)
            if config.fsdp:
                shard(module)
        self.optimizer_configs = optimizer_configs
        self.optimizers = Optimizers(modules, optimizer_configs, config, accelerator)
        self.batch_source: StreamBatches | ShuffledBatches
        if isinstance(data, TokenStream):
            self.batch_source = StreamBatches(data, target, config, accelerator)
        else:
            self.batch_source = ShuffledBatches(data, target, config, accelerator)
        self.steps = config.steps or self.batch_source.steps(config.epochs or config.default_epochs)
        self.evaluate_every = config.evaluate_every or self.batch_source.steps(1)
        self.save_every = config.save_every or self.evaluate_every
        self.weight_average = WeightAverage(modules, None if config.swa_start is None else round(config.swa_start * self.steps))
        self.main = accelerator.is_main_process
        self.checkpoints = None if folder is None else CheckpointManager(folder / "checkpoints")
        self.history = History(folder / "history.jsonl" if folder is not None and self.main else None)
        self.status = StatusWriter(folder if self.main else None)
        self.trainer_state = TrainerState()
        self.saved_step: int | None = None  # of the last checkpoint that this process wrote
        self.best_weights: dict[str, dict[str, Tensor]] = {}  # where there is no folder
        if config.tracker is not None:
            plain = {key: v if isinstance(v, int | float | str | bool) else str(v) for key, v in asdict(config).items()}
            accelerator.init_trackers("esscher", config=plain)

    @property
    def step(self) -> int:
        return self.trainer_state.step

    def restore(self, resume: bool) -> None:
        """Load the last checkpoint; a run that does not resume never overwrites one."""
        last = None if self.checkpoints is None else self.checkpoints.last()
        if self.checkpoints is None or last is None:
            if resume:
                self.progress.say("Training starts at the beginning.")
            if self.history.file is not None:
                self.history.file.unlink(missing_ok=True)
            return
        if not resume:
            raise FileExistsError(
                f"{self.checkpoints.folder} holds {last.name} of another run. Nothing was trained or changed; resume it, or "
                f"choose another folder."
            )
        saved = self.checkpoints.read(last)
        refuse_change("The run", saved.state["settings"], self._settings())
        restore_state(saved, self.optimizers.modules, self.optimizers.optimizers, last)
        self.batch_source.load_state_dict(saved.extra)
        self.weight_average.load_state_dict(saved.extra)
        self.trainer_state = TrainerState.from_dict(saved.state["trainer_state"])
        if self.trainer_state.averaged_from is not None:
            self.weight_average.begin = self.trainer_state.averaged_from
        self._refuse_lost_best()
        self.history.restore(saved.state["history"])
        if self.main:
            self.checkpoints.restore_names(last, self.trainer_state.best_step if self.config.keep_best else None)
            self.checkpoints.prune()  # what a kill left of it
        if saved.state["versions"] != _versions():
            self.progress.say(f"Saved with {saved.state['versions']}, resumed with {_versions()}: bits may differ.")
        self.progress.say(f"Resumed at step {self.step} of {self.steps}.")

    def _refuse_lost_best(self) -> None:
        """Refuse to go on without the checkpoint that has the best weights, unless a later one will be made again."""
        best_step, checkpoints = self.trainer_state.best_step, self.checkpoints
        if not self.config.keep_best or checkpoints is None or best_step is None or best_step == self.step:
            return
        best = checkpoints.at(best_step)
        if best.is_dir() or (checkpoints.current().get("best") or "") > checkpoints.at(self.step).name:
            return
        raise FileNotFoundError(
            f"The best checkpoint {best} (validation {self.trainer_state.best}) is lost, and other steps have other weights. "
            f"Nothing was trained or changed; {RESTORE_BEST}."
        )

    def is_done(self) -> bool:
        return self.step >= self.steps or self._impatient()

    def add_gradients(self, step: int) -> None:
        """The gradient of an update, from all its micro-batches; no weight changes."""
        rng = SeededRng(self.config.seed).stream("step", step, "rank", self.accelerator.process_index)
        self.optimizers.clear()
        self.optimizers.train(True)
        with rng.fork_torch_rng():
            for target, part in self.batch_source.micro_batches(step):
                with gather_in_lockstep(), self.accelerator.autocast():
                    loss = self.objective(target, part, rng=rng, step=step)
                self.optimizers.add(loss)

    def update(self) -> None:
        """One optimizer step, after all micro-batches of the update."""
        rate = self.batch_source.lr_scale(self.step) * learning_rate(self.config, self.step, self.steps)
        tokens = self.batch_source.tokens(self.step)
        self.add_gradients(self.step)
        value, metrics = self.optimizers.update(rate)
        if not (math.isfinite(value) and math.isfinite(metrics["gradient"])):
            last = None if self.checkpoints is None else self.checkpoints.last()
            saved = "Nothing was saved" if last is None else f"The checkpoint {last.name} is kept"
            raise RuntimeError(
                f"Training diverged at step {self.step}: the loss is {value}, the gradient {metrics['gradient']}. The weights "
                f"before this step are unchanged. {saved}; lower learning_rate or max_grad_norm, or raise warmup_steps."
            )
        self.trainer_state.step += 1
        self.weight_average.add(self.step)
        self.trainer_state.loss += value
        self.trainer_state.updates += 1
        self.progress.update(self.step, value, tokens)
        self.status.update(self.step, self.steps, tokens, rate)
        if self.step % self.config.log_every == 0 or self.step == self.steps:
            mean = self.trainer_state.loss / self.trainer_state.updates
            self.trainer_state.loss, self.trainer_state.updates = 0.0, 0
            self._log({"loss": mean, **metrics, "learning_rate": rate})

    def evaluate_and_save(self) -> None:
        """Evaluate and save, if this step is due for it."""
        last = self.step == self.steps
        better = False
        if self.validation is not None and (last or self.step % self.evaluate_every == 0):
            better = self._evaluate()
        if last or better or self._impatient() or self.step % self.save_every == 0:
            self._save(better)

    def finish(self) -> TrainingRecord:
        """Leave the modules in evaluation mode with the best, averaged or last weights, as the config says."""
        if self.config.keep_best and self.trainer_state.best_step not in (None, self.step):
            if self.checkpoints is not None and self.trainer_state.best_step is not None:
                self._refuse_lost_best()
                best = self.checkpoints.at(self.trainer_state.best_step)
                saved = self.checkpoints.read(best)
                restore_weights(saved, self.optimizers.modules, best)
                self.weight_average.load_state_dict(saved.extra)
                self.weight_average.copy_to_modules()
            with torch.no_grad():
                for name, weights in self.best_weights.items():
                    current = local_module_tensors(self.optimizers.modules[name]).values()
                    for tensor, weight in zip(current, weights.values(), strict=True):
                        tensor.copy_(weight)
        else:
            self.weight_average.copy_to_modules()
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.optimizers.clear()
        self.optimizers.train(False)
        stopped = "patience" if self._impatient() else "finished"
        history = tuple(broadcast_object(self.history.entries))
        return TrainingRecord(self.step, stopped, history, self.trainer_state.best, self.trainer_state.best_step)

    def _evaluate(self) -> bool:
        """Whether the averaged weights are the best so far; the same on all processes."""
        state = self.trainer_state
        with self.weight_average.swapped_in():
            self.optimizers.train(False)
            estimate = self._validate()
            better = state.best is None or estimate.value < state.best.value
            if better:
                state.best, state.best_step, state.waited = estimate, self.step, 0
                if self.checkpoints is None:
                    for name, module in self.optimizers.modules.items():
                        self.best_weights[name] = {key: v.clone() for key, v in local_module_tensors(module).items()}
            else:
                state.waited += 1
            state.evaluations.append(estimate.value)
            patience = self.config.swa_patience
            if patience is not None and self.weight_average.begin is None and has_stalled(state.evaluations, patience):
                state.averaged_from = self.weight_average.begin = self.step
                self.progress.say(f"Evaluations stalled: weights are averaged from step {self.step:,} on.")
            self._log({"validation": estimate.value, "validation_low": estimate.low, "validation_high": estimate.high})
            self.progress.evaluation_done(self.step, estimate, better)
            self._add_samples()
        return better

    def _add_samples(self) -> None:
        """Add texts of the model to the history: a function of weights and seed, and the same random numbers each time."""
        if self.sample is None:
            return
        with gather_in_lockstep():
            texts = list(self.sample(SeededRng(self.config.seed).stream("samples"))) if self.main else []
        self.history.add({"step": self.step, "samples": texts})

    def _validate(self) -> Estimate:
        """The validation loss: processes share held-out data, and the main process alone calls any other function."""
        validation, accelerator = self.validation, self.accelerator
        assert validation is not None
        if not isinstance(validation, HeldOut):
            with gather_in_lockstep():
                number = validation() if self.main else None
            return broadcast_object(number)
        with gather_in_lockstep():
            losses = validation.losses(
                self.target,
                batch_size=self.config.batch_size,
                device=accelerator.device,
                step=self.step,
                only=slice(accelerator.process_index, None, accelerator.num_processes),
                rng=SeededRng(self.config.seed).stream("validation"),
            )
        all_losses = [loss for process_losses in all_gather_objects(losses) for loss in process_losses]
        counted = "tokens" if isinstance(validation.data, TokenStream) else "examples"
        return mean_loss(all_losses, n=len(validation.data), counted=counted)

    def _save(self, better: bool) -> None:
        if self.checkpoints is not None:
            state = {
                "trainer_state": asdict(self.trainer_state), "history": self.history.entries, "settings": self._settings(),
                "versions": _versions(),
            }  # fmt: skip
            extra = {**self.batch_source.state_dict(), **self.weight_average.state_dict()}
            saved = collect_state(self.optimizers.modules, self.optimizers.optimizers, state, extra)
            if self.main:
                self.checkpoints.save(self.step, saved, best=better)
            self.accelerator.wait_for_everyone()
            self.saved_step = self.step

    def stop_if_requested(self) -> None:
        """Save and stop, on all processes at the same step, if a signal asked one of them to."""
        if self.checkpoints is None:
            return
        numbers = [number for number in all_gather_objects(stop_requested()) if number is not None]
        if not numbers:
            return
        if self.saved_step != self.step:
            self._save(False)
        folder = self.checkpoints.folder.parent
        raise Interrupted(numbers[0], f"Step {self.step} of {self.steps} is saved in {folder}; --resume goes on from there.")

    def _settings(self) -> dict[str, Any]:
        """What must not change between a run and its resumption."""
        data = {"data": self.batch_source.fingerprint(), "processes": self.accelerator.num_processes}
        optimizers = {name: asdict(config) for name, config in self.optimizer_configs.items()}
        return {**asdict(self.config), **data, **({"optimizers": optimizers} if optimizers else {})}

    def _impatient(self) -> bool:
        return self.config.patience is not None and self.trainer_state.waited >= self.config.patience

    def _log(self, numbers: Mapping[str, float]) -> None:
        self.history.add({"step": self.step, **numbers})
        if self.config.tracker is not None:
            self.accelerator.log(dict(numbers), step=self.step)


def _versions() -> dict[str, str]:
    """Versions that the last bits of a result depend on."""
    return {"python": platform.python_version(), "torch": torch.__version__, "threads": str(torch.get_num_threads())}


@dataclass(frozen=True)
class Trainer:
    """Trains with the settings of a config."""

    config: TrainingConfig

    def __call__(
        self,
        objective: Objective,
        target: Any,
        data: Sequences | TokenStream | RowData,
        *,
        modules: nn.Module | Mapping[str, nn.Module],
        optimizer_configs: Mapping[str, OptimizerConfig] | None = None,
        validation: Sequences | TokenStream | HeldOut | Callable[[], Estimate] | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
        sample: Callable[[Rng], Sequence[str]] | None = None,
    ) -> TrainingRecord:
        """Minimise the objective over the modules, in place.

        Args:
            objective: called as `objective(target, batch, rng=rng, step=step)`.
            data: sequences, other rows, or one stream of tokens.
            modules: what learns: one module, or several by name, where the objective may return a loss for each name.
            optimizer_configs: settings of single modules' optimizers, by name.
            validation: held-out data, alone or with an objective of their own; or a function whose estimate is minimised.
            folder: where checkpoints and the history are saved, and from where `resume` continues.
            sample: draws texts that the history shows after each evaluation.
        """
        named = {"model": modules} if isinstance(modules, nn.Module) else modules
        if isinstance(validation, Sequences | TokenStream):
            validation = HeldOut(objective, validation)
        out = None if folder is None else Path(folder)
        with locked_folder(out), stops_at_boundaries(out is not None):
            loop = TrainingLoop(self.config, objective, target, data, named, optimizer_configs or {}, validation, out, sample)
            loop.restore(resume)
            loop.progress.begin(loop.step, loop.steps)
            loop.status.begin(loop.step)
            try:
                while not loop.is_done():
                    loop.update()
                    loop.evaluate_and_save()
                    loop.stop_if_requested()
                return loop.finish()
            finally:
                loop.progress.end()
                loop.status.end()
