"""A model as the command line names it: the folder of a base, and perhaps the folder of an energy."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from esscher.data.tokenizers import Tokenizer
    from esscher.target import Tilted

MaxLength = Annotated[int | None, Parameter(help="Tokens of the longest point, if not what the folder says.")]
Eos = Annotated[str | None, Parameter(help="The token that ends a text, if not what a Hugging Face folder says.")]


def load_target(
    model: Path, energy: Path | None, *, max_length: int | None = None, eos: str | None = None
) -> tuple["Tilted", "Tokenizer"]:
    """The base, ours or of Hugging Face, tilted by the energy if one is named, and the base's tokenizer.

    `max_length` and `eos` replace what the folder says of its points.
    """
    from esscher.energies.saved import load_energy
    from esscher.hub import load_base
    from esscher.target import Tilted

    base, tokenizer = load_base(model, max_length=max_length, eos=eos)
    if tokenizer is None:
        raise ValueError(f"{model} holds no tokenizer, so text cannot be read or shown. Nothing was done; use it from Python.")
    if energy is None:
        return Tilted(base), tokenizer
    saved = load_energy(energy)
    saved.check_base(base)
    return Tilted(base, saved.energy(tokenizer.decode, base)), tokenizer
