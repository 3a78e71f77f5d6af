"""The quick start on embedded data, in a few minutes: train a base, tilt it, measure, sample, distil, report; it resumes. On
docstrings the energy starts from the weights of a larger plain model: from random ones minutes are too few."""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.core.target import Tilted
from esscher.data.config import MOTIF, DataConfig, LengthConfig, TokenizerConfig
from esscher.energies.declared_features import features_from_specs
from esscher.energies.feature_spec import FeatureSpec
from esscher.energies.serialization import SavedLogLinear, base_digest, save_energy
from esscher.estimators.perplexity import Measurement, as_perplexity, cross_entropy, measure_with_draws
from esscher.estimators.reliability import Reliability
from esscher.hub import ModelCard, save_base
from esscher.networks.recurrent_config import LstmConfig
from esscher.networks.transformer_config import TransformerConfig
from esscher.papers.study import Row, StudyContext, run_with_seed, table_rows
from esscher.reports.document import Picture, Section, Table, TextLines, meaning
from esscher.reports.plots import BASE, TILTED, TRUTH, bars, curves, intervals
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Importance
from esscher.training.config import DistilConfig, TrainingConfig
from esscher.training.distillation import DistillationResult, distil
from esscher.workflow.config.tilt import ContrastConfig, ContrastTraining, FitConfig, TiltRun
from esscher.workflow.config.train import TrainRun
from esscher.workflow.tilt import ContrastResult, FitResult, fit_feature_weights, tilt_model
from esscher.workflow.train import TrainResult, train_base

SHOWN = 5  # strings of each model
CANDIDATES = 64
NATS = (
    "Nats per token: how surprised the model is by held-out data, lower is better. The interval contains the value for all "
    "data like this in 95 % of repetitions; it includes the randomness of the test set and of the draws for log Z."
)


@dataclass(frozen=True, kw_only=True)
class QuickstartScale:
    """The settings of both experiments: strings, their base, tilt and student; docstrings, both models and the tilt."""

    strings: TrainRun
    fit: FitConfig
    distil: DistilConfig  # in two stages: from draws of the base, then from draws of the first student
    texts: TrainRun
    larger: TrainRun  # the model that the energy starts from
    tilt: TiltRun


def _strings(motif: str, *, length: int, size: int, epochs: int, width: int) -> TrainRun:
    data = DataConfig(f"{MOTIF}{motif}", size=size, length=length)
    training = TrainingConfig(epochs=epochs, batch_size=50, patience=20)
    return TrainRun("", data=data, base=LstmConfig(width=width), training=training)


def _texts(*, steps: int, width: int, layers: int) -> TrainRun:
    return TrainRun(
        "",
        tokenizer=TokenizerConfig("bpe", 800),
        length=LengthConfig(tokens=64),
        base=TransformerConfig(width=width, layers=layers, heads=4, feedforward=3 * width),
        training=TrainingConfig(
            steps=steps, learning_rate=2e-3, schedule="cosine", warmup_steps=steps // 20, evaluate_every=200
        ),
    )


def _tilt(*, steps: int, draws: int) -> TiltRun:
    training = ContrastTraining(steps=steps, learning_rate=5e-4, warmup_steps=20, evaluate_every=50)
    return TiltRun(contrast=ContrastConfig(draws=draws), training=training)


SCALES = {
    "smoke": QuickstartScale(
        strings=_strings("1000101", length=12, size=500, epochs=12, width=48), fit=FitConfig(draws=8_000),
        distil=DistilConfig("cyclical", 1_000, 2_000, stages=2), texts=_texts(steps=40, width=32, layers=1),
        larger=_texts(steps=60, width=64, layers=3), tilt=_tilt(steps=10, draws=400),
    ),
    "small": QuickstartScale(
        strings=_strings("10001011111000", length=30, size=500, epochs=25, width=200), fit=FitConfig(draws=40_000),
        distil=DistilConfig("cyclical", 10_000, 20_000, stages=2), texts=_texts(steps=500, width=64, layers=1),
        larger=_texts(steps=800, width=160, layers=3), tilt=_tilt(steps=150, draws=4_000),
    ),
    "paper": QuickstartScale(
        strings=_strings("10001011111000", length=30, size=5_000, epochs=100, width=200), fit=FitConfig(draws=200_000),
        distil=DistilConfig("cyclical", 20_000, 40_000, stages=2), texts=_texts(steps=2_000, width=64, layers=1),
        larger=_texts(steps=8_000, width=384, layers=3), tilt=_tilt(steps=4_000, draws=40_000),
    ),
}  # fmt: skip


