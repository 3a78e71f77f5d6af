"""A model of short texts over two letters, tilted, with a tokenizer and an exact law."""

from pathlib import Path

import pytest
from random_targets import taste
from small_networks import CONFIGS, lively

from esscher.core.space import Space
from esscher.core.target import Tilted
from esscher.data.tokenizers import character_tokenizer
from esscher.workflow.model import Model
from esscher.workflow.processors import TextProcessor


@pytest.fixture(scope="session")
def tilted_model() -> Model:
    space = Space(3, 4, eos=0)
    base = lively(CONFIGS["gru, one-hot"], space)
    processor = TextProcessor(character_tokenizer("ab", unknown=False), space)
    return Model(base, Tilted(base, taste(space, seed=8)), processor, folder=Path("toy"))
