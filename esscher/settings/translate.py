"""The settings of `esscher translate`, without torch."""

from dataclasses import dataclass
from typing import Literal

from esscher.settings.data import check_choices


@dataclass(frozen=True)
class DecodingConfig:
    """How a translation is chosen."""

    decode: Literal["beam", "greedy", "sample", "best", "minimum-risk"] = "beam"
    """The best of a beam; the likeliest token at each step; a draw; the best of some draws; or the draw that risks least."""
    beam: int = 5
    """beam: prefixes that go on."""
    length_penalty: float = 1.0
    """beam, best: the power of the length that log-probabilities are divided by; 0 leaves them."""
    draws: int = 32
    """best, minimum-risk: draws to choose from."""
    pool: int = 10
    """sample: candidates of a tilted model, one of which is drawn."""
    utility: Literal["chrf", "bleu"] = "chrf"
    """minimum-risk: how good a translation is if another were right."""

    def __post_init__(self) -> None:
        check_choices(self)
        for one in ("beam", "draws", "pool"):
            if getattr(self, one) < 1:
                raise ValueError(f"{one} is at least 1, not {getattr(self, one)}. Nothing was translated.")
        if not self.length_penalty >= 0:
            raise ValueError(f"length_penalty is at least 0, not {self.length_penalty}. Nothing was translated.")
