"""esscher train: a base model from text or an embedded data set."""

from dataclasses import replace
from typing import Annotated

from cyclopts import App, Parameter

from esscher.commands.output import Answer, Json, show
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
    resume: Annotated[
        bool, Parameter(negative="", help="Go on from the last checkpoint in --out, to the same weights.")
    ] = False,
    seed: Annotated[int | None, Parameter(help="Short for --training.seed; printed back.")] = None,
    quiet: Annotated[bool, Parameter(negative="", help="Show no progress.")] = False,
    json: Json = False,
) -> None:
    """Every setting may also stand in the YAML file of --config; flags override it."""
    from esscher.commands.keeping import keep
    from esscher.settings.train import to_dict
    from esscher.verbs.train import train as train_base

    if seed is not None:
        run = replace(run, training=replace(run.training, seed=seed))
    result = train_base(run, resume=resume, quiet=quiet)
    facts = {**result.to_dict(), "measured": dict(result.measured), "seed": run.training.seed}
    rows = [{"measured on the test data": name, "value": found} for name, found in result.measured.items()]
    shown = {key: facts[key] for key in ("folder", "steps", "stopped", "best_step", "seed")}
    answer = keep(Answer("esscher train", shown, {"measured": rows}), result.folder, to_dict(run))
    show(Answer("train", {**facts, **answer.facts}, {}) if json else answer, as_json=json)
