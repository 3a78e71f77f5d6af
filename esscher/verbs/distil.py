"""The whole of `esscher distil`, in one call: teacher, student, training, what became of the features, model folder."""

from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from esscher.bases.network import NetworkBase, build_base
from esscher.energies.features import LogLinear, values
from esscher.energies.own_level import named_own
from esscher.estimate import Estimate
from esscher.estimators.moments import moments
from esscher.hub import Card, save_base
from esscher.randomness import Seeded
from esscher.samplers.ancestral import Ancestral
from esscher.settings.distil import DistilRun
from esscher.space import Sequences, distinct_prompts, empty_prompts
from esscher.storage import write_json
from esscher.target import Base, Tilted
from esscher.training.draws_in_pieces import collect
from esscher.training.processes import all_here
from esscher.verbs.distillation import Distilled, distil
from esscher.verbs.models import Model, load_model
from esscher.verbs.paint import prompts_of_classes
from esscher.verbs.run_folder import DISTIL_SETTINGS, RESULTS, keep_settings, refuse_other_settings
from esscher.verbs.subsets import evenly
from esscher.verbs.tilt import read_sets, source_of


@dataclass(frozen=True)
class StudentResult:
    """Where the student is, how near it came, and how often its own draws show each feature."""

    folder: Path
    distilled: Distilled
    rows: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found = self.distilled
        return {
            "folder": str(self.folder),
            "drawn": found.cost,
            "divergences": {name: value.to_dict() for name, value in found.divergences.items()},
            "log_z": found.log_z.to_dict(),
            "features": [
                {key: value.to_dict() if isinstance(value, Estimate) else value for key, value in row.items()}
                for row in self.rows
            ],
        }


def make_student(model: str, run: DistilRun, *, resume: bool = False, quiet: bool = False) -> StudentResult:
    """Distil the base in the folder `model`, tilted as the settings say, and save the student in `run.out`."""
    folder, settings = Path(run.out), {"model": model, **asdict(run)}
    if resume:
        refuse_other_settings(folder / DISTIL_SETTINGS, settings)
    elif (folder / DISTIL_SETTINGS).is_file():
        raise FileExistsError(
            f"{folder} already holds a distillation. Nothing was changed; go on with --resume, or choose another --out."
        )
    loaded, own = load_model(model, run.energy), named_own(run.energy)
    base, teacher, energy = loaded.base, loaded.target, loaded.target.energy
    student = _fresh(base, run) if run.fresh else deepcopy(base)
    all_here()  # nobody writes before all have looked
    keep_settings(folder / DISTIL_SETTINGS, settings)
    prompts = _prompts(loaded, run)
    found = distil(
        teacher, student, prompts, run.distil, run.training, folder=folder / "checkpoints", resume=resume, quiet=quiet
    )
    rows = _feature_rows(base, student, energy, found, run) if isinstance(energy, LogLinear) else []
    result = StudentResult(folder, found, rows)
    measured = [(f"{name}, tilted model to student", value) for name, value in found.divergences.items()]
    card = Card(
        title=f"{Path(model).name or model}, tilted by {'its own level' if own else Path(run.energy).name}, distilled",
        data=f"{found.cost:,} sequences drawn by the method `{run.distil.method}`.",
        training=settings,
        measured=measured,
        notes="" if own else (Path(run.energy) / "README.md").read_text(encoding="utf8").partition("# ")[2],
    )
    save_base(folder, student, loaded.codec or loaded.text, card)
    write_json(folder / RESULTS, result.to_dict())
    return result


def _prompts(model: Model, run: DistilRun) -> Sequences:
    """None; or, where points come after prompts, some of the text that the energy learnt from."""
    if model.codec is not None:
        return prompts_of_classes(model)
    if not model.given:
        return empty_prompts(1)
    train = read_sets(model, source_of(run.energy)).train
    return distinct_prompts(evenly(train, run.distil.prompts))[0]


def _fresh(base: nn.Module, run: DistilRun) -> NetworkBase:
    if not isinstance(base, NetworkBase):
        raise ValueError(
            f"A {type(base).__name__} is not built anew here. Nothing was drawn; leave --fresh out, so that the student starts "
            f"from the base's weights."
        )
    return build_base(base.config, base.space, rng=Seeded(run.training.seed).stream("base"))


def _feature_rows(base: Base, student: Base, energy: LogLinear, found: Distilled, run: DistilRun) -> list[dict[str, Any]]:
    """Each feature's mean in draws of the base and of the student, and under the teacher."""
    rng, count = Seeded(run.training.seed).stream("features"), run.distil.judged
    plain = collect(Ancestral(), Tilted(base), empty_prompts(1), count, rng=rng)
    teacher, own = found.draws, Ancestral()(Tilted(student), empty_prompts(1), count, rng=rng.stream("student"))
    columns = [
        moments(draws, values(energy.features, draws.x).view(1, -1, len(energy.features))) for draws in (plain, teacher, own)
    ]
    titles = ("base", "tilted", "student")
    return [
        {"feature": feature.name, **{title: column[number] for title, column in zip(titles, columns, strict=True)}}
        for number, feature in enumerate(energy.features)
    ]
