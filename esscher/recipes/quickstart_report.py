"""The report of the quick start: what was done, what was found, how to go on, on one page."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from esscher.estimate import Estimate
from esscher.estimators.perplexity import as_perplexity
from esscher.recipes.quickstart import Half
from esscher.reports.document import Lines, Picture, Section, Table, write_report
from esscher.reports.plots import BASE, TILTED, TRUTH, bars, curves, intervals

NATS = (
    "Nats per token: how surprised the model is by held-out data, lower is better. The interval is where the value for all "
    "data like this lies, in 95 % of repetitions; it carries the chance of the test set and of the draws for log Z."
)


def report(path: Path, strings: Half, texts: Half) -> Path:
    """Write the page, its first picture beside it as `quickstart.png`, and return the page's path."""
    truth = dict(strings.material.truth)["entropy of the process"].value
    picture = intervals(_nats(strings), label="nats per symbol", truth=truth, truth_label="entropy")
    picture.savefig(path.with_name("quickstart.png"), dpi=160)
    return write_report(
        path,
        "Esscher, the quick start",
        "A sequence model a(x) that works one symbol at a time was tilted by facts about whole sequences: "
        "p(x) is proportional to a(x) times exp(-E(x)). Both halves ran on data that every machine has.",
        [_strings(strings), _texts(texts), _onward(strings, texts)],
    )


def _strings(half: Half) -> Section:
    truth = dict(half.material.truth)["entropy of the process"]
    nats = _nats(half)
    base, tilted = nats["base"], nats["tilted"]
    closed = (base.value - tilted.value) / (base.value - truth.value)
    motif = half.settings.data.source.removeprefix("motif:")

    def mark(text: str) -> str:
        return text.replace(motif, f"[{motif}]")

    marked = {name: [mark(text) for text in half.samples[name]] for name in ("base", "tilted")}
    text = (
        f"{half.material.description} The entropy of this process is known exactly, {truth.value:.5f} nats per symbol, and no "
        f"model can do better. An LSTM was trained briefly on the strings (longer training finds the motif by itself); then "
        f"features of the whole string were weighed so that the tilted model shows them as often as the data do.\n\n"
        f"Tilting closed {closed:.0%} of the gap between the base and the truth.{_told(half, base, truth)}"
    )
    return Section(
        "Strings with a motif: the truth is known",
        text,
        [
            Picture(intervals(nats, label="nats per symbol", truth=truth.value, truth_label="entropy"), NATS),
            Table("Cross-entropy on 5,000 fresh strings", _table(nats, truth), NATS),
            *_features(half),
            Lines("Strings of the base; the motif in brackets where it appears:", marked["base"]),
            Lines("Strings of the tilted model:", marked["tilted"]),
            *(
                []
                if half.student is None
                else [Lines("Strings of the student:", [mark(text) for text in half.student.samples])]
            ),
            Picture(_history(half, truth.value), "Training of the base: it stops improving well above the entropy."),
        ],
    )


def _told(half: Half, base: Estimate, truth: Estimate) -> str:
    """What became of the student."""
    if half.student is None:
        return ""
    closed = (base.value - half.student.nats.value) / (base.value - truth.value)
    found = half.student.distilled
    return (
        f" A student distilled from the tilted model, a plain LSTM again that needs no weights and no log Z, closed "
        f"{closed:.0%}: it learnt from {found.cost:,} drawn strings in two stages, worth "
        f"{' and '.join(f'{stage.effective:,.0f}' for stage in found.stages)} equally weighted ones, and is "
        f"{found.divergences['kl'].value:.2f} nats per string from the tilted model."
    )


