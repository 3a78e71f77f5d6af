"""E-Forcing (Anonymous, 2023) on translation: likelihood and label smoothing, each with and without it.

The learning rate and the strength of E-Forcing are chosen on validation pairs, with label smoothing. `small` is French to
English from Tatoeba (manythings.org): short sentences of frequent words, few enough that systems converge. `smoke` translates
numbers into words. Energies on candidates (`smoke`, `paper`) and heads of an LSTM (`paper`) are no part of the published
tables.
"""

import io
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.reading import read_json_object
from esscher.core.storage import read_tensors, write_file, write_tensors
from esscher.core.target import Tilted
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.data.splits import read_pair_splits
from esscher.data.translation_pairs import Pairs
from esscher.decoding.beam_search import BeamSearch, Greedy
from esscher.decoding.decoders import BestOfN, Decoder, RandomDraw
from esscher.energies.features import ConditionalLogLinear, prompt_network
from esscher.energies.self_energy import SELF, normalised_self_energy
from esscher.energies.translation_features import copied_words, coverage, length_ratio, lexicon_of
from esscher.metrics.metric import LengthGroup, by_length, get_metric, paired_comparison, word_ratio
from esscher.networks.registry import NetworkConfig
from esscher.networks.seq2seq_config import AttentiveLstmConfig, EncoderDecoderConfig
from esscher.objectives.config import EForcingConfig, ScheduledSamplingConfig
from esscher.objectives.likelihood import TiltedLikelihood
from esscher.papers.eforcing.choosing import choose, with_learning_rate, with_strength
from esscher.papers.eforcing.language import EXPOSURE, FORCED, PLAIN, SCHEDULED, SMOOTH, exposure_columns, residual_energy
from esscher.papers.eforcing.translation_tables import (
    ONE_DRAW,
    curve_rows,
    loss_curves,
    metric_rows,
    over_pairs,
    own_energy_rows,
    setting_rows,
    verdict_rows,
)
from esscher.papers.sources import DATA, missing_message
from esscher.papers.study import Row, Rows, Study, StudyContext, cached_json, means_over_seeds, run_with_seed
from esscher.reports.document import Section, Table, TextLines
from esscher.reports.plots import save_figure
from esscher.samplers.ancestral import draw
from esscher.training.collectives import exists_on_main_process
from esscher.training.config import TrainingConfig
from esscher.training.trainer import Trainer
from esscher.workflow.config.train import TrainRun
from esscher.workflow.model import Model, load
from esscher.workflow.run_folder import RESULTS
from esscher.workflow.train import train_base
from esscher.workflow.translate import translate

WITH_FORCING = f", {FORCED}"
RATE, STRENGTH = "learning rate", f"strength of {FORCED}"
Decodings = Mapping[str, tuple[Decoder, str | None]]  # by name; the energy is named as on the command line


@dataclass(frozen=True, kw_only=True)
class TranslationStudy(Study[TrainRun]):
    """Sentence pairs and systems that are compared with `baseline`."""

    decodings: Decodings
    baseline: str = PLAIN
    rates: tuple[float, ...] = ()  # learning rates to choose from; none: as it is
    forcing_strengths: tuple[float, ...] = ()  # of E-Forcing, to choose from; none: as it is
    length_bounds: tuple[int, ...] = (25, 50)  # source lengths, in words, that separate the groups of BLEU by length
    test_limit: int | None = None  # test pairs, the first ones; None is all

    def baseline_of(self, system: str) -> str:
        """What a system is compared with: of E-Forcing the same without it, of others the study's baseline."""
        return system.removesuffix(WITH_FORCING) if system.endswith(WITH_FORCING) else self.baseline

    @property
    def data(self) -> DataConfig:
        """The sentence pairs of all systems."""
        return next(iter(self.models.values())).data

    @cached_property
    def test(self) -> Pairs:
        """The test pairs."""
        test = read_pair_splits(self.data).test
        return replace(test, sources=test.sources[: self.test_limit], targets=test.targets[: self.test_limit])


