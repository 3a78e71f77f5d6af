"""Every energy under the laws of energies: this is their list. A feature is tried as the energy of weight 1."""

from functools import cache

import pytest
import torch
from bases.hidden import random_model
from energies.encoders import MAKERS, decode
from energies.test_self_energy import BASES as HIDDEN
from laws.parts import check_complete, part_of, parts, rows_to_numbers
from random_targets import PROMPTS, random_automaton, taste
from small_networks import CONFIGS, lively
from torch import nn

from esscher.bases.hidden_markov import lift_to_paths, path_automaton
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of, sequences
from esscher.core.target import Tilted, flat
from esscher.energies.declared_features import CachedFeature, cached, feature_from_spec, features_from_specs, tally_from_spec
from esscher.energies.feature_spec import FeatureSpec
from esscher.energies.features import (
    ConditionalLogLinear,
    Feature,
    LogLinear,
    Sum,
    TextFunction,
    TokenFunction,
    contains,
    count,
    ends_with,
    lacks,
    length,
    prompt_network,
    starts_with,
    text_batch_feature,
    text_feature,
    token_feature,
)
from esscher.energies.motif_features import motif_features, motif_tallies
from esscher.energies.self_energy import SelfEnergy
from esscher.energies.translation_features import copied_words, coverage, length_ratio
from esscher.exact import acceptors, features
from esscher.exact.enumeration import enumerate_points, tabulate
from esscher.papers.laboratory.residual import TableEnergy
from esscher.samplers.progress import ProgressCounter, with_progress
from esscher.samplers.twists import fitted_twist, linear_twist, logsumexp_twist
from esscher.testing import check_energy

SPACE = Space(3, 4, eos=0)
EVERY = enumerate_points(SPACE, prompts_of(PROMPTS))
X = EVERY.rows(SeededRng(0).permutation(len(EVERY))[:24])
EMPTY = sequences([[], [], [1, 0]], [[], [2, 1], []])  # points of no tokens are legal rows
TARGET = Tilted(random_automaton(SPACE), taste(SPACE))


def linear(*made: Feature) -> LogLinear:
    return LogLinear(list(made), torch.linspace(-1, 1, len(made)) if len(made) > 1 else torch.ones(1))


def conditional() -> ConditionalLogLinear:
    network = prompt_network(3, 2, width=8, rng=SeededRng(0))
    nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    return ConditionalLogLinear([contains([1, 2]), length()], network)


def reads_prompt(x):
    return (10 * x.start + x.lengths).double()


def motifs() -> Space:
    return Space(3, 8, eos=2)


def lifted():
    """A tally of tokens on paths, where hidden states and tokens take turns."""
    model = random_model(Space(3, 2), states=2)
    tally = lift_to_paths(features.count([1], model.space), model)
    assert tally.space == path_automaton(model).space
    return tally


def of_itself() -> Tilted:
    base = lively(CONFIGS["gru, tied"], SPACE)
    return Tilted(base, SelfEnergy(base))


