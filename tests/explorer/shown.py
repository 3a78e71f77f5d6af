"""A small model with features, as the explorer's tests show it."""

import time
from pathlib import Path

import torch

from esscher.bases.config import RecurrentConfig
from esscher.bases.network import build_base
from esscher.cut import Cut
from esscher.data.tokenizers import character_tokenizer
from esscher.energies.features import LogLinear, contains, count
from esscher.explorer.views import Explorer
from esscher.randomness import Seeded
from esscher.space import Space
from esscher.target import Tilted
from esscher.verbs.models import Model

LETTERS = character_tokenizer("ab")
FEATURES = [contains([1, 2], name="has ab"), count([2], name="letters b")]


class Slow(LogLinear):
    """An energy that takes a second for every batch, and longer for larger ones."""

    def forward(self, x):
        time.sleep(1 + len(x) / 32)
        return super().forward(x)


def explorer(energy=None, **settings):
    """The page's model, tilted by two features unless told otherwise."""
    base = build_base(RecurrentConfig("lstm", 8, 1), Space(LETTERS.vocab_size, 3, eos=LETTERS.eos), rng=Seeded(0)).eval()
    energy = LogLinear(FEATURES, torch.tensor([1.5, -0.7])) if energy is None else energy
    return Explorer(Model(base, Tilted(base, energy), LETTERS, Cut(), Path("toy")), **settings)


def last(found):
    """The view that is complete."""
    *_, view = found
    return view


if __name__ == "__main__":
    import sys

    from esscher.explorer.page import build_page
    from esscher.explorer.serving import Serving, serve

    token, *slow = [*sys.argv[1:], ""][:2]
    energy = Slow(FEATURES, torch.tensor([1.5, -0.7])) if any(slow) else None
    serve(build_page(explorer(energy, examples=("", "ab"))), Serving(token=token or None))
