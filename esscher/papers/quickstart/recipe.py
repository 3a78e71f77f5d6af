"""The quick start on embedded data, in a few minutes: train a base, tilt it, measure, sample, distil, report.

Both experiments (`experiments`) leave folders of a base and of an energy, which the command line reads; an interrupted run
resumes where it stopped.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from esscher.core.estimate import Estimate
from esscher.estimators.perplexity import as_perplexity
from esscher.estimators.reliability import Reliability
from esscher.papers.quickstart.experiments import (
    StringScale,
    TextScale,
    TiltedStrings,
    TiltedTexts,
    string_rows,
    text_rows,
    tilted_strings,
    tilted_texts,
)
from esscher.papers.study import Row, StudyContext
from esscher.reports.document import Picture, Section, Table, TextLines, write_report
from esscher.reports.plots import BASE, TILTED, TRUTH, bars, curves, intervals
from esscher.reports.report_page import meaning

SCALES = {
    "smoke": (
        StringScale(motif="1000101", length=12, strings=500, epochs=12, width=48, draws=8_000, distil_sequences=1_000),
        TextScale(steps=40, width=32, larger_steps=60, larger_width=64, energy_steps=10, draws=400),
    ),
    "small": (
        StringScale(
            motif="10001011111000", length=30, strings=500, epochs=25, width=200, draws=40_000, distil_sequences=10_000
        ),
        TextScale(steps=500, width=64, larger_steps=800, larger_width=160, energy_steps=150, draws=4_000),
    ),
    "paper": (
        StringScale(
            motif="10001011111000", length=30, strings=5_000, epochs=100, width=200, draws=200_000, distil_sequences=20_000
        ),
        TextScale(steps=2_000, width=64, larger_steps=8_000, larger_width=384, energy_steps=4_000, draws=40_000),
    ),
}
NATS = (
    "Nats per token: how surprised the model is by held-out data, lower is better. The interval contains the value for all "
    "data like this in 95 % of repetitions; it includes the randomness of the test set and of the draws for log Z."
)


def run(context: StudyContext) -> dict[str, Any]:
    """Both experiments for each seed, and a report of the first seed."""
    rows, results = [], []
    string_scale, text_scale = SCALES[context.scale]
    for seed in range(context.seeds):
        folder = context.out if context.seeds == 1 else context.out / f"seed-{seed}"
        strings = tilted_strings(string_scale, folder, seed)
        texts = tilted_texts(text_scale, folder / "docstrings", seed)
        rows += [*string_rows(strings, seed), *text_rows(texts, seed)]
        results.append((strings, texts))
    report(context.out / "report.html", *results[0])
    return {"rows": rows, "paper": []}


def report(path: Path, strings: TiltedStrings, texts: TiltedTexts) -> None:
    """Write the page, and its first picture beside it as `quickstart.png`."""
    _nats_figure(strings).savefig(path.with_name("quickstart.png"), dpi=160)
    write_report(
        path,
        "Esscher, the quick start",
        "A sequence model a(x) that works one symbol at a time was tilted by an energy over whole sequences: "
        "p(x) is proportional to a(x) times exp(-E(x)). Both experiments ran on data that every machine has.",
        [_strings_section(strings), _texts_section(texts), _next_steps(strings, texts)],
    )


def _nats_figure(strings: TiltedStrings) -> Any:
    nats = {name: replace(value, unit="") for name, value in strings.nats().items()}
    return intervals(nats, label="nats per symbol", truth=strings.entropy.value, truth_label="entropy")


def _strings_section(strings: TiltedStrings) -> Section:
    entropy, nats, distilled = strings.entropy, strings.nats(), strings.student.distilled
    closed = {
        name: (nats["base"].value - nats[name].value) / (nats["base"].value - entropy.value) for name in ("tilted", "distilled")
    }
    text = (
        f"{strings.base.splits.description} The entropy of this process is known exactly, {entropy.value:.5f} nats per symbol, "
        f"and no model can do better. An LSTM was trained briefly on the strings (longer training finds the motif by itself); "
        f"then features of the whole string were weighted so that the tilted model shows them as often as the data do.\n\n"
        f"Tilting closed {closed['tilted']:.0%} of the gap between the base and the truth. A student distilled from the tilted "
        f"model, a plain LSTM again that needs no weights and no log Z, closed {closed['distilled']:.0%}: it learnt from "
        f"{distilled.cost:,} drawn strings in two stages, worth "
        f"{' and '.join(f'{stage.ess:,.0f}' for stage in distilled.stages)} equally weighted ones, and is "
        f"{distilled.divergences['kl'].value:.2f} nats per string from the tilted model."
    )
    table: list[Row] = [
        {"model": name, "nats per symbol": replace(value, unit=""),
         "above the entropy": f"{value.value / entropy.value - 1:.1%}", "method": value.method}
        for name, value in nats.items()
    ]  # fmt: skip
    table.append({"model": "the process itself", "nats per symbol": entropy, "above the entropy": "0 %", "method": "exact"})
    history = [entry for entry in strings.base.record.history if "validation" in entry]
    losses = [float(entry["step"]) for entry in history], [entry["validation"] for entry in history]
    training = curves({"validation": losses}, x="step", y="nats per symbol", floor=entropy.value)
    samples = {
        "Strings of the base; the motif in brackets where it appears:": strings.samples["base"],
        "Strings of the tilted model:": strings.samples["tilted"],
        "Strings of the student:": strings.student.samples,
    }
    motif = strings.motif
    parts = [
        Picture(_nats_figure(strings), NATS),
        Table("Cross-entropy on 5,000 fresh strings", table, NATS),
        *_features(strings),
        *(TextLines(caption, [text.replace(motif, f"[{motif}]") for text in texts]) for caption, texts in samples.items()),
        Picture(training, "Training of the base: it stops improving well above the entropy."),
    ]
    return Section("Strings with a motif: the truth is known", text, parts)


def _features(strings: TiltedStrings) -> list[Table | Picture]:
    """The weights, each feature in the data, the base and the tilted model, and the reliability of log Z."""
    moments = strings.tilted.rows()
    series = {"in the data": TRUTH, "in the base": BASE, "tilted": TILTED}
    shares = [
        {"name": row["feature"], **{key: row[key].value if isinstance(row[key], Estimate) else row[key] for key in series}}
        for row in moments
        if max(row["in the data"], row["in the base"]) <= 1
    ]
    return [
        Table(
            "The features and their weights",
            moments,
            "A weight above 0 makes sequences with the feature likelier. A feature the base already gets right ends near 0. "
            "The weights were fitted on one set of draws, the last column comes from fresh ones.",
        ),
        Picture(
            bars(shares, series=series, label="share of sequences"), "Each feature in the data, the base and the tilted model."
        ),
        _reliability_table("Can the weights be trusted?", strings.measured.log_z, strings.measured.reliability[0]),
    ]


def _texts_section(texts: TiltedTexts) -> Section:
    measured, larger = texts.energy_result.measured, texts.larger.measured["perplexity per token"]
    assert measured.tilted is not None and measured.reduction is not None
    saved = measured.reduction["token"]
    text = (
        f"{texts.base.splits.description}\n\n"
        f"A deliberately small Transformer learnt from the docstrings of Python's standard library, cut to 64 tokens. A "
        f"network that sees the whole text from both sides then learnt to tell real docstrings from the small model's own "
        f"draws, and tilts it. On the same held-out texts that saved {saved.value:.4f} nats per token, between {saved.low:.4f} "
        f"and {saved.high:.4f} (95 %), so perplexity changed by {math.expm1(-saved.value):+.1%}.\n\n"
        f"The network started from the weights of a larger plain model of the same text, whose own perplexity per token is "
        f"{larger.value:.4g}: where you may replace the base, a larger one is the better buy; an energy is for a base that you "
        f"want to keep, and is worth most when it brings pretraining that the base lacks."
    )
    base, tilted = as_perplexity(measured.base), as_perplexity(measured.tilted)
    counted = {unit: int(count.sum()) for unit, count in texts.base.splits.units.items()}
    rows = [{"per": unit, "base": base[unit], "tilted": tilted[unit], "counted": counted[unit]} for unit in base]
    nats = {name: replace(value, unit="") for name, value in texts.nats().items() if name != "saved by tilting"}
    ranked = [{**row, "text": row["text"].replace("\n", " ")[:160]} for row in (*texts.ranked[:5], *texts.ranked[-3:])]
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
            _reliability_table("Can the numbers be trusted?", measured.log_z, measured.reliability[0]),
            Table(
                f"The likeliest five and the unlikeliest three of {len(texts.ranked)} candidates",
                ranked,
                "All were drawn from the base, and these are exact: log base is the base's log-probability in nats, "
                "energy is E(x) in nats (lower is likelier), share is the normalised weight of each among all of them.",
            ),
        ],
    )


def _reliability_table(caption: str, log_z: Estimate | None, reliability: Reliability) -> Table:
    """How reliable the estimate of log Z is, each number with its meaning."""
    rows = (
        ("log Z", log_z, f"{meaning('log Z')} It is 0 for an energy that changes nothing."),
        (
            "effective sample size",
            f"{reliability.ess:,.0f} draws",
            f"{meaning('effective draws')} Known of these very draws, so it has no interval.",
        ),
        (
            "tail index k",
            f"{reliability.pareto_k:.2g} (no unit)",
            "How heavy the tail of the weights is: below 0.5 all is well, above 0.7 no number of draws helps.",
        ),
        ("verdict", reliability.verdict, meaning("reliability")),
        ("advice", reliability.advice, "What to do about it."),
    )
    about = "log Z normalises the tilted model; it is estimated from draws of the base."
    return Table(caption, [dict(zip(("what", "value", "meaning"), row, strict=True)) for row in rows], about)


def _next_steps(strings: TiltedStrings, texts: TiltedTexts) -> Section:
    commands = [
        f"esscher explore {strings.base.folder}",
        f'esscher sample {texts.base.folder} --prompt "Return the" --draws 4',
        f"esscher sample {texts.base.folder} --energy {texts.energy} --draws 4",
        f"esscher sample {strings.base.folder} --energy {strings.energy} --sampler.kind sir --sampler.num-candidates "
        "2000 --draws 4",
        f"esscher sample {strings.student.folder} --draws 4",
        f"esscher measure {texts.base.folder} --energy {texts.energy} --data your.txt",
        f"esscher tilt {texts.base.folder} --out runs/short --want words=6",
        f"esscher distil {texts.base.folder} --energy runs/short --out runs/short-student",
        "esscher train --out runs/mine --data.source your.txt",
    ]
    return Section(
        "How to go on", "The models of this run are ordinary folders. From the same place:", [TextLines("", commands)]
    )
