"""E-Forcing (Anonymous, 2023) on translation, beside likelihood, label smoothing and scheduled sampling; heads of an LSTM.

Measured are BLEU and length of test translations, decoded greedily, by a beam and by sampling; exposure bias; and energies
that choose among the same candidates as the base alone: features of source and translation whose weights depend on the source,
and a network trained by noise contrast. Translations are kept in the run folder, one line a test pair, so that systems are
compared line by line.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.storage import read_tensors, write_file, write_tensors
from esscher.core.target import Tilted
from esscher.data.splits import read_pair_splits
from esscher.data.translation_pairs import Pairs
from esscher.decoding.beam_search import BeamSearch
from esscher.decoding.decoders import BestOfN, Decoder
from esscher.energies.features import ConditionalLogLinear, prompt_network
from esscher.energies.translation_features import copied_words, coverage, length_ratio, lexicon_of
from esscher.metrics.comparison import by_length, paired_comparison, word_ratio
from esscher.metrics.metric import get_metric
from esscher.objectives.likelihood import TiltedLikelihood
from esscher.papers.eforcing.language import exposure_columns, residual_energy
from esscher.papers.eforcing.language_studies import SMOOTH
from esscher.papers.eforcing.translation_studies import TranslationStudy, translation_studies
from esscher.papers.study import Row, StudyContext, means_over_seeds, run_with_seed
from esscher.reports.document import Section, Table, TextLines
from esscher.training.collectives import exists_on_main_process
from esscher.training.config import TrainingConfig
from esscher.training.trainer import Trainer
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
    translations: dict[tuple[str, int, str], list[str]] = {}
    for system, seed in context.names(study):
        run_dir = context.run_dir(study.name, system, seed)
        if not exists_on_main_process(run_dir / RESULTS):
            train_base(run_with_seed(study.models[system], run_dir, seed))
        for decoding, setup in study.decodings.items():
            model, rng = load(run_dir, setup.energy), SeededRng(seed)
            translations[system, seed, decoding] = decode_once(run_dir, decoding, model, setup.decoder, study.test, rng=rng)
    rows = []
    for (system, seed, decoding), lines in translations.items():
        baseline = None if system == study.baseline else translations[study.baseline, seed, decoding]
        results = json.loads((context.run_dir(study.name, system, seed) / RESULTS).read_text(encoding="utf8"))
        rows.append(
            {
                "pairs": study.name,
                "system": system,
                "seed": seed,
                "decoded": decoding,
                **bleu_columns(lines, baseline, study.test, rng=SeededRng(seed).stream(system, decoding)),
                "length": word_ratio(lines, study.test.targets),
                "perplexity": Estimate(**results["measured"]["perplexity per token"]),
            }
        )
    return rows


@torch.no_grad()
def decode_once(folder: Path, name: str, model: Model, decoder: Decoder, test: Pairs, *, rng: Rng) -> list[str]:
    """The translations of test pairs by one way to decode; they are kept in a file, one line each."""
    file = _file(folder, name)
    if not exists_on_main_process(file):
        say = current_progress().say
        translations = translate(
            model, test.sources, decoder, rng=rng,
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
    """The exposure-bias ratio of each system against the baseline; seed 0."""
    rows = []
    for system in study.models:
        if system != study.baseline:
            columns = exposure_columns(context, study, system, study.baseline, sequences)
            rows.append({"pairs": study.name, "system": system, "ratio": columns["ratio"], "bound": columns["bound"]})
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
            name: decode_once(folder, f"{name}-{decoding}", model, decoder, study.test, rng=SeededRng(0))
            for name, model in models.items()
        }
        for name, translations in lines.items():
            baseline = None if name == BASE_ALONE else lines[BASE_ALONE]
            bleu = bleu_columns(translations, baseline, study.test, rng=SeededRng(0).stream(name, decoding))
            rows.append({"pairs": study.name, "system": system, "energy": name, "decoded": decoding, **bleu})
    return rows


def _with_features(run_dir: Path, folder: Path, study: TranslationStudy, steps: int) -> Model:
    """The base tilted by features that are fitted to the validation pairs, which it did not learn from."""
    model = load(run_dir)
    pairs = read_pair_splits(study.data)[0]
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
    test, decoding = study.test, next(iter(study.decodings))
    by_system = {system: read_decoded(context.run_dir(study.name, system), decoding) for system in study.models}
    lengths = [
        {"system": system, "words": group.name, "lines": group.lines, "BLEU": group.value}
        for system, translations in by_system.items()
        for group in by_length(BLEU.count(translations, test.targets), test.sources, study.length_bounds, rng=SeededRng(0))
    ]
    metrics = [{"system": system, **_other_metrics(translations, test)} for system, translations in by_system.items()]
    examples: list[str] = []
    for number in range(0, len(test), max(1, len(test) // EXAMPLES)):
        examples += [f"source: {test.sources[number]}", f"reference: {test.targets[number]}"]
        examples += [*(f"{system}: {translations[number]}" for system, translations in by_system.items()), ""]
    parts = [
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
