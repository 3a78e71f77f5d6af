"""A model as the command line names it: the folder of a base, and perhaps the folder of an energy."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esscher.data.tokenizers import Tokenizer
    from esscher.target import Tilted


def load_target(model: Path, energy: Path | None) -> tuple["Tilted", "Tokenizer"]:
    """The base, tilted by the energy if one is named, and the base's tokenizer."""
    from esscher.energies.saved import load_energy
    from esscher.hub import load_base
    from esscher.storage import digest, module_tensors
    from esscher.target import Tilted

    base, tokenizer = load_base(model)
    if tokenizer is None:
        raise ValueError(f"{model} holds no tokenizer, so text cannot be read or shown. Nothing was done; use it from Python.")
    if energy is None:
        return Tilted(base), tokenizer
    saved = load_energy(energy)
    saved.check_base(digest(module_tensors(base)))
    return Tilted(base, saved.energy(tokenizer.decode)), tokenizer
