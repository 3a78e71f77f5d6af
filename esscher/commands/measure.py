"""esscher measure: how good a model is, with an interval."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from esscher.commands.models import Eos, MaxLength
from esscher.commands.output import Answer, Json, Seed, show

app = App(name="measure", help_epilogue="Example: esscher measure runs/first --data my.txt")


@app.default
def measure(
    model: Annotated[Path, Parameter(help="Folder of the base.")],
    *,
    data: Annotated[str, Parameter(help="A text, jsonl or parquet file, a folder, a pattern, or a Hugging Face name.")],
    energy: Annotated[Path | None, Parameter(help="Folder of an energy that tilts the base.")] = None,
    draws: Annotated[int, Parameter(help="Draws for the log Z of a tilted model.")] = 4000,
    column: Annotated[str, Parameter(help="Of jsonl, parquet and Hugging Face data.")] = "text",
    unit: Annotated[Literal["line", "paragraph", "document"], Parameter(help="What a text is in a text file.")] = "line",
    fixed: Annotated[
        bool, Parameter(negative="", help="The interval for just these texts, instead of for all text like them.")
    ] = False,
    level: Annotated[float, Parameter(help="How often the interval covers the truth.")] = 0.95,
    max_length: MaxLength = None,
    eos: Eos = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Longer texts than the model's points are cut, and counted; end symbols count, prompts do not."""
    from esscher.commands.models import load_target
    from esscher.data.sources import read_texts
    from esscher.data.text import text_points
    from esscher.estimators.measured import measure as measure_on
    from esscher.estimators.perplexity import as_perplexity
    from esscher.randomness import Seeded
    from esscher.samplers.importance import Importance

    target, tokenizer = load_target(model, energy, max_length=max_length, eos=eos)
    texts = read_texts(data, column=column, unit=unit)
    made = text_points(texts.texts, tokenizer, max_length=target.space.max_length)
    units = {"token": made.tokens, "word": made.words, "byte": made.bytes}
    test: Literal["fixed", "sample"] = "fixed" if fixed else "sample"
    found = measure_on(target, made.x, Importance(), draws, units=units, test=test, level=level, rng=Seeded(seed))
    facts: dict[str, Any] = {"model": model, "energy": energy, "data": str(texts), "measured_on": str(made), "seed": seed}
    if found.log_z is not None:
        saved = (found.saved or {})["token"]
        facts |= {"saved_by_tilting": saved, "log_z": found.log_z, "reliability": found.reliability[0].verdict}
    models = {"base": found.base, **({} if found.tilted is None else {"tilted": found.tilted})}
    rows = [
        {"model": name, "per": per, "perplexity": value}
        for name, nats in models.items()
        for per, value in as_perplexity(nats).items()
    ]
    methods = {name: f"{name}: {nats['token'].method}" for name, nats in models.items()}
    show(Answer("esscher measure", facts, {"perplexities": rows}, [*methods.values(), *found.warnings]), as_json=json)
