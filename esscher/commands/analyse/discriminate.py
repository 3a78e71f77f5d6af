"""esscher analyse discriminate: how well a fresh classifier tells draws from data."""

from dataclasses import replace
from typing import Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.analyse.compared import Energy, Plot, Source, advice
from esscher.commands.flags import BaseFolder, Cutting, Json, Level, Quiet, Seed, seeded
from esscher.commands.output import Answer, show
from esscher.cut import Cut
from esscher.settings.discriminate import DiscriminateConfig

app = App(
    name="discriminate",
    help_epilogue="Example: esscher analyse discriminate runs/first --energy runs/tilted --data my.txt --training.steps 300",
)


@app.default
def discriminate(
    model: BaseFolder,
    *,
    energy: Energy,
    source: Annotated[Source, Parameter(name="*")] = Source(),  # noqa: B008 (frozen)
    settings: Annotated[DiscriminateConfig, Parameter(name="*")] = DiscriminateConfig(),  # noqa: B008 (frozen)
    encoder: Annotated[str, Parameter(help="Short for --classifier.encoder: folder of a pretrained encoder.")] = "",
    cut: Cutting = Cut(),  # noqa: B008 (frozen)
    plot: Plot = None,
    level: Level = 0.95,
    seed: Seed = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """How well a fresh classifier tells draws from data, on prompts it never saw: the base's draws, and the joint's."""
    from esscher.randomness import Seeded
    from esscher.reports.plots import intervals, save_picture
    from esscher.verbs.discriminate import discriminate as tell_apart
    from esscher.verbs.models import load_model

    loaded, settings = load_model(model, energy, cut), seeded(settings, seed)
    if encoder:
        settings = replace(settings, classifier=replace(settings.classifier, encoder=encoder))
    (x, told), decode, rng = source.read(loaded, energy), loaded.tokenizer.decode, Seeded(seed)
    found = tell_apart(loaded.target, x, settings, decode=decode, level=level, rng=rng, quiet=quiet)
    facts: dict[str, Any] = {
        "model": model,
        "energy": energy,
        "data": told,
        "seed": seed,
        "sequences": " ".join(f"{name} {count:,}" for name, count in found.sequences.items()),
        "base_is_told_more_often_by": found.gap,
        "effective_draws": found.effective,
    }
    if plot is not None:
        named = {f"{name} draws": value for name, value in found.accuracy.items()}
        label = "accuracy of a fresh classifier against data"
        facts["plot"] = save_picture(intervals(named, label=label, truth=0.5, truth_label="cannot be told"), plot)
    rows = [
        {"draws of": name, "accuracy": found.accuracy[name], "false positive rate": found.false_positives[name]}
        for name in found.accuracy
    ]
    show(Answer("esscher analyse discriminate", facts, {"told_from_data": rows}, advice(found.effective)), as_json=json)
