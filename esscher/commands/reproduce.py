"""esscher reproduce: run a recipe and print its table beside the paper's."""

import json as json_format
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from esscher.commands.flags import Json, Quiet
from esscher.commands.output import Answer, keep, plain, show
from esscher.launch import first_process
from esscher.recipes import RECIPES, find

app = App(name="reproduce", help_epilogue="Example: esscher reproduce laboratory --scale smoke")


@app.default
def reproduce(
    name: Annotated[str | None, Parameter(help="The recipe; --list shows them.")] = None,
    *,
    list_: Annotated[bool, Parameter(name="--list", negative="", help="List the recipes and stop.")] = False,
    scale: Annotated[
        str, Parameter(help="smoke (under a minute), small (two cores), paper (published size), or what --list shows.")
    ] = "smoke",
    out: Annotated[Path | None, Parameter(help="Folder of the run; runs/NAME-SCALE by default. A broken run goes on.")] = None,
    seeds: Annotated[int, Parameter(help="How many seeds to run.")] = 1,
    data: Annotated[str | None, Parameter(help="A text of your own, for recipes that take one.")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run one recipe; its rows, the paper's and the report stay in the run folder."""
    if list_ or name is None:
        rows = [{"name": r.name, "paper": r.paper, "scales": list(r.scales), "about": r.about} for r in RECIPES.values()]
        show(Answer("recipes", {}, {"recipes": rows}), as_json=json)
        return
    from esscher.training.progress import progress_as

    recipe = find(name)
    out = Path("runs") / f"{name}-{scale}" if out is None else out
    with progress_as("quiet") if quiet else nullcontext():
        result = recipe.run(scale=scale, out=out, seeds=seeds, data=data)
    if first_process():
        (out / "result.json").write_text(json_format.dumps(plain(result), indent=1) + "\n", encoding="utf8")
    tables = {key: value for key, value in result.items() if isinstance(value, list) and (value or json)}
    facts = {key: value for key, value in result.items() if not isinstance(value, list)}
    answer = Answer(f"{name}, {scale}", facts, tables)
    show(answer, as_json=json)
    keep(answer, out, {"recipe": name, "scale": scale, "seeds": seeds, "data": data}, own_page=(out / "report.html").exists())
    if not json and first_process():
        print(out / "report.html")