ENERGIES = {  # each is made with a folder to write to
    "core.flat": lambda root: flat,
    "energies.Sum": lambda root: Sum({"linear": linear(length()), "taste": taste(SPACE)}, {"taste": 0.5}),
    "energies.LogLinear": lambda root: linear(contains([1, 2]), length(), count([1])),
    "energies.ConditionalLogLinear": lambda root: conditional(),
    "energies.CachedFeature": lambda root: CachedFeature("meet", reads_prompt),
    "energies.cached": lambda root: linear(cached(Feature("meet", reads_prompt)), cached(contains([1]))),
    "energies.Feature": lambda root: linear(Feature("meet", reads_prompt)),
    "energies.contains": lambda root: linear(contains([1, 2])),
    "energies.lacks": lambda root: linear(lacks([2])),
    "energies.count": lambda root: linear(count([1, 1])),
    "energies.count, apart": lambda root: linear(count([1, 1], overlapping=False)),
    "energies.length": lambda root: linear(length()),
    "energies.starts_with": lambda root: linear(starts_with([2, 1])),
    "energies.ends_with": lambda root: linear(ends_with([1, 0])),
    "energies.text_feature": lambda root: linear(text_feature("letters", decode, len)),
    "energies.text_feature, with prompt": lambda root: linear(text_feature("letters", decode, len, with_prompt=True)),
    "energies.text_batch_feature": lambda root: linear(
        text_batch_feature("letters", decode, lambda texts: [len(text) for text in texts])
    ),
    "energies.token_feature": lambda root: linear(token_feature("tokens", len)),
    "energies.TextFunction": lambda root: TextFunction(decode, lambda texts: [float(len(text)) for text in texts]),
    "energies.TokenFunction": lambda root: TokenFunction(lambda points: [float(sum(point)) for point in points]),
    "energies.feature_from_spec": lambda root: linear(feature_from_spec(FeatureSpec("count", "good"), decode)),
    "energies.feature_from_spec, of tokens": lambda root: linear(feature_from_spec(FeatureSpec("tokens"), decode)),
    "energies.features_from_specs": lambda root: linear(
        *features_from_specs([FeatureSpec("words"), FeatureSpec("characters", at_least=4, negated=True)], decode)
    ),
    "energies.motif_features": lambda root: linear(*motif_features("1011", rng=SeededRng(0))),
    "energies.motif_tallies": lambda root: motif_tallies("1011", space=motifs(), rng=SeededRng(0))[0],
    "energies.tally_from_spec": lambda root: tally_from_spec(FeatureSpec("contains", "1 2", on="tokens"), SPACE),
    "energies.length_ratio": lambda root: linear(length_ratio(decode)),
    "energies.copied_words": lambda root: linear(copied_words(decode)),
    "energies.coverage": lambda root: linear(coverage(decode, {"good": frozenset({"cat"})})),
    **{f"energies.NetworkEnergy, {kind}": lambda root, k=kind: MAKERS[k](root)[1] for kind in MAKERS},
    **{f"energies.SelfEnergy, {kind}": lambda root, b=build: SelfEnergy(b(SPACE)) for kind, build in HIDDEN.items()},
    "exact.AutomatonFeature": lambda root: features.AutomatonFeature(
        "sum", SPACE, torch.zeros(1, 3, dtype=torch.long), torch.tensor([[1.0, 2, -1]]).double(), torch.ones(1).double()
    ),
    "exact.contains": lambda root: features.contains([1, 2], SPACE),
    "exact.lacks": lambda root: features.lacks([1, 2], SPACE),
    "exact.starts_with": lambda root: features.starts_with([2], SPACE),
    "exact.count": lambda root: features.count([1], SPACE),
    "exact.length": lambda root: features.length(SPACE),
    "exact.indicator": lambda root: features.indicator("all", acceptors.accept_all(3), SPACE),
    "exact.count_accepted_prefixes": lambda root: features.count_accepted_prefixes("all", acceptors.accept_all(3), SPACE),
    "bases.lift_to_paths": lambda root: lifted(),
    "samplers.linear_twist": lambda root: linear_twist(TARGET, scale=0.5),
    "samplers.logsumexp_twist": lambda root: logsumexp_twist(of_itself()),
    "samplers.fitted_twist": lambda root: fitted_twist(TARGET, prompts_of(PROMPTS), block=1, rng=SeededRng(0)),
    "samplers.CountingTwistedEnergy": lambda root: with_progress(of_itself(), ProgressCounter(print)).energy,
    "papers.TableEnergy": lambda root: TableEnergy(tabulate(TARGET, prompts_of(PROMPTS))),
}
APART = {
    "energies.TaskModel": "gives numbers for each class or place: tests/energies/test_task_heads.py",
    "energies.build_energy": "gives a NetworkEnergy",
    "energies.normalised_self_energy": "gives a SelfEnergy",
    "workflow.build_tilt_energy": "gives a NetworkEnergy",
    "samplers.PrefixEnergy": "is tried by each twist",
}
NO_EMPTY = {"papers.TableEnergy"}  # a table has no points without tokens


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("encoders")


@cache
def found() -> dict[str, object]:
    """What the package has; a function, because other tests that use the list need not import all of it."""
    return parts(rows_to_numbers)


def test_the_list_is_complete():
    check_complete(found(), ENERGIES, APART, __file__)


@pytest.mark.parametrize("case", ENERGIES)
def test_every_energy_obeys_the_laws(case, root):
    energy, part = ENERGIES[case](root), found()[part_of(case)]
    assert not isinstance(part, type) or part is Feature or isinstance(energy, part)
    check_energy(energy, X, tolerance=2e-4)
    if case not in NO_EMPTY:
        check_energy(energy, EMPTY, tolerance=2e-4)