def _texts(half: Half) -> Section:
    nats = _nats(half)
    saved = (half.measured.saved or {})["token"]
    text = (
        f"{half.material.description}\n\n"
        f"A small Transformer was trained on the docstrings of Python's standard library, cut to 64 tokens, and tilted by a "
        f"few plain facts about whole texts. On the same held-out texts that saved {saved.value:.4f} nats per token, between "
        f"{saved.low:.4f} and {saved.high:.4f} (95 %), so perplexity changed by {math.expm1(-saved.value):+.2%}. A few "
        f"hand-written facts say little about English, and a base that is good already leaves little to say; energies that are "
        f"networks reading the whole text can say more."
    )
    base, tilted = as_perplexity(half.measured.base), as_perplexity(half.measured.tilted or {})
    counted = {unit: int(count.sum()) for unit, count in half.material.units.items()}
    rows = [{"per": unit, "base": base[unit], "tilted": tilted[unit], "counted": counted[unit]} for unit in base]
    return Section(
        "Docstrings: real text",
        text,
        [
            Picture(intervals(nats, label="nats per token"), NATS),
            Table(
                "Perplexity on held-out docstrings",
                rows,
                "Perplexity is exp(nats per unit); end symbols count, prompts do not.",
            ),
            *_features(half),
            Lines("Drawn from the base:", half.samples["base"]),
            Lines("Drawn from the tilted model:", half.samples["tilted"]),
        ],
    )


def _features(half: Half) -> list[Table | Picture]:
    reliability = half.measured.reliability[0]
    moments = half.tilted.rows()
    shares = [row for row in moments if max(row["in the data"], row["in the base"]) <= 1]
    drawn = [
        {"name": row["feature"], **{key: _value(row[key]) for key in ("in the data", "in the base", "tilted")}}
        for row in shares
    ]
    trust: list[dict[str, Any]] = [
        {"what": "log Z", "value": half.measured.log_z},
        {"what": "effective sample size", "value": f"{reliability.effective:,.0f} draws"},
        {"what": "tail index k (should stay below 0.7)", "value": reliability.pareto_k},
        {"what": "verdict", "value": reliability.verdict},
        {"what": "advice", "value": reliability.advice},
    ]
    series = {"in the data": TRUTH, "in the base": BASE, "tilted": TILTED}
    return [
        Table(
            "The features and their weights",
            moments,
            "A weight above 0 makes sequences with the feature likelier. A feature the base already gets right ends near 0. "
            "The weights were fitted on one set of draws, the last column comes from fresh ones.",
        ),
        Picture(
            bars(drawn, series=series, label="share of sequences"), "Each feature in the data, the base and the tilted model."
        ),
        Table(
            "Can the weights be trusted?", trust, "log Z normalises the tilted model; it is estimated from draws of the base."
        ),
    ]


def _onward(strings: Half, texts: Half) -> Section:
    commands = [
        f'esscher sample {texts.result.folder} --prompt "Return the" --draws 4',
        f"esscher sample {texts.result.folder} --energy {texts.energy} --draws 4",
        f"esscher sample {strings.result.folder} --energy {strings.energy} --sampler pool --pool 2000 --draws 4",
        *([] if strings.student is None else [f"esscher sample {strings.student.folder} --draws 4"]),
        f"esscher measure {texts.result.folder} --energy {texts.energy} --data your.txt",
        f"esscher tilt {texts.result.folder} --out runs/short --want words=6",
        f"esscher distil {texts.result.folder} --energy runs/short --out runs/short-student",
        "esscher train --out runs/mine --data.source your.txt",
    ]
    return Section("How to go on", "The models of this run are ordinary folders. From the same place:", [Lines("", commands)])


def _nats(half: Half) -> dict[str, Estimate]:
    models: dict[str, Mapping[str, Estimate]] = {"base": half.measured.base, "tilted": half.measured.tilted or {}}
    nats = {name: replace(found["token"], unit="") for name, found in models.items()}
    return nats if half.student is None else {**nats, "distilled": replace(half.student.nats, unit="")}


def _table(nats: Mapping[str, Estimate], truth: Estimate) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "model": name,
            "nats per symbol": value,
            "above the entropy": f"{value.value / truth.value - 1:.1%}",
            "method": value.method,
        }
        for name, value in nats.items()
    ]
    return [*rows, {"model": "the process itself", "nats per symbol": truth, "above the entropy": "0 %", "method": "exact"}]


def _history(half: Half, floor: float) -> Any:
    points = [entry for entry in half.result.record.history if "validation" in entry]
    steps = [float(entry["step"]) for entry in points]
    return curves(
        {"validation": (steps, [entry["validation"] for entry in points])}, x="step", y="nats per symbol", floor=floor
    )


def _value(number: float | Estimate) -> float:
    return number.value if isinstance(number, Estimate) else number
