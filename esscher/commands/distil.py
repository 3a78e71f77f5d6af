"""esscher distil: a tilted model as a plain one."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.flags import Json, Quiet, Resume, RunSeed, seeded
from esscher.commands.output import Answer, keep, show
from esscher.settings.distil import DistilRun

app = App(name="distil", help_epilogue="Example: esscher distil runs/first --energy runs/cats --out runs/plain-cats")


@app.default
def distil(
    model: Annotated[str, Parameter(help="Folder of the base.")],
    *,
    run: Annotated[DistilRun, Parameter(name="*")],
    resume: Resume = False,
    seed: RunSeed = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """The student is a model folder like any other; how near it came to the tilted model is printed with an interval."""
    from esscher.verbs.distil import make_student

    run = seeded(run, seed)
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