def run(context: StudyContext) -> dict[str, Any]:
    """Both experiments for each seed, and a report of the first seed, with its first picture as `quickstart.png`."""
    scale, rows = SCALES[context.scale], []
    sections: list[Section] = []
    for seed in range(context.seeds):
        folder = context.out if context.seeds == 1 else context.out / f"seed-{seed}"
        strings, strings_section = tilted_strings(scale, folder / "motif", seed)
        texts, texts_section = tilted_texts(scale, folder / "docstrings", seed)
        for data, nats in (("motif strings", strings), ("docstrings", texts)):
            rows += [{"data": data, "model": name, "nats per token": value, "seed": seed} for name, value in nats.items()]
        sections = sections or [strings_section, texts_section, _next_steps(folder / "motif", folder / "docstrings")]
    picture = sections[0].parts[0]
    assert isinstance(picture, Picture)
    picture.figure.savefig(context.out / "quickstart.png", dpi=160)
    about = (
        "A sequence model a(x) that works one symbol at a time was tilted by an energy over whole sequences: "
        "p(x) is proportional to a(x) times exp(-E(x)). Both experiments ran on data that every machine has."
    )
    return context.publish("Esscher, the quick start", about, sections, {"rows": rows, "paper": []})


def tilted_strings(scale: QuickstartScale, out: Path, seed: int) -> tuple[dict[str, Estimate], Section]:
    """Train on few strings, tilt by the absence of the motif and by irrelevant features, measure, and distil. Returns nats per
    symbol of the models, what tilting saved and what is known exactly; and the section of the report."""
    base, rng = train_base(run_with_seed(scale.strings, out, seed)), SeededRng(seed).stream("tilt")
    motif, splits, decode = scale.strings.data.motif, base.splits, base.splits.tokenizer.decode
    assert motif is not None
    middle = len(motif) // 2
    declared = (
        FeatureSpec("lacks", motif, name="motif absent"),
        FeatureSpec("lacks", motif[:middle], name="first half of it absent"),
        FeatureSpec("starts-with", "0", name="begins with 0"),
        FeatureSpec("lacks", motif[::-1][:middle], name="another string absent"),
    )
    fitted = fit_feature_weights(base.base, features_from_specs(declared, decode), splits.train, {}, scale.fit, rng=rng)
    measured = measure_with_draws(fitted.draws, fitted.target, splits.test, units=splits.units)
    saved = SavedLogLinear(declared, fitted.fit.weights, str(base.folder), base_digest(base.base), fitted.log_z, seed)
    save_energy(out / "energy", saved)
    student = deepcopy(base.base)
    distilled = distil(
        fitted.target, student, empty_prompts(1), scale.distil,
        TrainingConfig(epochs=2, batch_size=50, learning_rate=2e-3, schedule="linear", seed=seed),
        candidates=fitted.draws, folder=out / "student" / "checkpoints", resume=True,
    )  # fmt: skip
    student_nats = cross_entropy(Tilted(student), splits.test, units=splits.units)["token"]
    card = ModelCard("Student of the tilted motif model", results=[("cross-entropy", student_nats)])
    save_base(out / "student", student, splits.tokenizer, card)
    plain, _ = draw(base.base, empty_prompts(1), SHOWN, rng=rng.stream("plain"))
    resampled = fitted.draws.x.rows(rng.stream("chosen").categorical(fitted.draws.log_weight, SHOWN)[0])
    drawn, _ = draw(student, empty_prompts(1), SHOWN, rng=SeededRng(seed).stream("student"))
    strings = {
        "Strings of the base; the motif in brackets where it appears:": plain,
        "Strings of the tilted model:": resampled,
        "Strings of the student:": drawn,
    }
    samples = [
        TextLines(caption, [string.replace(motif, f"[{motif}]") for string in decode(x.points())])
        for caption, x in strings.items()
    ]
    assert measured.tilted is not None and measured.reduction is not None
    models = {"base": measured.base["token"], "tilted": measured.tilted["token"], "distilled": student_nats}
    section = _strings_section(base, fitted, measured, distilled, models, samples)
    return {**models, "saved by tilting": measured.reduction["token"], **dict(splits.truth)}, section


