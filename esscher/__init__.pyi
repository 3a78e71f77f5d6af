"""The public names for type checkers, which do not see what is loaded when first used. Written by `python tests/stub.py` from
the list in `__init__.py`; a test compares both."""

# ruff: noqa: I001

__version__: str

from esscher.bases.causal_lm import (
    CausalLM as CausalLM,
    causal_lm as causal_lm,
)
from esscher.bases.hidden_markov import (
    HiddenMarkov as HiddenMarkov,
    fit_hidden_markov as fit_hidden_markov,
    hidden_markov_family as hidden_markov_family,
)
from esscher.bases.mixture import (
    MixtureBase as MixtureBase,
    mixture_entropy as mixture_entropy,
)
from esscher.bases.network import (
    with_factorization_order as with_factorization_order,
)
from esscher.bases.ngram import (
    fit_ngram as fit_ngram,
)
from esscher.bases.seq2seq_lm import (
    Seq2SeqLM as Seq2SeqLM,
    seq2seq_lm as seq2seq_lm,
)
from esscher.bases.truncated import (
    Truncated as Truncated,
)
from esscher.core.chunking import (
    Chunking as Chunking,
)
from esscher.core.draws import (
    Draws as Draws,
    Sampler as Sampler,
)
from esscher.core.estimate import (
    Estimate as Estimate,
)
from esscher.core.objective import (
    Loss as Loss,
    Objective as Objective,
)
from esscher.core.randomness import (
    SeededRng as SeededRng,
)
from esscher.core.space import (
    Sequences as Sequences,
    Space as Space,
    empty_prompts as empty_prompts,
    prompts_of as prompts_of,
    sequences as sequences,
)
from esscher.core.target import (
    Base as Base,
    Energy as Energy,
    Tilted as Tilted,
)
from esscher.data.config import (
    DataConfig as DataConfig,
    LengthConfig as LengthConfig,
    SourceConfig as SourceConfig,
    TokenizerConfig as TokenizerConfig,
)
from esscher.decoding.beam_search import (
    BeamSearch as BeamSearch,
    Greedy as Greedy,
    beam_search as beam_search,
)
from esscher.decoding.decoders import (
    BestOfN as BestOfN,
    MinimumBayesRisk as MinimumBayesRisk,
    RandomDraw as RandomDraw,
)
from esscher.energies.config import (
    EnergyConfig as EnergyConfig,
)
from esscher.energies.declared_features import (
    cached as cached,
    feature_from_spec as feature_from_spec,
)
from esscher.energies.feature_spec import (
    FeatureSpec as FeatureSpec,
    parse_feature as parse_feature,
)
from esscher.energies.features import (
    ConditionalLogLinear as ConditionalLogLinear,
    Feature as Feature,
    LogLinear as LogLinear,
    contains as contains,
    text_batch_feature as text_batch_feature,
    text_feature as text_feature,
    token_feature as token_feature,
)
from esscher.energies.motif_features import (
    motif_features as motif_features,
)
from esscher.energies.network import (
    build_energy as build_energy,
)
from esscher.energies.serialization import (
    load_energy as load_energy,
)
from esscher.estimators.expectations import (
    divergences as divergences,
    moments as moments,
)
from esscher.estimators.log_z import (
    log_z as log_z,
)
from esscher.estimators.perplexity import (
    cross_entropy as cross_entropy,
    measure as measure,
    perplexity as perplexity,
)
from esscher.estimators.reliability import (
    reliability as reliability,
)
from esscher.exact.enumeration import (
    tabulate as tabulate,
)
from esscher.exact.exponential_family import (
    exact_moment_weights as exact_moment_weights,
    exponential_family as exponential_family,
)
from esscher.exact.languages import (
    motif_process as motif_process,
    white_noise as white_noise,
)
from esscher.hub import (
    load_base as load_base,
    save_base as save_base,
)
from esscher.hub.custom_generate import (
    TiltedGenerate as TiltedGenerate,
    load_tilted as load_tilted,
)
from esscher.networks.registry import (
    NETWORKS as NETWORKS,
)
from esscher.objectives.distil import (
    Distil as Distil,
    PolicyGradient as PolicyGradient,
)
from esscher.objectives.likelihood import (
    Likelihood as Likelihood,
    TiltedLikelihood as TiltedLikelihood,
)
from esscher.objectives.moment_descent import (
    MomentDescent as MomentDescent,
)
from esscher.objectives.moment_matching import (
    match_moments as match_moments,
)
from esscher.objectives.noise_contrastive import (
    NoiseContrast as NoiseContrast,
    store_negatives as store_negatives,
)
from esscher.samplers.accept_reject import (
    Metropolis as Metropolis,
    QuasiRejection as QuasiRejection,
    Rejection as Rejection,
)
from esscher.samplers.ancestral import (
    Ancestral as Ancestral,
)
from esscher.samplers.importance import (
    Exhaustive as Exhaustive,
    Importance as Importance,
)
from esscher.samplers.particles import (
    Particles as Particles,
)
from esscher.samplers.proposals import (
    AssumeCovering as AssumeCovering,
    defensive as defensive,
)
from esscher.samplers.sir import (
    AdaptiveSIR as AdaptiveSIR,
    SIR as SIR,
)
from esscher.samplers.twists import (
    FittedParticles as FittedParticles,
    ParticleSIR as ParticleSIR,
    fitted_twist as fitted_twist,
    linear_twist as linear_twist,
)
from esscher.training.config import (
    DistilConfig as DistilConfig,
    TrainingConfig as TrainingConfig,
)
from esscher.training.distillation import (
    distil as distil,
)
from esscher.training.trainer import (
    Trainer as Trainer,
)
from esscher.workflow.config.distil import (
    DistilRun as DistilRun,
)
from esscher.workflow.config.measure import (
    MeasureConfig as MeasureConfig,
)
from esscher.workflow.config.sample import (
    SampleConfig as SampleConfig,
)
from esscher.workflow.config.tilt import (
    FitConfig as FitConfig,
    TiltRun as TiltRun,
)
from esscher.workflow.config.train import (
    TrainRun as TrainRun,
)
from esscher.workflow.model import (
    Model as Model,
    load as load,
)
from esscher.workflow.tilt import (
    fit_feature_weights as fit_feature_weights,
)
from esscher.workflow.train import (
    TrainResult as TrainResult,
    train as train,
    train_base as train_base,
)
