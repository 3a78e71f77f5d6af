"""Data of several recipes, in the folder `ESSCHER_DATA` or on the hub."""

import os
from pathlib import Path

from esscher.data.config import DataConfig

DATA = Path(os.environ.get("ESSCHER_DATA", "../shared/data"))
MNIST, CIFAR, SVHN = DATA / "mnist", DATA / "cifar-10", DATA / "svhn"
HUB_NAMES = {MNIST: "ylecun/mnist", CIFAR: "uoft-cs/cifar10", SVHN: "ufldl-stanford/svhn:cropped_digits"}
CC_NEWS = "vblagoje/cc_news"
TORONTO_BOOKS = "Toronto Books, which is not distributed any more: its part of Table 1 needs your copy, by --data."
PTB = "ptb-text-only/ptb_text_only"
PENN_TREEBANK = DataConfig(PTB, validation=f"{PTB}::validation", test=f"{PTB}::test", column="sentence")


def wikitext(size: int) -> DataConfig:
    """WikiText-2 or WikiText-103, empty lines kept."""
    name = f"Salesforce/wikitext:wikitext-{size}-v1"
    return DataConfig(name, validation=f"{name}:validation", test=f"{name}:test", empty="keep")


def local_or_hub(folder: Path) -> str:
    """The folder if it exists, else the name of the same data set on the hub."""
    return str(folder) if folder.exists() else HUB_NAMES[folder]


def missing_message(source: str | Path) -> str:
    """Why the studies of this source were left out."""
    return f"{source} is not here; ESSCHER_DATA names another folder that holds it."
