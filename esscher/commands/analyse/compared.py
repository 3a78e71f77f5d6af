"""What the analyses of a tilted model share: the text they compare with, draws beside it, and advice on few draws."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from esscher.commands.flags import ENERGY
from esscher.cut import Cut
from esscher.data.sources import Unit

if TYPE_CHECKING:
    from esscher.estimate import Estimate
    from esscher.estimators.populations import Populations
    from esscher.space import Sequences
    from esscher.verbs.models import Model

Energy = Annotated[Path, Parameter(help=f"{ENERGY} The two are the joint.")]
Plot = Annotated[Path | None, Parameter(help="Also draw a picture into this file, such as energies.png.")]


@dataclass(frozen=True)
class Source:
    """The text to compare with; take some that neither the base nor the energy learnt from."""

    data: str | None = None
    """A file, a folder, a pattern, or a Hugging Face name; by default what was held out as the energy learnt."""
    column: str = "text"
    """Of jsonl, parquet and Hugging Face data."""
    unit: Unit = "line"
    """What a text is in a text file."""
    separator: str | None = None
    """A string between the texts, in text files."""

    def read(self, model: "Model", energy: Path) -> tuple["Sequences", str]:
        """The data as points of the model, and what to call them."""
        from esscher.data.sources import read_texts
        from esscher.verbs.tilt import read_sets, source_of

        if self.data is None:
            return read_sets(model, source_of(energy)).test, "held out of what the energy learnt from"
        texts = read_texts(self.data, column=self.column, unit=self.unit, separator=self.separator)
        return model.read(texts.texts).x, str(texts)


@dataclass(frozen=True)
class Size:
    """How much is compared."""

    sequences: int = 200
    """Sequences of the data, chosen by chance; all, if there are fewer."""
    draws: int = 32
    """Draws of the base for each, which are also the pool of the joint's."""


def draw_beside(
    model: Path, energy: Path, source: Source, size: Size, cut: Cut, seed: int, quiet: bool
) -> tuple["Model", "Populations", dict[str, Any]]:
    """The model, its draws beside the data, and what to say of them."""
    from esscher.randomness import Seeded
    from esscher.training.progress import choose_progress
    from esscher.verbs.comparison import gather
    from esscher.verbs.models import load_model
    from esscher.verbs.subsets import some_of

    loaded = load_model(model, energy, cut)
    (every, told), rng = source.read(loaded, energy), Seeded(seed)
    x = some_of(every, size.sequences, rng=rng.stream("sequences"))
    found = gather(loaded.target, x, size.draws, rng=rng.stream("draws"), say=choose_progress(quiet).say)
    facts = {
        "model": model,
        "energy": energy,
        "data": told,
        "seed": seed,
        "sequences": len(x),
        "drawn_from_the_base": found.draws.cost,
        "effective_draws": found.effective(),
    }
    return loaded, found, facts


def advice(effective: "Estimate") -> list[str]:
    """A word where the draws after a prompt are worth too few."""
    from esscher.estimators.reliability import TOO_FEW

    if effective.value >= TOO_FEW:
        return []
    return [
        f"Of the draws after a prompt only {effective.value:.1f} are effective for the joint: its figures still lean towards "
        f"the base's; raise --draws."
    ]
