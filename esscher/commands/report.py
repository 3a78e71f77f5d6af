"""esscher report: runs side by side, on one page."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from esscher.commands.flags import Json
from esscher.commands.output import Answer, show

app = App(name="report", help_epilogue="Example: esscher report runs/first runs/second --out first-and-second.html")


@app.default
def report(
    *runs: Annotated[Path, Parameter(help="Folders that train, tilt, distil, measure or reproduce wrote.")],
    out: Annotated[Path, Parameter(help="The page.")] = Path("comparison.html"),
    json: Json = False,
) -> None:
    """The numbers that the runs share with their intervals, and the settings in which they differ."""
    from esscher.reports.run_report import compare_runs, read_run, write_comparison

    if len(set(runs)) < 2:
        raise ValueError(f"A comparison needs two runs or more, not {len(set(runs))}. Nothing was compared.")
    found = {str(folder): read_run(folder) for folder in runs}
    rows, differ = compare_runs(found)
    page = write_comparison(out, found)
    show(Answer("esscher report", {"page": page}, {"numbers": rows, "settings": differ}), as_json=json)
