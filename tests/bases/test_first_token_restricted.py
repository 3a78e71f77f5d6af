"""A base given how its points begin is a base, and has the conditional probabilities."""

import pytest
import torch
from random_targets import PROMPTS, random_automaton
from small_networks import SPACES

from esscher.bases.wrappers import FirstTokenRestricted
from esscher.core.space import prompts_of
from esscher.exact.enumeration import enumerate_points

ALLOWED = {"one": [False, True, False], "end or one": [True, False, True], "all": [True, True, True]}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_probabilities_are_conditional(space):
    base, allowed = random_automaton(space), torch.tensor([True, False, True])
    x = enumerate_points(space, prompts_of(PROMPTS))
    whole = base.log_probs(x).sum(-1).exp().view(len(PROMPTS), -1)
    inside = allowed[x.tokens.gather(1, x.start[:, None])[:, 0]].view(len(PROMPTS), -1)
    expected = torch.where(inside, whole, 0.0) / torch.where(inside, whole, 0.0).sum(-1, keepdim=True)
    actual = FirstTokenRestricted(base, allowed).log_probs(x).sum(-1).exp().view(len(PROMPTS), -1)
    assert torch.allclose(actual, expected, atol=1e-12)


def test_a_beginning_is_needed():
    with pytest.raises(ValueError, match=r"0 of 3 are allowed"):
        FirstTokenRestricted(random_automaton(SPACES["fixed length"]), torch.zeros(3, dtype=torch.bool))
