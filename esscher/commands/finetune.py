"""esscher finetune: a pretrained model learns a task from labelled texts."""

from typing import Annotated

from cyclopts import App, Parameter

from esscher.commands.flags import Json, Quiet, Resume, RunSeed, seeded
from esscher.commands.output import Answer, show
from esscher.settings.finetune import FinetuneRun

app = App(
    name="finetune",
    help_epilogue="Example: esscher finetune runs/xlnet --out runs/authors --data.source authors.csv\n\n"
    "Then: esscher predict runs/authors 'It was a dark night.'",
)


@app.default
def finetune(
    model: Annotated[str, Parameter(help="Folder of a base, or with --encoder of an encoder of Hugging Face.")],
    *,
    run: Annotated[FinetuneRun, Parameter(name="*")],
    resume: Resume = False,
    seed: RunSeed = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """A new head learns together with the network, or above it where that is frozen; test data that were never seen tell how
    good it is."""
    from esscher.verbs.finetune import finetune as teach

    run = seeded(run, seed)
    found = teach(model, run, resume=resume, quiet=quiet)
    told = found.to_dict()
    facts = {"model": model, **{key: told[key] for key in ("folder", "task", "steps", "stopped", "best_step")}}
    facts["seed"] = run.training.seed
    rows = [{"measured on the test data": name, "value": value} for name, value in found.measured.items()]
    whole = Answer("esscher finetune", {**facts, "measured": dict(found.measured)}, {})
    show(whole if json else Answer("esscher finetune", facts, {"measured": rows}), as_json=json)
