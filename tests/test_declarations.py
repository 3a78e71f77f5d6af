"""Each fact is declared once: no two dataclasses repeat each other's fields, and network kinds are listed in one place."""

import ast
import pkgutil
from dataclasses import fields, is_dataclass
from fnmatch import fnmatch
from importlib import import_module
from itertools import combinations
from pathlib import Path

import pytest

import esscher
from esscher.networks.registry import NETWORKS

ROOT = Path(esscher.__file__).parent
VERB_WORDS = {"confidence", "data", "draws", "model", "out", "plot", "resume", "seed", "training"}
"""Words that all verbs share on purpose; each verb has its own default and help for them."""

EXCEPTIONS = [
    (
        "the same word for the same idea in networks of different kinds: each kind has its own default, range and help",
        ["esscher.networks.*_config:*", "esscher.papers.bad_gan.networks:*Nets", "esscher.papers.games.networks:*Nets"],
    ),
    (
        "temperature, top_k and top_p are the field's words for truncating a base: the wrapper, two wire formats (OpenAI's and "
        "that of Hugging Face's generate), the sliders of a page and flags are parsed and checked differently",
        [
            "esscher.bases.truncated:Truncated",
            "esscher.hub.custom_generate:GenerateCall",
            "esscher.serving.requests:CompletionRequest",
            "esscher.explorer.views:Controls",
            "esscher.core.truncation:Truncation",
        ],
    ),
    (
        "a motif process has a length, an alphabet and a mixture, whether it is data, a question, or the process itself",
        ["esscher.cli.exact:MotifConfig", "esscher.data.config:DataConfig", "esscher.exact.languages:MotifProcess"],
    ),
    (
        "settings say how images shall be read; the codec says how they were, with sizes from the data",
        ["esscher.data.config:ImageConfig", "esscher.data.images:ImageCodec"],
    ),
    (
        "train, validation and test of different things: any data, sequences with a processor, streams",
        ["esscher.data.sources:Splits", "esscher.workflow.processors:*Splits"],
    ),
    (
        "head settings leave open what the task decides; a built head and a sequence energy have other kinds and defaults",
        [
            "esscher.energies.config:EnergyConfig",
            "esscher.energies.config:TaskHeadConfig",
            "esscher.workflow.config.finetune:HeadConfig",
        ],
    ),
    (
        "clusters are made of a head's settings for one vocabulary",
        ["esscher.heads.adaptive:Clusters", "esscher.heads.config:HeadConfig"],
    ),
    (
        "objectives of different laws that have a teacher, a sampler, a start or a smoothing",
        ["esscher.objectives.distil:*", "esscher.objectives.exposure_bias:*"],
    ),
    (
        "the settings of contrastive training also say where its negatives come from",
        ["esscher.objectives.noise_contrastive:NoiseContrast", "esscher.workflow.config.tilt:ContrastConfig"],
    ),
    (
        "a loaded model keeps where it came from",
        ["esscher.workflow.config.load:LoadConfig", "esscher.workflow.model:Model"],
    ),
    (
        "names of unlike things in a page's settings and in a distillation that is under way",
        ["esscher.explorer.config:ExploreRun", "esscher.training.distillation:_Distillation"],
    ),
    (
        "results, not settings: columns of the same name that hold other shapes, or numbers of another measurement",
        [
            "esscher.core.draws:Draws",
            "esscher.core.estimate:Estimate",
            "esscher.decoding.beam_search:BeamCandidates",
            "esscher.decoding.decoders:DecoderOutput",
            "esscher.estimators.*:*",
            "esscher.exact.enumeration:ExactTable",
            "esscher.explorer.views:ShownText",
            "esscher.energies.twist_folder:TwistOrigin",
            "esscher.metrics.metric:LengthGroup",
            "esscher.objectives.twist:TwistRows",
            "esscher.samplers.ladder:LadderRuns",
            "esscher.samplers.regeneration:Chains",
            "esscher.samplers.splitting:Splits",
            "esscher.training.distillation:DistillationResult",
            "esscher.training.twist_learning:*",
            "esscher.workflow.*:*Result",
            "esscher.workflow.risk:Risk",
            "esscher.workflow.sample:WeightedCandidate",
            "esscher.workflow.*:*Measurement",
            "esscher.papers.*:*Result",
        ],
    ),
    (
        "an automaton, with weights or as a feature, has states and a space",
        ["esscher.exact.automaton:*", "esscher.exact.features:AutomatonFeature"],
    ),
    (
        "what an energy was fitted on; a log-linear energy is saved as JSON in one piece with it",
        ["esscher.energies.serialization:*"],
    ),
    (
        "samplers of one family, which differ in what they promise: with a bound that holds or any, with a given twist or "
        "a fitted one; defaults and checks are their own",
        ["esscher.samplers.accept_reject:*", "esscher.samplers.particles:Particles", "esscher.samplers.twists:*"],
    ),
    (
        "samplers that go on after an interruption, piece by piece of the draws or of the prompts",
        ["esscher.training.resumable:*"],
    ),
]


def package_modules():
    names = [module.name for module in pkgutil.walk_packages(esscher.__path__, "esscher.")]
    return [name for name in names if not name.endswith("__main__")]


@pytest.fixture(scope="module")
def dataclasses():
    """All dataclasses of the package by "module:Class"; modules of extras that are not installed are left out."""
    classes = {}
    for name in package_modules():
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if str(error.name).startswith("esscher"):
                raise
            continue
        for value in vars(module).values():
            if isinstance(value, type) and is_dataclass(value) and value.__module__ == name:
                classes[f"{name}:{value.__qualname__}"] = value
    assert len(classes) > 200
    return classes


def names_of(cls):
    return {entry.name for entry in fields(cls)}


def repeated(a, b):
    """Fields of both classes that neither a common ancestor declares nor all verbs share."""
    common = [cls for cls in a.__mro__ if is_dataclass(cls) and cls in b.__mro__]
    return (names_of(a) & names_of(b)) - VERB_WORDS - set().union(*map(names_of, common))


def is_one_of(cls, patterns):
    """Whether the class, or a dataclass that it inherits its fields from, is named."""
    names = [f"{one.__module__}:{one.__qualname__}" for one in cls.__mro__ if is_dataclass(one)]
    return any(fnmatch(name, pattern) for name in names for pattern in patterns)


def test_no_dataclass_repeats_the_fields_of_another(dataclasses):
    repetitions = {
        (first, second): sorted(repeated(dataclasses[first], dataclasses[second]))
        for first, second in combinations(sorted(dataclasses), 2)
        if len(repeated(dataclasses[first], dataclasses[second])) >= 3
    }
    unexplained = {
        pair: names
        for pair, names in repetitions.items()
        if not any(all(is_one_of(dataclasses[name], patterns) for name in pair) for _, patterns in EXCEPTIONS)
    }
    assert unexplained == {}
    for reason, patterns in EXCEPTIONS:  # an exception that nothing needs any more goes
        assert any(all(is_one_of(dataclasses[name], patterns) for name in pair) for pair in repetitions), reason


def literal_strings(node):
    items = node.keys if isinstance(node, ast.Dict) else node.elts
    return {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)}


def test_the_registry_is_the_only_list_of_network_kinds():
    lists = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf8")))
        if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict) and len(literal_strings(node) & set(NETWORKS)) >= 3
    ]
    assert {name.partition(":")[0] for name in lists} == {"networks/registry.py"}, lists
