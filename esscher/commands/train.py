"""esscher train: a base model from text or an embedded data set."""

from dataclasses import asdict
from typing import Annotated

from cyclopts import App, Parameter

from esscher.commands.flags import Json, Quiet, Resume, RunSeed, seeded
from esscher.commands.output import Answer, keep, show
from esscher.settings.train import TrainRun

app = App(
    name="train",
    usage="esscher train --out STR [OPTIONS]",  # told here, it need not be found among all settings once more
    help_epilogue="Example: esscher train --out runs/mine --data.source my.txt --training.epochs 5",
)


@app.default
def train(
    *,
    run: Annotated[TrainRun, Parameter(name="*")],
    resume: Resume = False,
    seed: RunSeed = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Every setting may also stand in the YAML file of --config; flags override it."""
    from esscher.verbs.train import train as train_base

    run = seeded(run, seed)
    result = train_base(run, resume=resume, quiet=quiet)
    facts = {**result.to_dict(), "measured": dict(result.measured), "seed": run.training.seed}
    rows = [{"measured on the test data": name, "value": found} for name, found in result.measured.items()]
    shown = {key: facts[key] for key in ("folder", "steps", "stopped", "best_step", "seed")}
    answer = keep(Answer("esscher train", shown, {"measured": rows}), result.folder, asdict(run))
    show(Answer("train", {**facts, **answer.facts}, {}) if json else answer, as_json=json)
