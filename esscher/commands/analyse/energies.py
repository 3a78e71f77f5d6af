"""esscher analyse energies: those of data, of base draws and of joint draws."""

from typing import Annotated

from cyclopts import App, Parameter

from esscher.commands.analyse.compared import Energy, Plot, Size, Source, advice, draw_beside
from esscher.commands.flags import BaseFolder, Cutting, Json, Level, Quiet, Seed
from esscher.commands.output import Answer, show
from esscher.cut import Cut

app = App(
    name="energies",
    help_epilogue="Example: esscher analyse energies runs/first --energy runs/tilted --data my.txt --plot energies.png",
)


@app.default
def energies(
    model: BaseFolder,
    *,
    energy: Energy,
    source: Annotated[Source, Parameter(name="*")] = Source(),  # noqa: B008 (frozen)
    size: Annotated[Size, Parameter(name="*")] = Size(),  # noqa: B008 (frozen)
    cut: Cutting = Cut(),  # noqa: B008 (frozen)
    plot: Plot = None,
    level: Level = 0.95,
    seed: Seed = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Energies of data, base draws and joint draws: their means, how far they lie from the data's, their histograms."""
    from esscher.estimators.energy_histograms import compare_energies
    from esscher.estimators.populations import NAMES
    from esscher.randomness import Seeded
    from esscher.reports.plots import save_picture, step_histograms

    loaded, found, facts = draw_beside(model, energy, source, size, cut, seed, quiet)
    result = compare_energies(loaded.target, found, level=level, rng=Seeded(seed).stream("resamples"))
    if plot is not None:
        picture = step_histograms(result.histogram.edges, result.histogram.shares, label="energy (nats)")
        facts["plot"] = save_picture(picture, plot)
    rows = [
        {
            "of": name,
            "mean": result.mean[name],
            "above data": result.above.get(name),
            "distance to data": result.distance.get(name),
        }
        for name in NAMES
    ]
    if json:
        facts["histogram"] = {"edges": result.histogram.edges, **result.histogram.shares}
    show(Answer("esscher analyse energies", facts, {"energies": rows}, advice(found.effective())), as_json=json)
