"""esscher tilt: an energy over whole sequences, of features or learnt by a network."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.flags import Json, Quiet, Resume
from esscher.commands.output import Answer, keep, show
from esscher.settings.tilt import TiltRun

if TYPE_CHECKING:
    from esscher.verbs.contrast import LearntEnergy
    from esscher.verbs.fitting import FittedEnergy

app = App(
    name="tilt",
    help_epilogue="Example: esscher tilt runs/first --out runs/energy\n\n"
    "Or by features (docs/guide/features.md): esscher tilt runs/first --out runs/cats --want contains:cat=0.5",
)


@app.default
def tilt(
    model: Annotated[str, Parameter(help="Folder of the base.")],
    *,
    run: Annotated[TiltRun, Parameter(name="*")],
    resume: Resume = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Without features, a network learns to tell text from the base's own draws. With them, each gets a weight under which it
    is as frequent as in the data, or as you say."""
    from esscher.verbs.fitting import FittedEnergy
    from esscher.verbs.tilt import tilt as tilt_base

    found = tilt_base(model, run, resume=resume, quiet=quiet)
    answer = _fitted(model, run, found) if isinstance(found, FittedEnergy) else _learnt(model, run, found)
    show(keep(answer, Path(run.out), {"model": model, **asdict(run)}), as_json=json)


def _fitted(model: str, run: TiltRun, found: "FittedEnergy") -> Answer:
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
    return Answer("esscher tilt", facts, {"features": found.rows()}, found.warnings)


def _learnt(model: str, run: TiltRun, found: "LearntEnergy") -> Answer:
    from esscher.estimators.perplexity import as_perplexity
    from esscher.verbs.measure_images import image_rows
    from esscher.verbs.training_images import IMAGE

    measured = found.measured
    models = {"base": measured.base, "tilted": measured.tilted or {}}
    facts: dict[str, Any] = {
        "model": model,
        "energy": run.out,
        "steps": found.record.steps,
        "best_step": found.record.best_step,
        "loss_on_held_out_text": found.record.best,
        "saved_by_tilting": next(iter((measured.saved or {}).values())),
        "log_z": measured.log_z,
        "seed": run.seed,
    }
    if IMAGE in measured.base:
        return Answer("esscher tilt", facts, {"bits": image_rows(measured)}, measured.warnings)
    rows = [
        {"model": name, "per": per, "perplexity": value}
        for name, nats in models.items()
        for per, value in as_perplexity(nats).items()
    ]
    return Answer("esscher tilt", facts, {"perplexities": rows}, measured.warnings)
