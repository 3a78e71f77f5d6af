"""esscher finetune: a pretrained model learns a task from labelled texts."""

from dataclasses import replace
from typing import Annotated

from cyclopts import App, Parameter

from esscher.commands.output import Answer, Json, show
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
    resume: Annotated[bool, Parameter(negative="", help="Go on where the training in --out was stopped.")] = False,
    seed: Annotated[int | None, Parameter(help="Short for --training.seed; printed back.")] = None,
    quiet: Annotated[bool, Parameter(negative="", help="Show no progress.")] = False,
    json: Json = False,
) -> None:
    """A new head learns together with the network, or above it where that is frozen; test data that were never seen tell how
    good it is."""
    from esscher.verbs.finetune import finetune as teach

    if seed is not None:
        run = replace(run, training=replace(run.training, seed=seed))
    found = teach(model, run, resume=resume, quiet=quiet)
    told = found.to_dict()
    facts = {"model": model, **{key: told[key] for key in ("folder", "task", "steps", "stopped", "best_step")}}
    facts["seed"] = run.training.seed
    if json:
        show(Answer("finetune", {**facts, "measured": dict(found.measured)}, {}), as_json=True)
        return
    rows = [{"measured on the test data": name, "value": value} for name, value in found.measured.items()]
    show(Answer("esscher finetune", facts, {"measured": rows}), as_json=False)
