"""esscher sample: draw from a model, tilted or not, and show what was chosen from what."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.flags import BaseFolder, Cutting, EnergyFolder, Json, Quiet, Seed, Sharded
from esscher.commands.output import Answer, show, write_lines
from esscher.cut import Cut
from esscher.launch import first_process
from esscher.settings.sample import DrawingConfig, PicturingConfig

if TYPE_CHECKING:
    from esscher.verbs.models import Model
    from esscher.verbs.sample import Sampled

app = App(
    name="sample",
    help_epilogue="Example: esscher sample runs/first --energy runs/energy --prompt 'Return the' --draws 4 --top-k 50",
)


@app.default
def sample(
    model: BaseFolder,
    *,
    prompt: Annotated[tuple[str, ...], Parameter(help="Text to go on from; may be given several times.")] = (),
    energy: EnergyFolder = None,
    drawing: Annotated[DrawingConfig, Parameter(name="*")] = DrawingConfig(),  # noqa: B008 (frozen)
    cut: Cutting = Cut(),  # noqa: B008 (frozen)
    picturing: Annotated[PicturingConfig, Parameter(name="*")] = PicturingConfig(),  # noqa: B008 (frozen)
    show_: Annotated[int, Parameter(name="--show", help="Candidates of each prompt to show, beside those chosen.")] = 8,
    out: Annotated[
        Path | None, Parameter(help="File for the draws, one JSON object a line; of images, the grid (samples.png).")
    ] = None,
    sharded: Sharded = False,
    quiet: Quiet = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Points after each prompt, or from nothing. Of a tilted model the candidates are shown by their share of the weight, with
    their log-probability under the base and their energy; `chosen` says how many of the draws each became. Draws of a model of
    images are a grid in a PNG."""
    from esscher.verbs.models import load_model
    from esscher.verbs.sample import sample_texts, sampler_of

    sampler_of(drawing, tilted=energy is not None)  # refuses what cannot be drawn by before anything is read
    if out is not None and out.exists():
        raise ValueError(f"The file {out} is there already. Nothing was drawn; choose another name, or remove it.")
    loaded = load_model(model, energy, cut, sharded=sharded)
    if loaded.codec is not None:
        if prompt:
            raise ValueError("Images have no text for a prompt. Nothing was drawn; use --classes or --complete.")
        grid = model / "samples.png" if out is None else out
        show(_image_answer(loaded, drawing, picturing, grid, seed), as_json=json)
        return
    if picturing != PicturingConfig():
        raise ValueError(
            f"{model} is no model of images. Nothing was drawn; leave --classes, --complete, --rows and --images out."
        )
    texts = list(prompt) or [""]
    found = sample_texts(loaded, texts, drawing, seed=seed, quiet=quiet)
    if out is not None and first_process():
        write_lines(out, found.samples)
    name = drawing.name(tilted=energy is not None)
    facts = {"model": model, "energy": energy, "sampler": name, "seed": seed, **found.facts, "out": out}
    tables = _everything(found, texts) if json else _for_people(found, texts, show_)
    show(Answer("esscher sample", facts, tables, found.notes), as_json=json)


def _image_answer(loaded: "Model", drawing: DrawingConfig, picturing: PicturingConfig, out: Path, seed: int) -> Answer:
    """Write the grid, and tell how likely each draw is."""
    from esscher.reports.pictures import save_grid
    from esscher.verbs.sample import sample_images

    shown, columns, found = sample_images(loaded, drawing, picturing, seed=seed)
    save_grid(out, shown, columns)
    pairs = zip(found.log_base.view(-1).tolist(), found.log_weight.view(-1).tolist(), strict=True)
    rows = [
        {"prompt": number // drawing.draws, "draw": number % drawing.draws, "log_base": log_base, "log_weight": log_weight}
        for number, (log_base, log_weight) in enumerate(pairs)
    ]
    facts = {"drawn_from_the_base": found.cost, "independent_draws": found.independent, "seed": seed, "grid": out}
    return Answer("esscher sample", {"model": loaded.folder, **facts}, {"samples": rows})


def _everything(found: "Sampled", texts: list[str]) -> dict[str, Any]:
    if not found.pools:
        return {"samples": found.samples}
    pairs = zip(texts, found.candidates, strict=True)
    return {
        "samples": found.samples,
        "prompts": found.pools,
        "candidates": [{"prompt": text, **row} for text, rows in pairs for row in rows],
    }


def _for_people(found: "Sampled", texts: list[str], most: int) -> dict[str, Any]:
    """Of a pool, in place of the samples, the candidates with the largest shares and those that were chosen."""
    if not found.pools:
        return {"samples": found.samples}
    tables: dict[str, Any] = {"prompts": [{key: row[key] for key in row if key != "advice"} for row in found.pools]}
    for number, (text, rows) in enumerate(zip(texts, found.candidates, strict=True), 1):
        shown = [row for rank, row in enumerate(rows) if rank < most or row["chosen"]]
        tables[f"{number}. candidates after {text!r}, {len(shown)} of {len(rows)}"] = shown
    return tables