BLEU = get_metric("bleu")
DIRECTIONS = ("de to en", "en to de", "en to it", "it to en", "es to en", "en to es", "mean")
PAPER = [
    {"table": table, "decoded": decoded, "what": what, "without": without, "with E-Forcing": forced}
    for table, decoded, groups, columns in (
        ("2", "greedy", DIRECTIONS, ((34.00, 28.03, 29.13, 31.84, 40.32, 36.96, 33.38),
                                     (34.56, 28.38, 29.56, 32.11, 40.93, 37.56, 33.85))),
        ("2", "beam of 5", DIRECTIONS, ((34.93, 28.91, 30.04, 32.56, 41.01, 37.73, 34.20),
                                        (35.36, 29.11, 30.25, 32.82, 41.58, 38.19, 34.55))),
        ("5, es to en", "-", ("source of 0 to 24 words", "25 to 49 words", "50 words or more", "all"),
         (("not legible", 40.00, 37.38, 40.91), (43.84, 40.35, 38.07, 41.58))),
        ("4", "greedy", ("exposure, share of true words",), (("-",), ("above 50 % in every direction",))),
    )
    for what, without, forced in zip(groups, *columns, strict=True)
]  # fmt: skip
"""As far as the tables are legible in our copy: the first two rows by direction from their mean, the labels of systems lost."""
MEANING = (
    "BLEU by sacrebleu, with the interval for other test sentences; `gained` is against the same without E-Forcing, of label "
    "smoothing against likelihood, among heads against the softmax, sentence by sentence, with the p-value of approximate "
    "randomisation. Length is the number of words over that of the references."
)
CURVES = (
    "The lowest validation loss of a token in nats (likelihood, without smoothing), how far it fell in the last quarter of the "
    "epochs, and how far it rose after the lowest."
)
RATIO = (
    "Ratio: how often the true token is likelier after the system's own words than after those of the same without E-Forcing."
)


def run(context: StudyContext) -> dict[str, Any]:
    """All systems of the scale, with every seed."""
    smoke = context.scale == "smoke"
    studies, missing = translation_studies(context.scale, context.out)
    studies = [with_chosen_settings(context, study) for study in studies]
    rows = [row for study in studies for row in study_rows(context, study)]
    lengths = [row for study in studies for row in length_rows(context, study)]
    exposure = [row for study in studies for row in exposure_rows(context, study, 20 if smoke else 1_000)]
    with_energies = studies and context.scale != "small"
    energies = energy_rows(context, studies[0], SMOOTH, steps=4 if smoke else 300) if with_energies else []
    over = means_over_seeds(rows, ("pairs", "system", "decoded"), ("BLEU", "gained", "perplexity"))
    lengths_over = means_over_seeds(lengths, ("pairs", "system", "decoded", "words"), ("BLEU", "gained"))
    exposure_over = means_over_seeds(exposure, ("pairs", "system"), ("ratio",))
    settings = [row for study in studies for row in setting_rows(context, study.name, (RATE, STRENGTH))]
    curves = [row for study in studies for row in curve_rows(context, study.name, context.names(study))]
    curves_over = means_over_seeds(curves, ("pairs", "system"))
    metrics = [row for study in studies for row in _metric_rows(context, study)]
    metrics_over = means_over_seeds(metrics, ("pairs", "system", "metric"), ("value", "gained"))
    own = means_over_seeds(own_energy_rows(rows), ("pairs", "system", "decoded"))
    verdicts = verdict_rows(_claims(rows, over, lengths_over, exposure_over, own))
    results = [
        Table("Verdicts", verdicts, "Open if the interval over seeds holds what would be without effect."),
        Table("Systems", rows),
        Table("Over seeds", over),
        Table("By words of the source, over seeds", lengths_over),
        Table("Other metrics, beam of 5, over seeds", metrics_over),
        Table("Own draws chosen by the own energy, over seeds", own, "Gained over one draw of the same system."),
        Table("Validation losses, over seeds", curves_over, CURVES),
        Table("Settings", settings, "Chosen by the validation loss of label smoothing, with a seed that no row has."),
        Table("Exposure", exposure, f"{RATIO} {EXPOSURE}"),
        Table("Exposure, over seeds", exposure_over),
        Table("Energies", energies, "Candidates of the base, chosen with and without an energy; seed 0 alone."),
    ]
    for study in studies[:1]:
        save_figure(loss_curves(context, study.name, context.names(study)), context.out / "eforcing_translation.png")
    about = "One network and set of pairs, and several training objectives; all are measured on the same test sentences."
    sections = [Section("Results", MEANING, results), *(_section(context, study) for study in studies)]
    by_length = {"by length": lengths, "by length over seeds": lengths_over}
    measured = {"exposure": exposure, "exposure over seeds": exposure_over, "energies": energies}
    measured |= {"metrics over seeds": metrics_over, "own energy over seeds": own, "verdicts": verdicts}
    measured |= {"curves": curves, "curves over seeds": curves_over, "settings": settings}
    tables = {"rows": rows, "over seeds": over, **by_length, **measured, "paper": PAPER}
    return context.publish("Translation", about, sections, tables, missing)


