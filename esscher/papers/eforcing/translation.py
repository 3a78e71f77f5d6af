"""E-Forcing (Anonymous, 2023) on translation, beside likelihood, label smoothing and scheduled sampling; heads of an LSTM.

Measured are BLEU and length of test translations, decoded greedily, by a beam and by sampling; exposure bias; and energies
that choose among the same candidates as the base alone: features of source and translation whose weights depend on the source,
and a network trained by noise contrast. Translations are kept in the run folder, one line a test pair, so that systems are
compared line by line.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.storage import read_tensors, write_file, write_tensors
from esscher.core.target import Tilted
from esscher.data.config import DataConfig
from esscher.data.splits import read_pair_splits
from esscher.data.translation_pairs import Pairs
from esscher.decoding.beam_search import BeamSearch
from esscher.decoding.decoders import BestOfN, Decoder
from esscher.energies.features import ConditionalLogLinear, prompt_network
from esscher.energies.translation_features import copied_words, coverage, length_ratio, lexicon_of
from esscher.metrics.comparison import by_length, paired_comparison, word_ratio
from esscher.metrics.metric import get_metric
from esscher.objectives.likelihood import TiltedLikelihood
from esscher.papers.eforcing.language import residual_energy
from esscher.papers.eforcing.language_studies import SMOOTH
from esscher.papers.eforcing.translation_studies import TranslationStudy, translation_studies
from esscher.papers.study import Row, StudyContext, means_over_seeds, run_with_seed
from esscher.reports.document import Picture, Section, Table, TextLines
from esscher.training.collectives import exists_on_main_process
from esscher.training.config import TrainingConfig
from esscher.training.trainer import Trainer
from esscher.workflow.base_analyses import analyse_exposure
from esscher.workflow.config.analyse import ExposureConfig
from esscher.workflow.model import Model, load
from esscher.workflow.run_folder import RESULTS
from esscher.workflow.train import train_base
from esscher.workflow.translate import translate

BLEU = get_metric("bleu")
PAPER = [{"pairs": "IWSLT14, six directions", "result": "E-Forcing gains about 0.6 to 1 BLEU, greedily and by a beam of 5"}]
EXAMPLES = 12
MEANING = (
    "BLEU by sacrebleu, with the interval for other test sentences; `gained` is against label smoothing alone, or among heads "
    "against the softmax, sentence by sentence, with the p-value of approximate randomisation. Length is the number of words "
    "over that of the references."
)
RATIO = (
    "How often the true word is likelier after the system's own words than after those of the baseline; bound: a lower bound "
    "of the KL divergence of the system's own prefixes from the data's, in nats (0 or less says nothing)."
)


def run(context: StudyContext) -> dict[str, Any]:
    """All systems of the scale, with every seed."""
    smoke = context.scale == "smoke"
    studies, missing = translation_studies(context.scale, context.out)
    rows = [row for study in studies for row in study_rows(context, study)]
    exposure = [row for study in studies for row in exposure_rows(context, study, 20 if smoke else 400)]
    energies = energy_rows(context, studies[0], SMOOTH, steps=4 if smoke else 300) if studies else []
    over = means_over_seeds(rows, ("pairs", "system", "decoded"), ("BLEU", "gained"))
    results = [
        Table("Systems", rows),
        Table("Over seeds", over),
        Table("Exposure", exposure, RATIO),
        Table("Energies", energies, "Candidates of the base, chosen with and without an energy."),
    ]
    about = "One network and set of pairs, and several training objectives; all are measured on the same test sentences."
    sections = [Section("Results", MEANING, results), *(_section(context, study) for study in studies)]
    tables = {"rows": rows, "over seeds": over, "exposure": exposure, "energies": energies, "paper": PAPER}
    return context.publish("Translation", about, sections, tables, missing)


def study_rows(context: StudyContext, study: TranslationStudy) -> list[Row]:
    """Train and decode every system with every seed; then one row for each seed, system and decoding."""
    names = context.names(study)
    for system, seed in names:
        train_and_decode(context, study, system, seed)
    test, rows = test_pairs(study), []
    for system, seed in names:
        run_dir = context.run_dir(study.name, system, seed)
        measured = json.loads((run_dir / RESULTS).read_text(encoding="utf8"))["measured"]
        for decoding in study.decodings:
            translations, rng = read_decoded(run_dir, decoding), SeededRng(seed).stream(system, decoding)
            baseline = None
            if system != study.baseline:
                baseline = read_decoded(context.run_dir(study.name, study.baseline, seed), decoding)
            rows.append(
                {
                    "pairs": study.name,
                    "system": system,
                    "seed": seed,
                    "decoded": decoding,
                    **bleu_columns(translations, baseline, test, rng=rng),
                    "length": word_ratio(translations, test.targets),
                    "perplexity": Estimate(**measured["perplexity per token"]),
                }
            )
    return rows


def train_and_decode(context: StudyContext, study: TranslationStudy, system: str, seed: int) -> None:
    """Train a system and decode the test pairs, each unless its files exist."""
    run_dir = context.run_dir(study.name, system, seed)
    if not exists_on_main_process(run_dir / RESULTS):
        train_base(run_with_seed(study.models[system], run_dir, seed))
    test = test_pairs(study)
    for name, setup in study.decodings.items():
        if not exists_on_main_process(_file(run_dir, name)):
            model = load(run_dir, setup.energy)
            write_translations(_file(run_dir, name), model, setup.decoder, test, rng=SeededRng(seed))


def test_pairs(study: TranslationStudy) -> Pairs:
    """The test pairs of a study."""
    test = _pairs(next(iter(study.models.values())).data)
    return replace(test, sources=test.sources[: study.test_limit], targets=test.targets[: study.test_limit])


@cache
def _pairs(data: DataConfig) -> Pairs:
    return read_pair_splits(data)[2]


@torch.no_grad()
def write_translations(file: Path, model: Model, decoder: Decoder, test: Pairs, *, rng: Rng) -> None:
    """Translate the sources of test pairs, one line each."""
    say = current_progress().say
    translations = translate(
        model, test.sources, decoder, rng=rng,
        say=lambda count: say(f"{file.stem}: {count:,} of {len(test):,} test sentences"),
    )  # fmt: skip
    write_file(file, "".join(f"{translation.text}\n" for translation in translations).encode())


def read_decoded(run_dir: Path, decoding: str) -> list[str]:
    """The translations of the test pairs by a system."""
    return _read_lines(_file(run_dir, decoding))


def _read_lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf8").split("\n")[:-1]


def _file(run_dir: Path, decoding: str) -> Path:
    return run_dir / f"test-{decoding.replace(' ', '-')}.txt"


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
    """The exposure-bias ratio of each system against the baseline; seed 0."""
    rows, baseline = [], context.run_dir(study.name, study.baseline)
    settings = ExposureConfig(sequences=sequences, against=str(baseline))
    for system in study.models:
        if system != study.baseline:
            measured = analyse_exposure(load(context.run_dir(study.name, system)), settings)
            assert measured.ratio is not None
            row = {"pairs": study.name, "system": system, "ratio": measured.ratio.ratio, "bound": measured.model.mean}
            rows.append(row)
    return rows


BASE_ALONE, FEATURES, NETWORK = "base alone", "features, weights by the source", "network on base and energy"
ENERGY_DECODERS: dict[str, Decoder] = {"beam of 10": BeamSearch(10), "best of 32 draws": BestOfN(32)}
WEIGHTS = "weights.safetensors"


def energy_rows(context: StudyContext, study: TranslationStudy, system: str, *, steps: int) -> list[Row]:
    """BLEU of a system with each energy, beside the base alone; seed 0."""
    run_dir, test, rows = context.run_dir(study.name, system), test_pairs(study), []
    folder = context.out / study.name / "energies"
    models = {BASE_ALONE: load(run_dir), FEATURES: _with_features(run_dir, folder / "features", study, steps)}
    models[NETWORK] = load(run_dir, residual_energy(run_dir, folder / "network", steps))
    for decoding, decoder in ENERGY_DECODERS.items():
        baseline: list[str] | None = None
        for name, model in models.items():
            file = folder / f"test-{name}-{decoding}.txt".replace(" ", "-")
            if not exists_on_main_process(file):
                write_translations(file, model, decoder, test, rng=SeededRng(0))
            translations = _read_lines(file)
            bleu = bleu_columns(translations, baseline, test, rng=SeededRng(0).stream(name, decoding))
            rows.append({"pairs": study.name, "system": system, "energy": name, "decoded": decoding, **bleu})
            baseline = translations if name == BASE_ALONE else baseline
    return rows


def _with_features(run_dir: Path, folder: Path, study: TranslationStudy, steps: int) -> Model:
    """The base tilted by features that are fitted to the validation pairs, which it did not learn from."""
    model = load(run_dir)
    data = study.models[next(iter(study.models))].data
    pairs = read_pair_splits(data)[0]
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
    """BLEU by length, other metrics, validation losses and example translations; seed 0, the first decoding."""
    test, decoding = test_pairs(study), next(iter(study.decodings))
    by_system = {system: read_decoded(context.run_dir(study.name, system), decoding) for system in study.models}
    lengths: list[Row] = []
    for system, translations in by_system.items():
        counts = BLEU.count(translations, test.targets)
        groups = by_length(counts, test.sources, study.length_bounds, rng=SeededRng(0))
        lengths += [{"system": system, "words": one.name, "lines": one.lines, "BLEU": one.value} for one in groups]
    metrics = [{"system": system, **_other_metrics(translations, test)} for system, translations in by_system.items()]
    examples: list[str] = []
    for number in range(0, len(test), max(1, len(test) // EXAMPLES)):
        examples += [f"source: {test.sources[number]}", f"reference: {test.targets[number]}"]
        examples += [*(f"{system}: {translations[number]}" for system, translations in by_system.items()), ""]
    parts: list[Table | Picture | TextLines] = [
        Table(f"BLEU by words of the source, {decoding}", lengths),
        Table(f"Other metrics, {decoding}", metrics),
        *context.learning_curves(study.name, study.models, "validation, nats per token"),
        TextLines(f"Translations, {decoding}", examples),
    ]
    return Section(study.name, "", parts)


def _other_metrics(translations: Sequence[str], test: Pairs) -> dict[str, Estimate | None]:
    """Metrics other than BLEU; METEOR is None unless its dictionary is installed."""
    scores: dict[str, Estimate | None] = {}
    for name in ("chrf", "ter", "rougeL", "meteor"):
        try:
            scores[name] = get_metric(name).score(translations, test.targets, rng=SeededRng(0).stream(name))
        except ImportError:
            scores[name] = None
    return scores
