"""Texts and images of several recipes: those that a machine may have in one folder, and those that have a name on the hub."""

import os
from pathlib import Path

from esscher.settings.data import DataConfig

DATA = Path(os.environ.get("ESSCHER_DATA", "../shared/data"))
MNIST, CIFAR = DATA / "mnist", DATA / "cifar-10"


PTB = "ptb-text-only/ptb_text_only"
PENN_TREEBANK = DataConfig(PTB, f"{PTB}::validation", f"{PTB}::test", column="sentence")


def wikitext(size: int) -> DataConfig:
    """WikiText-2 or WikiText-103, empty lines kept."""
    name = f"Salesforce/wikitext:wikitext-{size}-v1"
    return DataConfig(name, validation=f"{name}:validation", test=f"{name}:test", empty="keep")


def here_or(place: Path, name: str) -> str:
    """A folder of this machine, or the name of the same on the hub."""
    return str(place) if place.exists() else name


def mnist() -> str:
    """The digits."""
    return here_or(MNIST, "ylecun/mnist")


def cifar() -> str:
    """CIFAR-10."""
    return here_or(CIFAR, "uoft-cs/cifar10")


def not_here(source: str | Path) -> str:
    """Why what needs this source was left out."""
    return f"{source} is not here; ESSCHER_DATA names another folder that holds it."
