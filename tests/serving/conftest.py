"""A model of short texts over two letters, tilted, with a tokenizer and an exact law."""

from pathlib import Path

import pytest
from languages import taste
from networks import CONFIGS, lively

from esscher.cut import Cut
from esscher.data.tokenizers import character_tokenizer
from esscher.space import Space
from esscher.target import Tilted
from esscher.verbs.models import Model


@pytest.fixture(scope="session")
def tilted_model() -> Model:
    space = Space(3, 4, eos=0)
    base = lively(CONFIGS["gru, one-hot"], space)
    return Model(base, Tilted(base, taste(space, seed=8)), character_tokenizer("ab", unknown=False), Cut(), Path("toy"))
