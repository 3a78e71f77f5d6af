"""The settings of `esscher analyse rank`, without torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RankSettings:
    """Which contexts."""

    contexts: int = 1000
    """Contexts, evenly spread over the text; no rank can be higher."""
    length: int = 64
    """Tokens of each context."""

    def __post_init__(self) -> None:
        if self.contexts < 2 or self.length < 0:
            raise ValueError(
                f"A matrix has 2 contexts or more, of 0 tokens or more; got contexts = {self.contexts}, length = "
                f"{self.length}. Nothing was computed."
            )
