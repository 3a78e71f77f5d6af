"""esscher tilt: an energy of features, fitted to data or to wanted moments."""

from typing import Annotated

from cyclopts import App, Parameter

from esscher.commands.output import Answer, Json, show
from esscher.training.tilt_config import TiltRun

app = App(
    name="tilt",
    help_epilogue="Example: esscher tilt runs/first --out runs/cats --want contains:cat=0.5; features are described in "
    "docs/guide/features.md",
)


@app.default
def tilt(
    model: Annotated[str, Parameter(help="Folder of the base.")],
    *,
    run: Annotated[TiltRun, Parameter(name="*")],
    quiet: Annotated[bool, Parameter(negative="", help="Show no progress.")] = False,
    json: Json = False,
) -> None:
    """Weights for features of whole sequences: as often as in the data, or as often as you say."""
    from esscher.training.tilt import tilt as tilt_base

    found = tilt_base(model, run, quiet=quiet)
    facts = {
        "model": model,
        "energy": run.out,
        "regime": run.fit.regime,
        "drawn_from_the_base": found.fit.base_samples + found.draws.cost,
        "log_z": found.log_z,
        "kl_to_the_base": found.divergences["kl"],
        "l1_of_moments": found.fit.l1,
        "effective_draws": found.reliability.effective,
        "reliability": found.reliability.verdict,
        "seed": run.seed,
    }
    show(Answer("esscher tilt", facts, {"features": found.rows()}, found.warnings), as_json=json)