def _metric_rows(context: StudyContext, study: TranslationStudy) -> list[Row]:
    """Metrics other than BLEU of translations by the beam."""

    def decoded(system: str, seed: int) -> list[str]:
        return read_decoded(context.run_dir(study.name, system, seed), "beam of 5")

    return metric_rows(study.name, context.names(study), study.baseline_of, decoded, study.test.targets)


def _claims(rows: Rows, over: Rows, lengths: Rows, exposure: Rows, own: Rows) -> dict[str, tuple[Rows, str, float]]:
    """The rows over seeds that speak of each claim of the paper on E-Forcing, their column, and its value without effect."""
    forced = [name + WITH_FORCING for name in (PLAIN, SMOOTH)]

    def of_forcing(table: Rows) -> Rows:
        return [row for row in table if row["system"] in forced]

    standard = [row for row in rows if row["decoded"] in STANDARD_DECODINGS]
    both = over_pairs(standard, ("pairs", "decoded"), "gained", forced)
    longest = lengths[-1]["words"] if lengths else None  # groups ascend
    return {
        "BLEU": ([*(row for row in of_forcing(over) if row["decoded"] in STANDARD_DECODINGS), *both], "gained", 0.0),
        "long sources": ([row for row in of_forcing(lengths) if row["words"] == longest], "gained", 0.0),
        "exposure": (of_forcing(exposure), "ratio", 0.5),
        "choosing by the own energy": (of_forcing(own), "gained", 0.0),
    }


def with_chosen_settings(context: StudyContext, study: TranslationStudy) -> TranslationStudy:
    """The study with the learning rate that label smoothing has the lowest validation loss with, and then with the strength
    that label smoothing with E-Forcing has it with."""
    models = dict(study.models)
    if study.rates:
        candidates = {rate: with_learning_rate(models[SMOOTH], rate) for rate in study.rates}
        rate = choose(context, study.name, RATE, candidates)
        models = {name: with_learning_rate(run, rate) for name, run in models.items()}
    if study.forcing_strengths:
        forced = models[SMOOTH + WITH_FORCING]
        candidates = {strength: with_strength(forced, strength) for strength in study.forcing_strengths}
        strength = choose(context, study.name, STRENGTH, candidates)
        models = {name: with_strength(one, strength) if name.endswith(WITH_FORCING) else one for name, one in models.items()}
    return replace(study, models=models)


def study_rows(context: StudyContext, study: TranslationStudy) -> list[Row]:
    """Train and decode every system with every seed; then one row for each seed, system and decoding."""
    translations: dict[tuple[str, int, str], list[str]] = {}
    for system, seed in context.names(study):
        run_dir = context.run_dir(study.name, system, seed)
        if not exists_on_main_process(run_dir / RESULTS):
            train_base(run_with_seed(study.models[system], run_dir, seed))
        for decoding, (decoder, energy) in study.decodings.items():
            model = partial(_load, run_dir, energy, rng=SeededRng(seed).stream(DIVIDED))
            translations[system, seed, decoding] = decode_once(
                run_dir, decoding, model, decoder, study.test, rng=SeededRng(seed)
            )
    rows = []
    for (system, seed, decoding), lines in translations.items():
        other = study.baseline_of(system)
        baseline = None if system == other else translations[other, seed, decoding]
        results = read_json_object(context.run_dir(study.name, system, seed) / RESULTS)
        rows.append(
            {
                "pairs": study.name, "system": system, "seed": seed, "decoded": decoding,
                **bleu_columns(lines, baseline, study.test, rng=SeededRng(seed).stream(system, decoding)),
                "length": word_ratio(lines, study.test.targets),
                "perplexity": Estimate(**results["measured"]["perplexity per token"]),
            }
        )  # fmt: skip
    return rows


