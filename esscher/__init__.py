"""Better autoregressive sequence models by energies over whole sequences: p(x) ~ a(x) exp(-E(x)).

The names below are what most programs need, loaded when first used: `from esscher import Tilted, Importance`.
Everything else is imported from its own module.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_HOMES = {
    "esscher.core.space": ("Space", "Sequences", "sequences", "prompts_of", "empty_prompts"),
    "esscher.core.randomness": ("SeededRng",),
    "esscher.core.target": ("Base", "Energy", "Tilted"),
    "esscher.core.draws": ("Draws", "Sampler"),
    "esscher.core.estimate": ("Estimate",),
    "esscher.core.objective": ("Loss", "Objective"),
    "esscher.exact.languages": ("motif_process", "white_noise"),
    "esscher.exact.enumeration": ("tabulate",),
    "esscher.exact.exponential_family": ("exact_moment_weights", "exponential_family"),
    "esscher.bases.causal_lm": ("CausalLM", "causal_lm"),
    "esscher.bases.hidden_markov": ("HiddenMarkov", "fit_hidden_markov", "hidden_markov_family"),
    "esscher.bases.network": ("with_factorization_order",),
    "esscher.bases.mixture": ("MixtureBase", "mixture_entropy"),
    "esscher.bases.ngram": ("fit_ngram",),
    "esscher.bases.seq2seq_lm": ("Seq2SeqLM", "seq2seq_lm"),
    "esscher.bases.truncated": ("Truncated",),
    "esscher.energies.network": ("build_energy",),
    "esscher.energies.declared_features": ("cached", "feature_from_spec"),
    "esscher.energies.features": (
        "ConditionalLogLinear",
        "Feature",
        "LogLinear",
        "contains",
        "text_feature",
        "text_batch_feature",
        "token_feature",
    ),
    "esscher.energies.config": ("EnergyConfig",),
    "esscher.energies.feature_spec": ("FeatureSpec", "parse_feature"),
    "esscher.energies.motif_features": ("motif_features",),
    "esscher.energies.serialization": ("load_energy",),
    "esscher.samplers.ancestral": ("Ancestral",),
    "esscher.samplers.importance": ("Exhaustive", "Importance"),
    "esscher.samplers.accept_reject": ("Metropolis", "QuasiRejection", "Rejection"),
    "esscher.samplers.particles": ("Particles",),
    "esscher.samplers.proposals": ("AssumeCovering", "defensive"),
    "esscher.samplers.sir": ("AdaptiveSIR", "SIR"),
    "esscher.samplers.twists": ("FittedParticles", "ParticleSIR", "fitted_twist", "linear_twist"),
    "esscher.decoding.beam_search": ("BeamSearch", "beam_search", "Greedy"),
    "esscher.decoding.decoders": ("BestOfN", "RandomDraw", "MinimumBayesRisk"),
    "esscher.estimators.log_z": ("log_z",),
    "esscher.estimators.expectations": ("divergences", "moments"),
    "esscher.estimators.perplexity": ("cross_entropy", "measure", "perplexity"),
    "esscher.estimators.reliability": ("reliability",),
    "esscher.objectives.distil": ("Distil", "PolicyGradient"),
    "esscher.objectives.likelihood": ("Likelihood", "TiltedLikelihood"),
    "esscher.objectives.moment_descent": ("MomentDescent",),
    "esscher.objectives.moment_matching": ("match_moments",),
    "esscher.objectives.noise_contrastive": ("store_negatives", "NoiseContrast"),
    "esscher.hub": ("load_base", "save_base"),
    "esscher.hub.custom_generate": ("TiltedGenerate", "load_tilted"),
    "esscher.training.trainer": ("Trainer",),
    "esscher.training.config": ("DistilConfig", "TrainingConfig"),
    "esscher.training.distillation": ("distil",),
    "esscher.data.config": ("DataConfig", "LengthConfig", "SourceConfig", "TokenizerConfig"),
    "esscher.core.chunking": ("Chunking",),
    "esscher.networks.registry": ("NETWORKS",),
    "esscher.workflow.model": ("Model", "load"),
    "esscher.workflow.train": ("TrainResult", "train", "train_base"),
    "esscher.workflow.config.train": ("TrainRun",),
    "esscher.workflow.config.tilt": ("FitConfig", "TiltRun"),
    "esscher.workflow.config.distil": ("DistilRun",),
    "esscher.workflow.config.measure": ("MeasureConfig",),
    "esscher.workflow.config.sample": ("SampleConfig",),
    "esscher.workflow.tilt": ("fit_feature_weights",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'esscher' has no attribute {name!r}; its names are {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
