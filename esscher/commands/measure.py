"""esscher measure: how good a model is, with an interval."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from esscher.commands.output import Answer, Json, Seed, show
from esscher.cut import Cut

app = App(name="measure", help_epilogue="Example: esscher measure runs/first --data my.txt")


@app.default
def measure(
    model: Annotated[Path, Parameter(help="Folder of the base.")],
    *,
    data: Annotated[str, Parameter(help="A text, jsonl or parquet file, a folder, a pattern, or a Hugging Face name.")],
    energy: Annotated[Path | None, Parameter(help="Folder of an energy that tilts the base.")] = None,
    draws: Annotated[
        int | None, Parameter(help="Draws for log Z: by default 4000 where all texts have one prompt, else 64 after each.")
    ] = None,
    sequences: Annotated[
        int | None, Parameter(help="Test sequences at most, evenly spaced; by default all, of tilted chunks 500.")
    ] = None,
    steps: Annotated[int, Parameter(help="Add the perplexity at each position, on so many of the sequences.")] = 0,
    step_draws: Annotated[int, Parameter(help="Draws after each prefix of these.")] = 64,
    sample_last: Annotated[
        bool, Parameter(negative="", help="Draw at the last position too, instead of scoring every token of the vocabulary.")
    ] = False,
    plot: Annotated[Path | None, Parameter(help="Draw the perplexity by position into this file, such as steps.png.")] = None,
    column: Annotated[str, Parameter(help="Of jsonl, parquet and Hugging Face data.")] = "text",
    unit: Annotated[Literal["line", "paragraph", "document"], Parameter(help="What a text is in a text file.")] = "line",
    fixed: Annotated[
        bool, Parameter(negative="", help="The interval for just these texts, instead of for all text like them.")
    ] = False,
    level: Annotated[float, Parameter(help="How often the interval covers the truth.")] = 0.95,
    cut: Annotated[Cut, Parameter(name="*")] = Cut(),  # noqa: B008 (frozen)
    out: Annotated[Path | None, Parameter(help="Folder that keeps draws; a measuring that broke goes on.")] = None,
    seed: Seed = 0,
    quiet: Annotated[bool, Parameter(negative="", help="Show no progress.")] = False,
    json: Json = False,
) -> None:
    """Longer texts than the model's points are cut, and counted; end symbols count, prompts do not."""
    from esscher.data.sources import read_texts
    from esscher.training.measuring import Measuring, measure_text
    from esscher.training.models import load_model
    from esscher.training.progress import choose_progress

    if plot is not None and (steps == 0 or energy is None):
        raise ValueError("--plot shows the perplexity by position. Nothing was measured; give --steps and --energy, too.")
    settings = Measuring(draws, sequences, steps, step_draws, not sample_last, "fixed" if fixed else "sample", level, seed, out)
    loaded, texts = load_model(model, energy, cut), read_texts(data, column=column, unit=unit)
    result = measure_text(loaded, texts.texts, settings, say=choose_progress(quiet).say)
    found = result.found
    facts: dict[str, Any] = {
        "model": model, "energy": energy, "data": str(texts), "measured_on": result.measured_on, "seed": seed,
    }  # fmt: skip
    if found.log_z is not None:
        verdicts = [one.verdict for one in found.reliability]
        words = {word: verdicts.count(word) for word in ("good", "doubtful", "unreliable") if word in verdicts}
        facts |= {"saved_by_tilting": (found.saved or {})["token"], "log_z": found.log_z}
        facts |= {} if found.spread is None else {"log_z_spread": found.spread}
        facts["reliability"] = verdicts[0] if len(verdicts) == 1 else ", ".join(f"{n} {word}" for word, n in words.items())
    tables: dict[str, Any] = {"perplexities": found.perplexities()}
    tables |= {"worst_prompts": result.worst} if len(found.reliability) > 1 and result.worst else {}
    tables |= {"steps": result.step_rows()} if result.steps else {}
    ways = {"base": found.base, "tilted": found.tilted, "bounds of the paper": found.bounds, "guarantee": found.guaranteed}
    methods = [f"{name}: {nats['token'].method}" for name, nats in ways.items() if nats is not None]
    if plot is not None:
        facts["plot"] = _draw(result.step_rows(), plot)
    show(Answer("esscher measure", facts, tables, [*methods, *found.warnings]), as_json=json)


def _draw(rows: list[dict[str, Any]], file: Path) -> Path:
    from esscher.reports.plots import BASE, TILTED, bands, save_picture

    places = [row["position"] for row in rows]
    lines = {name: (colour, places, [row[name] for row in rows]) for name, colour in (("base", BASE), ("tilted", TILTED))}
    return save_picture(bands(lines, x="position", y="perplexity of the token there"), file)
