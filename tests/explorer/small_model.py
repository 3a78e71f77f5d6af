"""A small model with features, as the explorer's tests show it."""

import time
from pathlib import Path

import torch

from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.core.target import Tilted
from esscher.data.tokenizers import character_tokenizer
from esscher.energies.features import LogLinear, contains, count
from esscher.explorer.views import Explorer
from esscher.networks.recurrent_config import LstmConfig
from esscher.workflow.model import Model
from esscher.workflow.processors import TextProcessor

LETTERS = character_tokenizer("ab")
FEATURES = [contains([1, 2], name="has ab"), count([2], name="letters b")]


class Slow(LogLinear):
    """An energy that takes a second for every batch, and longer for larger ones."""

    def forward(self, x):
        time.sleep(1 + len(x) / 32)
        return super().forward(x)


def explorer(energy=None, **settings):
    """The page's model, tilted by two features unless told otherwise."""
    base = build_base(LstmConfig(8, 1), Space(LETTERS.vocab_size, 3, eos=LETTERS.eos), rng=SeededRng(0)).eval()
    energy = LogLinear(FEATURES, torch.tensor([1.5, -0.7])) if energy is None else energy
    model = Model(base, Tilted(base, energy), TextProcessor(LETTERS, base.space), folder=Path("toy"))
    return Explorer(model, **settings)


def last(found):
    """The view that is complete."""
    *_, view = found
    return view


if __name__ == "__main__":
    import sys

    from esscher.explorer.config import PageServerConfig
    from esscher.explorer.page import build_explorer_page
    from esscher.explorer.page_app import launch

    token, *slow = [*sys.argv[1:], ""][:2]
    energy = Slow(FEATURES, torch.tensor([1.5, -0.7])) if any(slow) else None
    launch(build_explorer_page(explorer(energy, examples=("", "ab"))), PageServerConfig(token=token or None))
