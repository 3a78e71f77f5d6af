"""esscher explore: a page to look at a model with."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from esscher.commands.flags import ENERGY, BaseFolder, Cutting
from esscher.cut import Cut
from esscher.explorer.serving import Serving, serve

if TYPE_CHECKING:
    from esscher.explorer.views import Explorer

app = App(
    name="explore",
    help_epilogue="Example: esscher explore runs/quickstart/motif\n\n"
    "For others: esscher explore runs/first --host 0.0.0.0 --token 'a long word'",
)
EXAMPLES, BEGINNING = 4, 12  # prompts to pick from, and their characters


@app.default
def explore(
    model: BaseFolder,
    *,
    energy: Annotated[
        Path | None, Parameter(help=f"{ENERGY} By default the folder `energy` in the base's, if there is one.")
    ] = None,
    student: Annotated[
        Path | None, Parameter(help="Folder of a distilled model to show beside; by default `student` in the base's.")
    ] = None,
    prompt: Annotated[tuple[str, ...], Parameter(help="A prompt to pick from; may be given several times.")] = (),
    cut: Cutting = Cut(),  # noqa: B008 (frozen)
    serving: Annotated[Serving, Parameter(name="*")] = Serving(),  # noqa: B008 (frozen)
) -> None:
    """Type a prompt and see candidates by weight, base against joint token by token, log Z with its interval and verdict,
    energies, and a distilled model beside. Nothing leaves this machine; the page is served to it alone."""
    from esscher.explorer.page import build_page

    serve(build_page(open_explorer(model, energy, student, prompt, cut)), serving)


def open_explorer(
    model: Path, energy: Path | None, student: Path | None, prompts: tuple[str, ...], cut: Cut | None = None
) -> "Explorer":
    """What the page shows of these folders; without prompts, the model's own beginnings are there to pick from."""
    from esscher.explorer.views import Explorer
    from esscher.randomness import Seeded
    from esscher.samplers.ancestral import draw
    from esscher.space import empty_prompts
    from esscher.verbs.models import load_model

    energy, student = energy or _inside(model, "energy"), student or _inside(model, "student")
    loaded = load_model(model, energy, cut)
    tokenizer = loaded.tokenizer  # images have none, and say so
    if not prompts and not loaded.reads_sources and not loaded.given:
        found = draw(loaded.base, empty_prompts(1), EXAMPLES, rng=Seeded(0).stream("examples"))[0]
        prompts = ("", *dict.fromkeys(text[:BEGINNING] for text in tokenizer.decode(found.points())))
    return Explorer(loaded, energy, None if student is None else load_model(student), prompts)


def _inside(folder: Path, name: str) -> Path | None:
    return folder / name if (folder / name / "config.json").is_file() else None
