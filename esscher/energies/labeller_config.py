"""The settings of a labeller, without torch: what stands above a reader, and what a folder remembers of it."""

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["sequence", "span", "kernels"]
Summary = Literal["last", "first", "whole"]


@dataclass(frozen=True)
class LabellerConfig:
    """A head on what a reader read."""

    kind: Kind = "sequence"
    """Scores of the whole sequence; of spans of its prompt; or of how alike prompt and point are (kernel pooling)."""
    outputs: int = 1
    """Scores of a sequence."""
    pooling: Summary = "last"
    """Which vector stands for the sequence: that of its last symbol or of its first, or the mean of all."""
    dropout: float = 0.1
    """Share of the values before the scores dropped in training."""
    frozen: bool = False
    """The reader does not learn."""

    def __post_init__(self) -> None:
        for name, given, known in (("kind", self.kind, Kind), ("pooling", self.pooling, Summary)):
            if given not in get_args(known):
                raise ValueError(f"Unknown {name} {given!r} of a labeller; the known ones are {', '.join(get_args(known))}.")
        if self.outputs < 1:
            raise ValueError(f"A labeller has at least one score, not {self.outputs}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"A dropout rate lies in [0, 1), not {self.dropout}.")