def tilted_texts(scale: QuickstartScale, out: Path, seed: int) -> tuple[dict[str, Estimate], Section]:
    """Train the base and the larger model, tilt, measure, and rank draws of the base by their normalised weight. Returns nats
    per token of the models, and what tilting saved on the same texts; and the section of the report."""
    base = train_base(run_with_seed(scale.texts, out, seed))
    larger = train_base(run_with_seed(scale.larger, out / "larger", seed))
    training = replace(scale.tilt.training, seed=seed)
    run = replace(scale.tilt, out=str(out / "energy"), start=str(larger.folder), training=training, resume=True)
    result = tilt_model(base.model, run).details
    assert isinstance(result, ContrastResult)
    drawn = Importance()(result.target, empty_prompts(1), CANDIDATES, rng=SeededRng(seed).stream("ranked"))
    log_weight, log_base = drawn.log_weight[0], drawn.log_base[0]
    share, texts = log_weight.softmax(-1), base.splits.tokenizer.decode(drawn.x.points())
    ranked = [
        {"share": float(share[row]), "energy": -float(log_weight[row]), "log base": float(log_base[row]),
         "text": texts[row].replace("\n", " ")[:160]}
        for row in share.argsort(descending=True).tolist()
    ]  # fmt: skip
    measured = result.measured
    assert measured.tilted is not None and measured.reduction is not None
    by_unit = {"base": measured.base, "tilted": measured.tilted, "saved by tilting": measured.reduction}
    nats = {name: value["token"] for name, value in by_unit.items()}
    return nats, _texts_section(base, larger, measured, nats, [*ranked[:5], *ranked[-3:]])


