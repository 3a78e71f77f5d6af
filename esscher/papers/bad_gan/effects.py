"""What each term of the game saves with few labels: differences within a draw of the labels, their means over draws with
verdicts, beside the published figures; and the file and the picture of what has been made."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from esscher.core.estimate import Estimate
from esscher.core.storage import write_file
from esscher.papers.bad_gan.studies import FM, IDEAL, LABELS_ONLY, MNIST_100
from esscher.papers.study import (
    OPEN,
    ROW_FILE,
    Row,
    Rows,
    Study,
    StudyContext,
    cached_json,
    means_over_seeds,
    validation_history,
    verdict_of,
)
from esscher.reports.plots import curves, save_figure

ROWS_FILE, PICTURE = "few_labels.json", "few-labels-longer.png"
LONGER = f"{MNIST_100}, 80,000 updates"
ERROR, BOUNDARY = "error", "class boundary in generated"
MAX_LOG_P, GENERATED, THRESHOLD, ABOVE = "max log p", "generated", "threshold", "above the threshold"
PUBLISHED_MAX_LOG_P = {"FM": -297, "FM + LD": -659}  # of generated digits, by the density of the thesis (Table C.2)
PAPER = [
    {"points": points, "model": model, "error": error, "unit": unit}
    for points, unit, rows in (
        (MNIST_100, "of 10,000",
         {"FM": 85.0, "FM + VI": 86.5, "FM + LD": 79.5, "FM + LD + Ent": 89.2, "FM + LD, 2 % quantile": 77.7,
          "FM + LD, 20 % quantile": 80.1, "FM + LD, 100 % quantile": 85.0}),
        ("SVHN, 1,000 labels", "%",
         {"FM": 6.83, "FM + VI": 5.29, "FM + PT": 4.63, "FM + PT + Ent": 4.25, "FM + PT + LD + Ent": 4.19}),
        ("CIFAR-10, 4,000 labels", "%", {"FM": 16.14, "FM + VI": 14.41, "FM + VI + Ent": 15.82}),
    )
    for model, error in rows.items()
]  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """That a model has less of a quantity, in percent, than another one with the same labels. Each is named by its points and
    its model; `thesis` is what was published."""

    less: tuple[str, str]
    more: tuple[str, str]
    thesis: str
    quantity: str = ERROR


def _claim(points: str, less: str, more: str, thesis: str, quantity: str = ERROR) -> Claim:
    """A claim on two models of the same study."""
    return Claim((points, less), (points, more), thesis, quantity)


CLAIMS = (
    _claim(MNIST_100, FM, LABELS_ONLY, "0.85 with FM"),
    Claim((LONGER, FM), (MNIST_100, FM), "0.85 after 1.2 million updates"),
    _claim(LONGER, "FM + PT", FM, "SVHN 6.83 → 4.63; not on MNIST"),
    _claim(MNIST_100, "FM + PT", FM, "SVHN 6.83 → 4.63; not on MNIST"),
    _claim(MNIST_100, "FM + LD", FM, "0.850 → 0.795"),
    _claim(MNIST_100, "FM + LD", FM, "largest log p -297 → -659", ABOVE),
    _claim(MNIST_100, "FM + LD, 2 % quantile", "FM + LD, 100 % quantile", "0.850 → 0.777"),
    _claim(MNIST_100, FM, "FM + VI", "0.865 → 0.850"),
    _claim(MNIST_100, "FM + LD", "FM + LD + Ent", "0.892 → 0.795"),
    _claim("four spins", FM, LABELS_ONLY, "picture C.4"),
    _claim("four spins", IDEAL, LABELS_ONLY, "picture C.2: almost perfect"),
    _claim("four spins", IDEAL, FM, "pictures C.2 and C.4"),
    _claim("two circles", FM, LABELS_ONLY, "picture C.3: perfect"),
    _claim("two circles", IDEAL, LABELS_ONLY, "none"),
)


def effects(rows: Rows) -> list[Row]:
    """For each claim how many points of the quantity are saved, over draws of the labels that both models have, and the
    verdict; a single draw has no interval, and leaves the claim open."""
    by_name = {(row["points"], row["model"], row["draw"]): row for row in rows}
    table = []
    for claim in CLAIMS:
        pairs = []
        for (*name, draw), row in by_name.items():
            other = by_name.get((*claim.more, draw))
            if tuple(name) == claim.less and other is not None:
                values = [each[claim.quantity].value for each in (row, other)]
                saved = Estimate.exact(values[1] - values[0], unit="points")
                less, more = (Estimate.exact(value, unit="%") for value in values)
                pairs.append({"less": less, "more": more, "saved": saved})
        means = means_over_seeds(pairs, ()) or [{"seeds": 1, **pair} for pair in pairs]
        row = means[0] if means else {"seeds": 0, "less": None, "more": None, "saved": None}
        verdict = verdict_of(row["saved"]) if row["seeds"] > 1 else OPEN
        draws = {"draws": row.pop("seeds")}
        named = {"points": claim.less[0], "model": claim.less[1], "against points": claim.more[0], "against": claim.more[1]}
        table.append({**named, "quantity": claim.quantity, **draws, **row, "thesis": claim.thesis, "verdict": verdict})
    return table


def levels(rows: Rows) -> list[Row]:
    """All estimates of each model: over draws of the labels, or of one draw, with the interval for other test points; and for
    each draw the error, the largest log-density of so many generated points, and the threshold."""
    table = []
    for points, model in dict.fromkeys((row["points"], row["model"]) for row in rows):
        group = [row for row in rows if (row["points"], row["model"]) == (points, model)]
        single = {name: value for name, value in group[0].items() if isinstance(value, Estimate)}
        means = (means_over_seeds(group, ()) or [{"seeds": 1, **single}])[0]
        of_draws = {name: [row[name] for row in group] for name in (MAX_LOG_P, GENERATED, THRESHOLD) if name in group[0]}
        draws = {"draws": means.pop("seeds"), "errors": [row[ERROR].value for row in group]}
        largest = PUBLISHED_MAX_LOG_P.get(model) if points.startswith(MNIST_100) else None
        theirs = {"published": published(points, model), "published max log p": largest}
        table.append({"points": points, "model": model, **draws, **means, **of_draws, **theirs})
    return table


def published(points: str, model: str) -> float | None:
    """The error in Table C.2 in percent; that of a longer run is that of its points."""
    for row in PAPER:
        if row["model"] == model and points.startswith(str(row["points"])):
            return float(row["error"]) / (100 if row["unit"] == "of 10,000" else 1)  # type: ignore[arg-type]
    return None


def made_rows(context: StudyContext, studies: Sequence[Study[Any]]) -> list[Row]:
    """All rows in the folders of studies, whatever draws were asked for; by study, draw and model."""
    rows = []
    for study in studies:
        files = (context.out / study.name).glob(f"*/{ROW_FILE}")
        of_study = [row for row in (cached_json(file, dict) for file in files) if row["model"] in study.models]
        names = list(study.models)
        rows += sorted(of_study, key=lambda row: (row["draw"], names.index(row["model"])))
    return rows


def keep(context: StudyContext, studies: Sequence[Study[Any]]) -> None:
    """Write what has been made to `few_labels.json`, and the picture of the validation errors of longer runs."""
    rows = made_rows(context, studies)
    made = {(row["points"], row["model"], row["draw"]) for row in rows}
    missing = [name for study in studies for name in context.names(study) if (study.name, *name) not in made]
    longer = {study.name: _histories(context, study) for study in studies if study.name.endswith(" updates")}
    content = {"missing": len(missing), "rows": rows, "levels": levels(rows), "effects": effects(rows), "longer": longer}
    write_file(context.out / ROWS_FILE, json.dumps(content, indent=1, ensure_ascii=False, default=Estimate.to_dict).encode())
    for name, histories in longer.items():
        if histories:
            save_figure(
                curves(_lines(name, histories), x="update", y="error on held-out images, %", log=True), context.out / PICTURE
            )


def _histories(context: StudyContext, study: Study[Any]) -> dict[str, list[tuple[int, float]]]:
    """The validation errors by updates of the first draw of each model that is done, as far as they are there."""
    folders = {model: context.run_dir(study.name, model) for model in study.models}
    histories = {model: validation_history(folder) for model, folder in folders.items() if (folder / ROW_FILE).exists()}
    return {model: history for model, history in histories.items() if history}


def _lines(points: str, histories: Mapping[str, list[tuple[int, float]]]) -> dict[str, tuple[list[float], list[float]]]:
    """The lines of a picture, with the published error of FM as a level."""
    lines = {
        model: ([float(step) for step, _ in history], [error for _, error in history]) for model, history in histories.items()
    }
    level = published(points, FM)
    if level is not None:
        steps = [step for across, _ in lines.values() for step in across]
        lines[f"thesis, FM: {level:.2f} %"] = ([min(steps), max(steps)], [level, level])
    return lines
