"""esscher analyse n-grams: how much data, base draws and joint draws repeat themselves."""

from typing import Annotated

from cyclopts import App, Parameter

from esscher.commands.analyse.compared import Energy, Plot, Size, Source, advice, draw_beside
from esscher.commands.flags import BaseFolder, Cutting, Json, Level, Quiet, Seed
from esscher.commands.output import Answer, show
from esscher.cut import Cut

app = App(
    name="n-grams",
    help_epilogue="Example: esscher analyse n-grams runs/first --energy runs/tilted --data my.txt --plot n-grams.png",
)


@app.default
def n_grams(
    model: BaseFolder,
    *,
    energy: Energy,
    source: Annotated[Source, Parameter(name="*")] = Source(),  # noqa: B008 (frozen)
    size: Annotated[Size, Parameter(name="*")] = Size(),  # noqa: B008 (frozen)
    longest: Annotated[int, Parameter(help="Tokens of the longest n-gram.")] = 4,
    cut: Cutting = Cut(),  # noqa: B008 (frozen)
    plot: Plot = None,
    level: Level = 0.95,
    seed: Seed = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Ratio of unique n-grams within a continuation, in data, base draws and joint draws: how much a model repeats itself."""
    from esscher.estimators.populations import NAMES
    from esscher.estimators.repetition import unique_ngrams
    from esscher.reports.plots import estimates_by, save_picture

    _, found, facts = draw_beside(model, energy, source, size, cut, seed, quiet)
    result = unique_ngrams(found, range(1, longest + 1), level=level)
    if plot is not None:
        figure = estimates_by(
            [row.n for row in result],
            {name: [row.ratio[name] for row in result] for name in NAMES},
            x="n",
            y="ratio of unique n-grams",
        )
        facts["plot"] = save_picture(figure, plot)
    rows = [{"n": row.n, **row.ratio, **{f"{name} above data": value for name, value in row.above.items()}} for row in result]
    show(Answer("esscher analyse n-grams", facts, {"unique_ngrams": rows}, advice(found.effective())), as_json=json)
