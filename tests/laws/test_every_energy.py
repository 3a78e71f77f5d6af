"""Every energy under the laws of energies: this is their list. A feature is tried as the energy of weight 1."""

import pytest
import torch
from bases.hidden import random_model
from energies.readers import MAKERS, decode
from energies.test_own_level import BASES as HIDDEN
from languages import PROMPTS, random_automaton, taste
from laws.parts import check_complete, part_of, parts, rows_to_numbers
from networks import CONFIGS, lively
from torch import nn

from esscher.bases.hidden_paths import on_paths, paths
from esscher.energies.algebra import Sum
from esscher.energies.cached import Cached, cached
from esscher.energies.conditional import ConditionalLogLinear, prompt_network
from esscher.energies.declaration import Declared
from esscher.energies.declared import declared_feature, declared_features
from esscher.energies.features import (
    Feature,
    LogLinear,
    contains,
    count,
    ends_with,
    lacks,
    length,
    of_text,
    of_texts,
    of_tokens,
    starts_with,
)
from esscher.energies.motif_features import motif_features, motif_tallies
from esscher.energies.own_level import OwnLevel
from esscher.energies.reading import OfText, OfTokens
from esscher.energies.source_features import copied, coverage, length_ratio
from esscher.energies.tallies import declared_tally
from esscher.exact import acceptors, features
from esscher.exact.enumeration import enumerate_points
from esscher.exact.table import tabulate
from esscher.randomness import Seeded
from esscher.recipes.residual_laboratory import Looked
from esscher.samplers.twists import fitted_twist, level_twist, linear_twist
from esscher.samplers.watched import Tally, watched
from esscher.space import Space, prompts_of, sequences
from esscher.target import Tilted, flat
from esscher.testing import check_energy

SPACE = Space(3, 4, eos=0)
EVERY = enumerate_points(SPACE, prompts_of(PROMPTS))
X = EVERY.rows(Seeded(0).permutation(len(EVERY))[:24])
EMPTY = sequences([[], [], [1, 0]], [[], [2, 1], []])  # points of no tokens are legal rows
TARGET = Tilted(random_automaton(SPACE), taste(SPACE))


def linear(*made: Feature) -> LogLinear:
    return LogLinear(list(made), torch.linspace(-1, 1, len(made)) if len(made) > 1 else torch.ones(1))


def conditional() -> ConditionalLogLinear:
    network = prompt_network(3, 2, width=8, rng=Seeded(0))
    nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    return ConditionalLogLinear([contains([1, 2]), length()], network)


def reads_prompt(x):
    return (10 * x.start + x.lengths).double()


def motifs() -> Space:
    return Space(3, 8, eos=2)


def lifted():
    """A tally of tokens on paths, where hidden states and tokens take turns."""
    model = random_model(Space(3, 2), states=2)
    tally = on_paths(features.count([1], model.space), model)
    assert tally.space == paths(model).space
    return tally


def of_itself() -> Tilted:
    base = lively(CONFIGS["gru, tied"], SPACE)
    return Tilted(base, OwnLevel(base))