def length_rows(context: StudyContext, study: TranslationStudy) -> list[Row]:
    """BLEU by words of the source, and what is gained, for every system, seed and standard decoding."""
    rows = []
    for (system, seed), decoding in product(context.names(study), STANDARD_DECODINGS):
        values = {
            name: {group.name: group for group in _by_length(context, study, name, seed, decoding)}
            for name in (system, study.baseline_of(system))
        }
        for name, group in values[system].items():
            plain = values[study.baseline_of(system)][name].value.value
            gained = None if system == study.baseline_of(system) else Estimate.exact(group.value.value - plain, unit="BLEU")
            about = {"pairs": study.name, "system": system, "seed": seed, "decoded": decoding}
            rows.append({**about, "words": name, "lines": group.lines, "BLEU": group.value, "gained": gained})
    return rows


def _by_length(context: StudyContext, study: TranslationStudy, system: str, seed: int, decoding: str) -> Sequence[LengthGroup]:
    counts = BLEU.count(read_decoded(context.run_dir(study.name, system, seed), decoding), study.test.targets)
    return by_length(counts, study.test.sources, study.length_bounds, rng=SeededRng(seed))


def _load(run_dir: Path, energy: str | None, *, rng: Rng) -> Model:
    """The model of a run, tilted by the energy that a decoding names."""
    if energy != DIVIDED:
        return load(run_dir, energy)
    model = load(run_dir)
    draws, _ = draw(model.base, model.training_splits().validation.prompts(), 1, rng=rng)
    return replace(model, target=Tilted(model.base, normalised_self_energy(model.base, draws)))


@torch.no_grad()
def decode_once(folder: Path, name: str, model: Callable[[], Model], decoder: Decoder, test: Pairs, *, rng: Rng) -> list[str]:
    """The translations of test pairs by one way to decode; they are kept in a file, one line each."""
    file = _file(folder, name)
    if not exists_on_main_process(file):
        say = current_progress().say
        translations = translate(
            model(), test.sources, decoder, rng=rng,
            say=lambda count: say(f"{file.stem}: {count:,} of {len(test):,} test sentences"),
        )  # fmt: skip
        write_file(file, "".join(f"{translation.text}\n" for translation in translations).encode())
    return read_decoded(folder, name)


def read_decoded(folder: Path, name: str) -> list[str]:
    """The translations that `decode_once` has kept."""
    return _file(folder, name).read_text(encoding="utf8").split("\n")[:-1]


def _file(folder: Path, name: str) -> Path:
    return folder / f"test-{name.replace(' ', '-')}.txt"


def bleu_columns(translations: Sequence[str], baseline: Sequence[str] | None, test: Pairs, *, rng: Rng) -> Row:
    """BLEU of translations, and their gain against those of a baseline, if there is one, line by line."""
    counts = BLEU.count(translations, test.targets)
    gained = None if baseline is None else paired_comparison(counts, BLEU.count(baseline, test.targets), rng=rng)
    return {
        "BLEU": counts.estimate(rng=rng),
        "gained": None if gained is None else gained.difference,
        "p-value": None if gained is None else gained.p_value,
    }


def exposure_rows(context: StudyContext, study: TranslationStudy, sequences: int) -> list[Row]:
    """The exposure-bias ratio of each system, with every seed, against what it is compared with."""
    rows = []
    for system, seed in context.names(study):
        other = study.baseline_of(system)
        if system != other:
            file = context.run_dir(study.name, system, seed) / "exposure.json"
            columns = cached_json(file, partial(exposure_columns, context, study.name, system, other, sequences, seed))
            about = {"pairs": study.name, "system": system, "against": other, "seed": seed}
            rows.append({**about, "ratio": columns["ratio"], "bound": columns["bound"]})
    return rows


