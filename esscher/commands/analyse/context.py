"""esscher analyse context: how far back the context of a model, or of several, helps."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.flags import Json, Level, Seed
from esscher.commands.output import Answer, show
from esscher.settings.context import ContextSettings

app = App(
    name="context",
    help_epilogue="Example: esscher analyse context runs/first runs/second --data my.txt --plot context.png",
)


@app.default
def context(
    *models: Annotated[Path, Parameter(help="Folders of bases that share their tokens.")],
    data: Annotated[str, Parameter(help="One long text: a file, a folder, a pattern, or a Hugging Face name.")],
    settings: Annotated[ContextSettings, Parameter(name="*")] = ContextSettings(),  # noqa: B008 (frozen)
    plot: Annotated[Path | None, Parameter(help="Also draw the loss by length of context into this file.")] = None,
    level: Level = 0.95,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Perplexity by length of context, and the relative effective context length of each model in the group."""
    from esscher.estimators.context_length import HARDEST, THRESHOLD
    from esscher.estimators.perplexity import as_perplexity
    from esscher.randomness import Seeded
    from esscher.verbs.context import compare_contexts

    if not models:
        raise ValueError("Name at least one model. Nothing was measured.")
    found = compare_contexts(models, data, settings)
    nats = {name: found.by_length(name, level=level) for name in found.losses}
    rows: list[dict[str, Any]] = [
        {"context": length, **{name: as_perplexity({"": nats[name][place]})[""] for name in nats}}
        for place, length in enumerate(found.lengths)
    ]
    lengths = [
        {
            "model": name,
            **{f"hardest {r:g}": found.effective_length(name, r, level=level, rng=Seeded(seed, "places")) for r in HARDEST},
        }
        for name in found.losses
    ]
    facts: dict[str, Any] = {"models": len(nats), "data": data, "places": found.places, "seed": seed}
    if plot is not None:
        facts["plot"] = _draw(found.lengths, nats, plot)
    notes = [
        f"A length is the first after which {settings.step} tokens more lower the perplexity, beyond the best of the group, by "
        f"less than {THRESHOLD:.0%}, on that share of tokens which the group finds hardest."
    ]
    tables = {"perplexity_by_context": rows, "effective_length": lengths}
    show(Answer("esscher analyse context", facts, tables, notes), as_json=json)


def _draw(lengths: tuple[int, ...], nats: dict[str, Any], file: Path) -> Path:
    from esscher.reports.plots import BASE, INK, TILTED, TRUTH, bands, save_picture

    colours = (TILTED, TRUTH, BASE, INK)
    lines = {name: (colours[place % 4], lengths, found) for place, (name, found) in enumerate(nats.items())}
    return save_picture(bands(lines, x="tokens of context", y="nats per token"), file)
