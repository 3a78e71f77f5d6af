"""Texts and images of recipes that a machine may have in one folder, and what is said of those that it has not."""

import os
from pathlib import Path

DATA = Path(os.environ.get("ESSCHER_DATA", "../shared/data"))
MNIST, CIFAR, SVHN = DATA / "mnist", DATA / "cifar-10", DATA / "svhn"


def not_here(source: str | Path) -> str:
    """Why what needs this source was left out."""
    return f"{source} is not here; ESSCHER_DATA names another folder that holds it."
