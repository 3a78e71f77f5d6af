"""A base with shorter points is a base; the length in force is the shorter one."""

import pytest
from languages import random_automaton

from esscher.bases.shortened import Shortened
from esscher.space import Space


@pytest.mark.parametrize("space", [Space(3, 5), Space(3, 5, eos=0)], ids=["fixed length", "end symbol"])
def test_the_length_in_force(space):
    short = Shortened(random_automaton(space), 3)
    assert short.space.max_length == 3
    with pytest.raises(ValueError, match="1 to 5 tokens, not 6"):
        Shortened(random_automaton(space), 6)
