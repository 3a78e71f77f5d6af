"""A base with shorter points is a base; the length in force is the shorter one."""

import pytest
from random_targets import random_automaton

from esscher.bases.wrappers import WithMaxLength
from esscher.core.space import Space


@pytest.mark.parametrize("space", [Space(3, 5), Space(3, 5, eos=0)], ids=["fixed length", "end symbol"])
def test_the_length_in_force(space):
    short = WithMaxLength(random_automaton(space), 3)
    assert short.space.max_length == 3
    with pytest.raises(ValueError, match="from 1 to the base's 5, not 6"):
        WithMaxLength(random_automaton(space), 6)