BASE_ALONE, FEATURES, NETWORK = "base alone", "features, weights by the source", "network on base and energy"
ENERGY_DECODERS: dict[str, Decoder] = {"beam of 10": BeamSearch(10), "best of 32 draws": BestOfN(32)}
WEIGHTS = "weights.safetensors"


def energy_rows(context: StudyContext, study: TranslationStudy, system: str, *, steps: int) -> list[Row]:
    """BLEU of a system with each energy, beside the base alone; seed 0."""
    run_dir, folder, rows = context.run_dir(study.name, system), context.out / study.name / "energies", []
    models = {
        BASE_ALONE: load(run_dir),
        FEATURES: _with_features(run_dir, folder / "features", study, steps),
        NETWORK: load(run_dir, residual_energy(run_dir, folder / "network", steps)),
    }
    for decoding, decoder in ENERGY_DECODERS.items():
        lines = {
            name: decode_once(
                folder, f"{name}-{decoding}", partial(models.__getitem__, name), decoder, study.test, rng=SeededRng(0)
            )
            for name in models
        }
        for name, translations in lines.items():
            baseline = None if name == BASE_ALONE else lines[BASE_ALONE]
            bleu = bleu_columns(translations, baseline, study.test, rng=SeededRng(0).stream(name, decoding))
            rows.append({"pairs": study.name, "system": system, "energy": name, "decoded": decoding, **bleu})
    return rows


