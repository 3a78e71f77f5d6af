"""The settings of `esscher analyse exposure`, without torch."""

from dataclasses import dataclass
from typing import Literal

from esscher.settings.data import check_choices


@dataclass(frozen=True)
class ExposureSettings:
    """How much is compared."""

    sequences: int = 200
    """Sequences of the data, chosen by chance; of a stream, places evenly spread over the text. All, if there are fewer."""
    draws: int = 8
    """Draws of the model for each."""
    longest: int = 50
    """Tokens of each that are looked at, the first ones."""
    decode: Literal["greedy", "sampled"] = "greedy"
    """The outputs that the ratio is told after: the likeliest token at each step, or one by chance."""
    warm: int = 1024
    """Tokens that a model with a memory reads before each place of a stream; half of the text at most."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name, value, least in (("sequences", self.sequences, 2), ("draws", self.draws, 1), ("longest", self.longest, 1)):
            if value < least:
                raise ValueError(f"{name} is at least {least}, not {value}. Nothing was measured.")
        if self.warm < 0:
            raise ValueError(f"A model reads 0 tokens or more before a place, not {self.warm}. Nothing was measured.")
