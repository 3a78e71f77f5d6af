"""Energies on a translator: features beside the source whose weights depend on it, and a network that learns from the pairs.

Each chooses among the same candidates as the base alone: those of a beam, judged by score less energy, and draws.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from esscher.energies.conditional import ConditionalLogLinear, prompt_network
from esscher.energies.source_features import copied, coverage, length_ratio, lexicon_of
from esscher.objectives.tilted_likelihood import TiltedLikelihood
from esscher.randomness import Seeded
from esscher.recipes.eforcing_analyses import residual_energy
from esscher.recipes.rows import place_of
from esscher.recipes.translation_rows import judged, judged_by, read_lines, write_translations
from esscher.recipes.translation_studies import TranslationStudy
from esscher.settings.training import TrainingConfig
from esscher.settings.translate import DecodingConfig
from esscher.storage import read_tensors, write_tensors
from esscher.target import Tilted
from esscher.training.processes import is_made
from esscher.training.trainer import Trainer
from esscher.verbs.models import Model
from esscher.verbs.tilt import read_sets
from esscher.verbs.training_data import read_parallel
from esscher.verbs.translate import load_translator

ALONE, FEATURES, NETWORK = "base alone", "features, weights by the source", "network on base and energy"
WAYS = {"beam of 10": DecodingConfig("beam", beam=10), "best of 32 draws": DecodingConfig("best", draws=32)}
WEIGHTS = "weights.safetensors"


def energy_rows(study: TranslationStudy, system: str, out: Path, *, steps: int) -> list[dict[str, Any]]:
    """BLEU of a system's first seed with each energy, beside the base alone."""
    place, test, rows = place_of(out / study.name, system, 0), judged_by(study), []
    folder = out / study.name / "energies"
    models = {ALONE: load_translator(place), FEATURES: _features(place, folder / "features", study, steps)}
    models[NETWORK] = load_translator(place, residual_energy(place, folder / "network", steps))
    for way, decoding in WAYS.items():
        alone: list[str] = []
        for name, model in models.items():
            file = folder / f"test-{name}-{way}.txt".replace(" ", "-")
            if not is_made(file):
                write_translations(file, model, decoding, test, rng=Seeded(0))
            said = read_lines(file)
            alone = said if name == ALONE else alone
            told = judged(said, None if name == ALONE else alone, test, rng=Seeded(0).stream(name, way))
            rows.append({"pairs": study.name, "system": system, "energy": name, "decoded": way, **told})
    return rows


def _features(place: Path, folder: Path, study: TranslationStudy, steps: int) -> Model:
    """Fitted to the pairs that the base was chosen by, which it did not learn from."""
    model = load_translator(place)
    data = study.systems[next(iter(study.systems))].data
    assert data.target is not None
    learnt = read_parallel(data, data.target)[0]
    decode, lexicon = model.tokenizer.decode, lexicon_of(learnt.sources, learnt.targets)
    features = [length_ratio(decode), copied(decode), coverage(decode, lexicon)]
    network = prompt_network(model.base.space.vocab_size, len(features), rng=Seeded(0))
    target = Tilted(model.base, ConditionalLogLinear(features, network))
    if is_made(folder / WEIGHTS):
        network.load_state_dict(read_tensors(folder / WEIGHTS))
    else:
        training = TrainingConfig(steps=steps, batch_size=16, learning_rate=3e-3, log_every=max(1, steps // 10))
        Trainer(training)(TiltedLikelihood(draws=16), target, read_sets(model, None).validation, modules=network)
        write_tensors(folder / WEIGHTS, dict(network.state_dict()))
    return replace(model, target=target)