def _with_features(run_dir: Path, folder: Path, study: TranslationStudy, steps: int) -> Model:
    """The base tilted by features that are fitted to the validation pairs, which it did not learn from."""
    model = load(run_dir)
    pairs = read_pair_splits(study.data).train
    decode, lexicon = model.tokenizer.decode, lexicon_of(pairs.sources, pairs.targets)
    features = [length_ratio(decode), copied_words(decode), coverage(decode, lexicon)]
    network = prompt_network(model.base.space.vocab_size, len(features), rng=SeededRng(0))
    target = Tilted(model.base, ConditionalLogLinear(features, network))
    if exists_on_main_process(folder / WEIGHTS):
        network.load_state_dict(read_tensors(folder / WEIGHTS))
    else:
        training = TrainingConfig(steps=steps, batch_size=16, learning_rate=3e-3, log_every=max(1, steps // 10))
        Trainer(training)(TiltedLikelihood(draws=16), target, model.training_splits().validation, modules=network)
        write_tensors(folder / WEIGHTS, dict(network.state_dict()))
    return replace(model, target=target)


def _section(context: StudyContext, study: TranslationStudy) -> Section:
    """Validation losses and example translations; seed 0, the first decoding."""
    test, decoding = study.test, next(iter(study.decodings))
    by_system = {system: read_decoded(context.run_dir(study.name, system), decoding) for system in study.models}
    examples: list[str] = []
    for number in range(0, len(test), max(1, len(test) // 12)):
        examples += [f"source: {test.sources[number]}", f"reference: {test.targets[number]}"]
        examples += [*(f"{system}: {translations[number]}" for system, translations in by_system.items()), ""]
    return Section(
        study.name,
        "",
        [
            *context.learning_curves(study.name, study.models, "validation, nats per token"),
            TextLines(f"Translations, {decoding}", examples),
        ],
    )


TATOEBA = DATA / "manythings/fra-eng.zip"
EPOCHS = 12  # of small
MOST_WORDS, FREQUENT = 10, 500  # of a French sentence, marks counted; of a language, which are kept
WORD = re.compile(r"\w+'?|[^\w\s]")  # an elided word with its apostrophe; a mark
UNITS = ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
         "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")  # fmt: skip
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
DIVIDED = "self, divided by Z_k"  # with the draws after validation sources
STANDARD_DECODINGS: Decodings = {"greedy": (Greedy(), None), "beam of 5": (BeamSearch(), None)}
ALL_DECODINGS: Decodings = {
    **STANDARD_DECODINGS,
    ONE_DRAW: (RandomDraw(), None),
    **{f"one of {count} draws by the own energy": (RandomDraw(num_candidates=count), SELF) for count in (5, 10)},
    "one of 10 draws by the own energy, divided by Z_k": (RandomDraw(num_candidates=10), DIVIDED),
}


def translation_studies(scale: str, out: Path) -> tuple[list[TranslationStudy], list[str]]:
    """The studies of a scale, and a message for each data set that was not found."""
    if scale == "smoke":
        return [_smoke(out)], []
    if scale == "paper":
        studies, missing = _published()
        heads = [_heads(_french_english(out))] if TATOEBA.exists() else []
        return [*studies, *heads], [*missing, *([] if heads else [missing_message(TATOEBA)])]
    if not TATOEBA.exists():
        return [], [missing_message(TATOEBA)]
    run = _french_english(out)
    systems = _systems(run, EForcingConfig(after_epochs=EPOCHS // 3))
    main = TranslationStudy(
        name="French to English", models=systems, decodings=ALL_DECODINGS, length_bounds=(6, 9), rates=(2e-3, 4e-3),
        forcing_strengths=(0.3, 1.0, 3.0),
    )  # fmt: skip
    return [main], []


def _french_english(out: Path) -> TrainRun:
    """The run of likelihood on the pairs of `small`."""
    data = _write_pairs(out / "french-english.tsv", lambda: french_english(TATOEBA), held_out=0.08)
    base = EncoderDecoderConfig(width=64, layers=2, heads=4, feedforward=256, dropout=0.1)
    training = TrainingConfig(
        epochs=EPOCHS, batch_tokens=1_000, learning_rate=2e-3, warmup_steps=200, schedule="cosine", log_every=100
    )
    return _run(data, TokenizerConfig("word", 1_000), 24, base, training)


def _run(
    data: DataConfig, tokenizer: TokenizerConfig, max_length: int, base: NetworkConfig, training: TrainingConfig
) -> TrainRun:
    return TrainRun("", data=data, tokenizer=tokenizer, length=LengthConfig(max_length), base=base, training=training)


def _write_pairs(file: Path, pairs: Callable[[], Iterable[tuple[str, str]]], held_out: float = 0.05) -> DataConfig:
    """Pairs in the first two columns of a file, which is written if it does not exist yet."""
    if not file.exists():
        write_file(file, "".join(f"{source}\t{target}\n" for source, target in pairs()).encode())
    return DataConfig(str(file), target="2", column="1", held_out=held_out)


def _systems(run: TrainRun, forcing: EForcingConfig) -> dict[str, TrainRun]:
    """Likelihood and label smoothing, each without and with E-Forcing."""
    smooth = replace(run, training=replace(run.training, label_smoothing=0.1))
    plain = {PLAIN: run, SMOOTH: smooth}
    return plain | {f"{name}{WITH_FORCING}": replace(one, objective=forcing) for name, one in plain.items()}


def _heads(run: TrainRun) -> TranslationStudy:
    """A decoder with a softmax, a mixture of contexts and one of softmaxes, of about one size, trained by likelihood alone:
    label smoothing needs every logit of every component, five times the work."""
    lstm = AttentiveLstmConfig(width=160, layers=1, embedding=160, dropout=0.2)
    bases = {
        "softmax": lstm,
        "MoC": replace(lstm, output="moc", components=5, width=146, embedding=146),
        "MoS": replace(lstm, output="mos", components=5, width=146, embedding=146),
    }
    systems = {name: replace(run, base=base) for name, base in bases.items()}
    return TranslationStudy(
        name="French to English, heads of an LSTM", models=systems, decodings=STANDARD_DECODINGS, baseline="softmax",
        length_bounds=(6, 9),
    )  # fmt: skip


def _smoke(out: Path) -> TranslationStudy:
    pairs = [(" ".join(str(number)), number_words(number)) for number in range(1, 1_000)]
    data = _write_pairs(out / "numbers.tsv", lambda: pairs)
    base = EncoderDecoderConfig(width=16, layers=1, heads=2, feedforward=32, dropout=0.0)
    training = TrainingConfig(steps=30, batch_tokens=800, learning_rate=1e-2, evaluate_every=15, log_every=10)
    run = _run(data, TokenizerConfig("word", 60), 12, base, training)
    systems = _systems(run, EForcingConfig(after_steps=15))
    return TranslationStudy(
        name="numbers to words",
        models=systems,
        decodings=ALL_DECODINGS,
        length_bounds=(2, 3),
        test_limit=20,
        forcing_strengths=(0.3, 1.0),
    )


def _published() -> tuple[list[TranslationStudy], list[str]]:
    """Six directions of IWSLT14, German also from the hub, and WMT16, with the published sizes."""
    base = EncoderDecoderConfig(width=512, layers=6, heads=4, feedforward=1_024, dropout=0.3)
    training = TrainingConfig(
        epochs=200, batch_tokens=4_096, optimizer="adam", learning_rate=5e-4, warmup_steps=4_000, schedule="inverse-sqrt",
        max_grad_norm=None, patience=20,
    )  # fmt: skip
    forcing = EForcingConfig(after_epochs=15)
    studies, missing, others = [], [], ("de", "es", "it")
    for source, target in [*((other, "en") for other in others), *(("en", other) for other in others)]:
        folder = DATA / "iwslt14" / f"{target if source == 'en' else source}-en"
        if (folder / f"train.{source}").exists():  # as fairseq's prepare-iwslt14.sh leaves them
            train, validation, test = (str(folder / f"{part}.{source}") for part in ("train", "valid", "test"))
            data = DataConfig(train, validation=validation, test=test, target=target)
        elif "de" in (source, target):
            name = "bbaaaa/iwslt14-de-en"
            data = DataConfig(name, validation=f"{name}::validation", test=f"{name}::test", column=source, target=target)
        else:
            missing.append(f"{source} to {target}: {folder} holds no train, valid and test files of fairseq's script.")
            continue
        systems = _systems(_run(data, TokenizerConfig("bpe", 10_000), 175, base, training), forcing)
        systems[SCHEDULED] = replace(systems[SMOOTH], objective=ScheduledSamplingConfig(after_epochs=15))  # Table 11
        studies.append(TranslationStudy(name=f"IWSLT14 {source} to {target}", models=systems, decodings=ALL_DECODINGS))
    name = "wmt/wmt16:de-en"
    wmt = DataConfig(name, validation=f"{name}:validation", test=f"{name}:test", column="en", target="de")
    large = EncoderDecoderConfig(width=512, layers=6, heads=8, feedforward=2_048, dropout=0.1)
    run = _run(wmt, TokenizerConfig("bpe", 32_000), 128, large, replace(training, epochs=20))
    studies.append(TranslationStudy(name="WMT16 en to de", models=_systems(run, forcing), decodings=STANDARD_DECODINGS))
    return studies, missing


def french_english(archive: Path) -> list[tuple[str, str]]:
    """Pairs of different French and English sentences, each with its first translation, in lower case and words apart: those
    with at most `MOST_WORDS` words of French, all words among the `FREQUENT` most frequent ones of their language there."""
    with zipfile.ZipFile(archive) as whole:
        rows = [line.split("\t")[:2] for line in io.TextIOWrapper(whole.open("fra.txt"), encoding="utf8")]
    pairs, seen = [], set[tuple[str, ...]]()
    for pair in rows:
        english, french = (tuple(WORD.findall(text.lower().replace("\u2019", "'"))) for text in pair)
        if len(french) <= MOST_WORDS and seen.isdisjoint((english, french)):
            seen |= {english, french}
            pairs.append((french, english))
    counts = [Counter(word for text in side for word in text) for side in zip(*pairs, strict=True)]
    frequent = [{word for word, _ in count.most_common(FREQUENT)} for count in counts]
    kept = [pair for pair in pairs if all(known.issuperset(side) for side, known in zip(pair, frequent, strict=True))]
    return [(" ".join(french), " ".join(english)) for french, english in kept]


def number_words(number: int) -> str:
    """A number below 1,000 in English words."""
    hundreds, rest = divmod(number, 100)
    words = [UNITS[hundreds], "hundred"] if hundreds else []
    words += [UNITS[rest]] if rest < 20 else [TENS[rest // 10], UNITS[rest % 10]]
    return " ".join(word for word in words if word)