ENERGIES = {  # each is made with a folder to write to
    "target.flat": lambda root: flat,
    "energies.Sum": lambda root: Sum({"linear": linear(length()), "taste": taste(SPACE)}, {"taste": 0.5}),
    "energies.LogLinear": lambda root: linear(contains([1, 2]), length(), count([1])),
    "energies.ConditionalLogLinear": lambda root: conditional(),
    "energies.Cached": lambda root: Cached("meet", reads_prompt),
    "energies.cached": lambda root: linear(cached(Feature("meet", reads_prompt)), cached(contains([1]))),
    "energies.Feature": lambda root: linear(Feature("meet", reads_prompt)),
    "energies.contains": lambda root: linear(contains([1, 2])),
    "energies.lacks": lambda root: linear(lacks([2])),
    "energies.count": lambda root: linear(count([1, 1])),
    "energies.count, apart": lambda root: linear(count([1, 1], overlapping=False)),
    "energies.length": lambda root: linear(length()),
    "energies.starts_with": lambda root: linear(starts_with([2, 1])),
    "energies.ends_with": lambda root: linear(ends_with([1, 0])),
    "energies.of_text": lambda root: linear(of_text("letters", decode, len)),
    "energies.of_text, with prompt": lambda root: linear(of_text("letters", decode, len, with_prompt=True)),
    "energies.of_texts": lambda root: linear(of_texts("letters", decode, lambda texts: [len(text) for text in texts])),
    "energies.of_tokens": lambda root: linear(of_tokens("tokens", len)),
    "energies.OfText": lambda root: OfText(decode, lambda texts: [float(len(text)) for text in texts]),
    "energies.OfTokens": lambda root: OfTokens(lambda points: [float(sum(point)) for point in points]),
    "energies.declared_feature": lambda root: linear(declared_feature(Declared("count", "good"), decode)),
    "energies.declared_feature, of tokens": lambda root: linear(declared_feature(Declared("tokens"), decode)),
    "energies.declared_features": lambda root: linear(
        *declared_features([Declared("words"), Declared("characters", at_least=4, negated=True)], decode)
    ),
    "energies.motif_features": lambda root: linear(*motif_features("1011", rng=Seeded(0))),
    "energies.motif_tallies": lambda root: motif_tallies("1011", space=motifs(), rng=Seeded(0))[0],
    "energies.declared_tally": lambda root: declared_tally(Declared("contains", "1 2", on="tokens"), SPACE),
    "energies.length_ratio": lambda root: linear(length_ratio(decode)),
    "energies.copied": lambda root: linear(copied(decode)),
    "energies.coverage": lambda root: linear(coverage(decode, {"good": frozenset({"cat"})})),
    **{f"energies.NetworkEnergy, {kind}": lambda root, k=kind: MAKERS[k](root)[1] for kind in MAKERS},
    **{f"energies.OwnLevel, {kind}": lambda root, b=build: OwnLevel(b(SPACE)) for kind, build in HIDDEN.items()},
    "exact.Tally": lambda root: features.Tally(
        "sum", SPACE, torch.zeros(1, 3, dtype=torch.long), torch.tensor([[1.0, 2, -1]]).double(), torch.ones(1).double()
    ),
    "exact.contains": lambda root: features.contains([1, 2], SPACE),
    "exact.lacks": lambda root: features.lacks([1, 2], SPACE),
    "exact.starts_with": lambda root: features.starts_with([2], SPACE),
    "exact.count": lambda root: features.count([1], SPACE),
    "exact.length": lambda root: features.length(SPACE),
    "exact.indicator": lambda root: features.indicator("all", acceptors.anything(3), SPACE),
    "exact.visits": lambda root: features.visits("all", acceptors.anything(3), SPACE),
    "bases.on_paths": lambda root: lifted(),
    "samplers.linear_twist": lambda root: linear_twist(TARGET, scale=0.5),
    "samplers.level_twist": lambda root: level_twist(of_itself()),
    "samplers.fitted_twist": lambda root: fitted_twist(TARGET, prompts_of(PROMPTS), block=1, rng=Seeded(0)),
    "samplers.WatchedForesight": lambda root: watched(of_itself(), Tally(print)).energy,
    "recipes.Looked": lambda root: Looked(tabulate(TARGET, prompts_of(PROMPTS))),
}
APART = {
    "energies.Labeller": "gives numbers for each class or place: tests/energies/test_labeller.py",
    "energies.build_energy": "gives a NetworkEnergy",
    "verbs.build": "gives a NetworkEnergy",
    "samplers.PrefixEnergy": "is tried by each twist",
}
NO_EMPTY = {"recipes.Looked"}  # a table has no points without tokens
FOUND = parts(rows_to_numbers)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("encoders")


def test_the_list_is_complete():
    check_complete(FOUND, ENERGIES, APART, __file__)


@pytest.mark.parametrize("case", ENERGIES)
def test_every_energy_obeys_the_laws(case, root):
    energy, part = ENERGIES[case](root), FOUND[part_of(case)]
    assert not isinstance(part, type) or part is Feature or isinstance(energy, part)
    check_energy(energy, X, tolerance=2e-4)
    if case not in NO_EMPTY:
        check_energy(energy, EMPTY, tolerance=2e-4)
