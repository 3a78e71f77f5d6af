"""Better autoregressive sequence models by energies over whole sequences: p(x) ~ a(x) exp(-E(x)).

The names below are what most programs need, loaded when first used: `from esscher import Tilted, Importance`.
Everything else is imported from its own module.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "esscher.space": ("Space", "Sequences", "sequences", "prompts_of", "empty_prompts"),
    "esscher.randomness": ("Seeded",),
    "esscher.target": ("Base", "Energy", "Tilted"),
    "esscher.draws": ("Draws", "Sampler"),
    "esscher.estimate": ("Estimate",),
    "esscher.objective": ("Loss", "Objective"),
    "esscher.exact.languages": ("motif_process", "white_noise"),
    "esscher.exact.table": ("tabulate",),
    "esscher.bases.causal_lm": ("CausalLM", "causal_lm"),
    "esscher.bases.hidden_markov": ("HiddenMarkov", "fit_hidden_markov"),
    "esscher.bases.ngram": ("fit_ngram",),
    "esscher.bases.seq2seq_lm": ("Seq2SeqLM", "seq2seq_lm"),
    "esscher.bases.truncated": ("Truncated",),
    "esscher.energies.building": ("build_energy",),
    "esscher.energies.cached": ("cached",),
    "esscher.energies.conditional": ("ConditionalLogLinear",),
    "esscher.energies.config": ("EnergyConfig",),
    "esscher.energies.declaration": ("Declared",),
    "esscher.energies.declared": ("declared_feature",),
    "esscher.energies.features": ("Feature", "LogLinear", "contains", "of_text", "of_texts", "of_tokens"),
    "esscher.energies.motif_features": ("motif_features",),
    "esscher.energies.parsing": ("parse_feature",),
    "esscher.energies.saved": ("load_energy",),
    "esscher.samplers.ancestral": ("Ancestral",),
    "esscher.samplers.exhaustive": ("Exhaustive",),
    "esscher.samplers.importance": ("Importance",),
    "esscher.samplers.metropolis": ("Metropolis",),
    "esscher.samplers.particles": ("Particles",),
    "esscher.samplers.pool": ("AdaptivePool", "Pool"),
    "esscher.samplers.rejection": ("QuasiRejection", "Rejection"),
    "esscher.samplers.twists": ("FittedParticles", "fitted_twist", "linear_twist"),
    "esscher.decoding.beam": ("Beam", "beam_search", "greedy"),
    "esscher.decoding.chosen": ("Best", "Drawn", "MinimumRisk"),
    "esscher.estimators.divergences": ("divergences",),
    "esscher.estimators.log_z": ("log_z",),
    "esscher.estimators.measured": ("measure",),
    "esscher.estimators.moments": ("moments",),
    "esscher.estimators.perplexity": ("cross_entropy", "perplexity"),
    "esscher.estimators.reliability": ("reliability",),
    "esscher.objectives.distil": ("Distil", "PolicyGradient"),
    "esscher.objectives.likelihood": ("Likelihood",),
    "esscher.objectives.moment_descent": ("MomentDescent",),
    "esscher.objectives.moment_match": ("match_moments",),
    "esscher.objectives.negatives": ("store_negatives",),
    "esscher.objectives.noise_contrast": ("NoiseContrast",),
    "esscher.objectives.tilted_likelihood": ("TiltedLikelihood",),
    "esscher.hub": ("load_base", "save_base"),
    "esscher.training.trainer": ("Trainer",),
    "esscher.settings.train": ("TrainRun",),
    "esscher.settings.training": ("TrainingConfig",),
    "esscher.verbs.train": ("train",),
    "esscher.verbs.fitting": ("fit_energy",),
    "esscher.settings.tilt": ("FitConfig",),
    "esscher.verbs.distillation": ("distil",),
    "esscher.settings.distil": ("DistilConfig",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'esscher' has no attribute {name!r}; its names are {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
