"""esscher distil: a tilted model as a plain one."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.output import Answer, Json, show
from esscher.settings.distil import DistilRun

app = App(name="distil", help_epilogue="Example: esscher distil runs/first --energy runs/cats --out runs/plain-cats")


@app.default
def distil(
    model: Annotated[str, Parameter(help="Folder of the base.")],
    *,
    run: Annotated[DistilRun, Parameter(name="*")],
    resume: Annotated[bool, Parameter(negative="", help="Go on where the distillation in --out was stopped.")] = False,
    seed: Annotated[int | None, Parameter(help="Short for --training.seed; printed back.")] = None,
    quiet: Annotated[bool, Parameter(negative="", help="Show no progress.")] = False,
    json: Json = False,
) -> None:
    """The student is a model folder like any other; how near it came to the tilted model is printed with an interval."""
    from esscher.commands.keeping import keep
    from esscher.verbs.distil import make_student

    if seed is not None:
        run = replace(run, training=replace(run.training, seed=seed))
    result = make_student(model, run, resume=resume, quiet=quiet)
    found = result.distilled
    facts: dict[str, Any] = {
        "model": model,
        "energy": run.energy,
        "student": result.folder,
        "method": run.distil.method,
        "drawn": found.cost,
        "worth": [round(stage.effective) for stage in found.stages],
        "log_z": found.log_z,
        "reliability": found.reliability.verdict,
        "seed": run.training.seed,
    }
    apart = [{"from the tilted model to the student": name, "value": value} for name, value in found.divergences.items()]
    notes = [] if found.reliability.verdict == "good" else [found.reliability.advice]
    answer = Answer("esscher distil", facts, {"features": result.rows, "distance": apart}, notes)
    show(keep(answer, Path(result.folder), {"model": model, **asdict(run)}), as_json=json)
