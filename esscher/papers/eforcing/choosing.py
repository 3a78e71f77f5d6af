"""Settings of training runs that are chosen by the loss on validation data, before anything is measured on test data: each
candidate is trained once, with a seed that no row has."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from esscher.objectives.config import EForcingConfig
from esscher.papers.study import Row, StudyContext, run_with_seed, validation_history
from esscher.workflow.config.train import TrainRun
from esscher.workflow.train import train_base

SELECTION = 1_000  # the seed of all candidates
Candidates = Mapping[float, TrainRun]


def choose(context: StudyContext, study: str, what: str, candidates: Candidates) -> float:
    """The value of a setting whose run has the lowest validation loss; what was tried is kept, so that it is chosen once.

    Of E-Forcing only losses count after it has begun: those before are of likelihood, and the same for all values."""

    def train_all(run_dir: Path) -> Row:
        tried = []
        for value, run in candidates.items():
            seeded = run_with_seed(run, run_dir / f"{value:g}", SELECTION)
            train_base(seeded)
            losses = [loss for _, loss in since_begin(run, validation_history(Path(seeded.out)))]
            tried.append({"value": value, "validation": min(losses)})
        return {**min(tried, key=lambda row: row["validation"]), "tried": tried}

    value: float = context.row(study, what, SELECTION, train_all)["value"]
    return value


def since_begin(run: TrainRun, history: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The evaluations of a run since E-Forcing acts; all, if it is trained by another objective."""
    objective = run.objective
    if not isinstance(objective, EForcingConfig):
        return history
    if objective.after_epochs is not None and run.training.evaluate_every is None:  # there is an evaluation an epoch
        return history[objective.after_epochs :]
    return [(step, loss) for step, loss in history if step > (objective.after_steps or 0)]


def with_strength(run: TrainRun, strength: float) -> TrainRun:
    """The run with a strength of its objective: of E-Forcing the sum of its weights over infinitely many positions, of
    likelihood label smoothing."""
    if isinstance(run.objective, EForcingConfig):
        return replace(run, objective=replace(run.objective, weight=round(strength * (1 - run.objective.decay), 9)))
    return replace(run, training=replace(run.training, label_smoothing=strength))


def with_learning_rate(run: TrainRun, rate: float) -> TrainRun:
    """The run with a learning rate."""
    return replace(run, training=replace(run.training, learning_rate=rate))
