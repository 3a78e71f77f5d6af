"""The report of the quick start: what was done, what was found, how to go on, on one page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from esscher.estimate import Estimate
from esscher.estimators.perplexity import as_perplexity
from esscher.estimators.reliability import Reliability
from esscher.recipes.quickstart_strings import TiltedStrings
from esscher.recipes.quickstart_texts import TiltedTexts, text_nats
from esscher.reports.document import Lines, Picture, Section, Table, write_report
from esscher.reports.meanings import meaning
from esscher.reports.plots import BASE, TILTED, TRUTH, bars, curves, intervals

NATS = (
    "Nats per token: how surprised the model is by held-out data, lower is better. The interval is where the value for all "
    "data like this lies, in 95 % of repetitions; it carries the chance of the test set and of the draws for log Z."
)


def report(path: Path, strings: TiltedStrings, texts: TiltedTexts) -> None:
    """Write the page, and its first picture beside it as `quickstart.png`."""
    truth = strings.entropy.value
    picture = intervals(_nats(strings), label="nats per symbol", truth=truth, truth_label="entropy")
    picture.savefig(path.with_name("quickstart.png"), dpi=160)
    write_report(
        path,
        "Esscher, the quick start",
        "A sequence model a(x) that works one symbol at a time was tilted by an energy over whole sequences: "
        "p(x) is proportional to a(x) times exp(-E(x)). Both halves ran on data that every machine has.",
        [_strings(strings), _texts(texts), _onward(strings, texts)],
    )


def _strings(half: TiltedStrings) -> Section:
    truth, nats = half.entropy, _nats(half)
    base, tilted = nats["base"], nats["tilted"]
    closed = (base.value - tilted.value) / (base.value - truth.value)

    def marked(texts: Sequence[str]) -> list[str]:
        return [text.replace(half.motif, f"[{half.motif}]") for text in texts]

    text = (
        f"{half.base.points.description} The entropy of this process is known exactly, {truth.value:.5f} nats per symbol, and "
        f"no model can do better. An LSTM was trained briefly on the strings (longer training finds the motif by itself); then "
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
            Lines("Strings of the base; the motif in brackets where it appears:", marked(half.samples["base"])),
            Lines("Strings of the tilted model:", marked(half.samples["tilted"])),
            Lines("Strings of the student:", marked(half.student.samples)),
            Picture(_history(half, truth.value), "Training of the base: it stops improving well above the entropy."),
        ],
    )


def _told(half: TiltedStrings, base: Estimate, truth: Estimate) -> str:
    """What became of the student."""
    closed = (base.value - half.student.nats.value) / (base.value - truth.value)
    found = half.student.distilled
    return (
        f" A student distilled from the tilted model, a plain LSTM again that needs no weights and no log Z, closed "
        f"{closed:.0%}: it learnt from {found.cost:,} drawn strings in two stages, worth "
        f"{' and '.join(f'{stage.effective:,.0f}' for stage in found.stages)} equally weighted ones, and is "
        f"{found.divergences['kl'].value:.2f} nats per string from the tilted model."
    )


def _texts(texts: TiltedTexts) -> Section:
    measured, larger = texts.found.measured, texts.larger.measured["perplexity per token"]
    assert measured.tilted is not None and measured.saved is not None
    saved, log_z, trust = measured.saved["token"], measured.log_z, measured.reliability[0]
    text = (
        f"{texts.base.material.description}\n\n"
        f"A deliberately small Transformer learnt from the docstrings of Python's standard library, cut to 64 tokens. A "
        f"network that sees the whole text from both sides then learnt to tell real docstrings from the small model's own "
        f"draws, and tilts it. On the same held-out texts that saved {saved.value:.4f} nats per token, between {saved.low:.4f} "
        f"and {saved.high:.4f} (95 %), so perplexity changed by {math.expm1(-saved.value):+.1%}.\n\n"
        f"The network started from the weights of a larger plain model of the same text, whose own perplexity per token is "
        f"{larger.value:.4g}: where you may replace the base, a larger one is the better buy; an energy is for a base that you "
        f"want to keep, and is worth most when it brings pretraining that the base lacks."
    )
    base, tilted = as_perplexity(measured.base), as_perplexity(measured.tilted)
    counted = {unit: int(count.sum()) for unit, count in texts.base.points.units.items()}
    rows = [{"per": unit, "base": base[unit], "tilted": tilted[unit], "counted": counted[unit]} for unit in base]
    nats = {name: replace(value, unit="") for name, value in text_nats(texts).items() if name != "saved by tilting"}
    trusted = _trusted(log_z, trust)
    shown = [{**row, "text": row["text"].replace("\n", " ")[:160]} for row in (*texts.ranked[:5], *texts.ranked[-3:])]
    return Section(
        "Docstrings: real text",
        text,
        [
            Picture(intervals(nats, label="nats per token"), NATS),
            Table(
                "Perplexity on held-out docstrings",
                rows,
                f"{meaning('perplexity')} In brackets the 95 % interval for all texts like these; `counted` is how many "
                f"were scored. End symbols count, prompts do not.",
            ),
            Table("Can the numbers be trusted?", trusted, "log Z normalises the tilted model; it is estimated from draws."),
            Table(
                f"The likeliest five and the unlikeliest three of {len(texts.ranked)} candidates",
                shown,
                "All were drawn from the base, and these are exact: log base is the base's log-probability in nats, "
                " energy is E(x) in nats (lower is likelier), share is what the energy gives each among all of them.",
            ),
        ],
    )


def _features(half: TiltedStrings) -> list[Table | Picture]:
    reliability = half.measured.reliability[0]
    moments = half.tilted.rows()
    shares = [row for row in moments if max(row["in the data"], row["in the base"]) <= 1]
    drawn = [
        {"name": row["feature"], **{key: _value(row[key]) for key in ("in the data", "in the base", "tilted")}}
        for row in shares
    ]
    trust = _trusted(half.measured.log_z, reliability)
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


def _trusted(log_z: Estimate | None, trust: Reliability) -> list[dict[str, Any]]:
    """What the estimate of log Z rests on, each with its meaning."""
    return [
        {"what": "log Z", "value": log_z, "meaning": meaning("log Z") + " It is 0 for an energy that changes nothing."},
        {
            "what": "effective sample size",
            "value": f"{trust.effective:,.0f} draws",
            "meaning": f"{meaning('effective draws')} Known of these very draws, so it has no interval.",
        },
        {
            "what": "tail index k",
            "value": f"{trust.pareto_k:.2g} (no unit)",
            "meaning": "How heavy the tail of the weights is: below 0.5 all is well, above 0.7 no number of draws helps.",
        },
        {"what": "verdict", "value": trust.verdict, "meaning": meaning("reliability")},
        {"what": "advice", "value": trust.advice, "meaning": "What to do about it."},
    ]


def _onward(strings: TiltedStrings, texts: TiltedTexts) -> Section:
    commands = [
        f"esscher explore {strings.base.folder}",
        f'esscher sample {texts.base.folder} --prompt "Return the" --draws 4',
        f"esscher sample {texts.base.folder} --energy {texts.energy} --draws 4",
        f"esscher sample {strings.base.folder} --energy {strings.energy} --sampler pool --pool 2000 --draws 4",
        f"esscher sample {strings.student.folder} --draws 4",
        f"esscher measure {texts.base.folder} --energy {texts.energy} --data your.txt",
        f"esscher tilt {texts.base.folder} --out runs/short --want words=6",
        f"esscher distil {texts.base.folder} --energy runs/short --out runs/short-student",
        "esscher train --out runs/mine --data.source your.txt",
    ]
    return Section("How to go on", "The models of this run are ordinary folders. From the same place:", [Lines("", commands)])


def _nats(half: TiltedStrings) -> dict[str, Estimate]:
    return {name: replace(value, unit="") for name, value in half.nats().items()}


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


def _history(half: TiltedStrings, floor: float) -> Any:
    points = [entry for entry in half.base.record.history if "validation" in entry]
    steps = [float(entry["step"]) for entry in points]
    return curves(
        {"validation": (steps, [entry["validation"] for entry in points])}, x="step", y="nats per symbol", floor=floor
    )


def _value(number: float | Estimate) -> float:
    return number.value if isinstance(number, Estimate) else number
