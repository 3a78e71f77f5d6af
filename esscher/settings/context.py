"""The settings of `esscher analyse context`, without torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ContextSettings:
    """Which contexts, at how many places."""

    step: int = 50
    """Tokens from one length of context to the next; the shortest context has as many."""
    longest: int = 400
    """Tokens of the longest context."""
    places: int = 500
    """Tokens that are predicted, evenly spread over the text."""

    def __post_init__(self) -> None:
        if self.step < 1 or self.longest < self.step or self.places < 2:
            raise ValueError(
                f"Contexts grow by 1 token or more up to the longest, at 2 places or more; got step = {self.step}, longest = "
                f"{self.longest}, places = {self.places}. Nothing was measured."
            )

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(range(self.step, self.longest + 1, self.step))