def _strings_section(
    base: TrainResult, tilted: FitResult, measured: Measurement, distilled: DistillationResult, nats: Mapping[str, Estimate],
    samples: Sequence[TextLines],
) -> Section:  # fmt: skip
    entropy = dict(base.splits.truth)["entropy of the process"]
    gap = nats["base"].value - entropy.value
    closed = {name: (nats["base"].value - nats[name].value) / gap for name in ("tilted", "distilled")}
    text = (
        f"{base.splits.description} The entropy of this process is known exactly, {entropy.value:.5f} nats per symbol, "
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
    figure = intervals(
        {name: replace(value, unit="") for name, value in nats.items()}, label="nats per symbol", truth=entropy.value,
        truth_label="entropy",
    )  # fmt: skip
    history = [entry for entry in base.record.history if "validation" in entry]
    losses = [float(entry["step"]) for entry in history], [entry["validation"] for entry in history]
    training = curves({"validation": losses}, x="step", y="nats per symbol", floor=entropy.value)
    moments, series = tilted.rows(), {"in the data": TRUTH, "in the base": BASE, "tilted": TILTED}
    shares = [
        {"name": row["feature"], **{key: row[key].value if isinstance(row[key], Estimate) else row[key] for key in series}}
        for row in moments
        if max(row["in the data"], row["in the base"]) <= 1
    ]
    weights = (
        "A weight above 0 makes sequences with the feature likelier. A feature the base already gets right ends near 0. "
        "The weights were fitted on one set of draws, the last column comes from fresh ones."
    )
    features = bars(shares, series=series, label="share of sequences")
    parts: list[Table | Picture | TextLines] = [
        Picture(figure, NATS),
        Table("Cross-entropy on 5,000 fresh strings", table, NATS),
        Table("The features and their weights", moments, weights),
        Picture(features, "Each feature in the data, the base and the tilted model."),
        _reliability_table("Can the weights be trusted?", measured.log_z, measured.reliability[0]),
        *samples,
        Picture(training, "Training of the base: it stops improving well above the entropy."),
    ]
    return Section("Strings with a motif: the truth is known", text, parts)


def _texts_section(
    base: TrainResult, larger: TrainResult, measured: Measurement, nats: Mapping[str, Estimate], ranked: Sequence[Row]
) -> Section:
    saved = nats["saved by tilting"]
    text = (
        f"{base.splits.description}\n\n"
        f"A deliberately small Transformer learnt from the docstrings of Python's standard library, cut to 64 tokens. A "
        f"network that sees the whole text from both sides then learnt to tell real docstrings from the small model's own "
        f"draws, and tilts it. On the same held-out texts that saved {saved.value:.4f} nats per token, between {saved.low:.4f} "
        f"and {saved.high:.4f} (95 %), so perplexity changed by {math.expm1(-saved.value):+.1%}.\n\n"
        f"The network started from the weights of a larger plain model of the same text, whose own perplexity per token is "
        f"{larger.measured['perplexity per token'].value:.4g}: where you may replace the base, a larger one is the better buy; "
        f"an energy is for a base that you want to keep, and is worth most when it brings pretraining that the base lacks."
    )
    assert measured.tilted is not None
    plain, tilted = as_perplexity(measured.base), as_perplexity(measured.tilted)
    counted = {unit: int(count.sum()) for unit, count in base.splits.units.items()}
    rows = [{"per": unit, "base": plain[unit], "tilted": tilted[unit], "counted": counted[unit]} for unit in plain]
    models = {name: replace(nats[name], unit="") for name in ("base", "tilted")}
    perplexity = (
        f"{meaning('perplexity')} In brackets the 95 % interval for all texts like these; `counted` is how many were scored. "
        f"End symbols count, prompts do not."
    )
    exact = (
        "All were drawn from the base, and these are exact: log base is the base's log-probability in nats, energy is E(x) in "
        "nats (lower is likelier), share is the normalised weight of each among all of them."
    )
    return Section(
        "Docstrings: real text",
        text,
        [
            Picture(intervals(models, label="nats per token"), NATS),
            Table("Perplexity on held-out docstrings", rows, perplexity),
            _reliability_table("Can the numbers be trusted?", measured.log_z, measured.reliability[0]),
            Table(f"The likeliest five and the unlikeliest three of {CANDIDATES} candidates", ranked, exact),
        ],
    )


def _reliability_table(caption: str, log_z: Estimate | None, reliability: Reliability) -> Table:
    """How reliable the estimate of log Z is, each number with its meaning."""
    tail = "How heavy the tail of the weights is: below 0.5 all is well, above 0.7 no number of draws helps."
    rows = table_rows(
        ("what", "value", "meaning"),
        ("log Z", log_z, f"{meaning('log Z')} It is 0 for an energy that changes nothing."),
        ("effective sample size", f"{reliability.ess:,.0f} draws",
         f"{meaning('effective draws')} Known of these very draws, so it has no interval."),
        ("tail index k", f"{reliability.pareto_k:.2g} (no unit)", tail),
        ("verdict", reliability.verdict, meaning("reliability")),
        ("advice", reliability.advice, "What to do about it."),
    )  # fmt: skip
    about = "log Z normalises the tilted model; it is estimated from draws of the base."
    return Table(caption, rows, about)


def _next_steps(motif: Path, docstrings: Path) -> Section:
    commands = [
        f"esscher explore {motif}",
        f'esscher sample {docstrings} --prompt "Return the" --draws 4',
        f"esscher sample {docstrings} --energy {docstrings / 'energy'} --draws 4",
        f"esscher sample {motif} --energy {motif / 'energy'} --sampler.kind sir --sampler.num-candidates 2000 --draws 4",
        f"esscher sample {motif / 'student'} --draws 4",
        f"esscher measure {docstrings} --energy {docstrings / 'energy'} --data your.txt",
        f"esscher tilt {docstrings} --out runs/short --want words=6",
        f"esscher distil {docstrings} --energy runs/short --out runs/short-student",
        "esscher train --out runs/mine --data.source your.txt",
    ]
    about = "The models of this run are ordinary folders. From the same place:"
    return Section("How to go on", about, [TextLines("", commands)])
