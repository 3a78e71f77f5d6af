"""How text is cut into the points of a model, without torch: what a model's folder leaves open, and an energy's remembers.

A model of texts has a point for each text, which ends with the end symbol. With `given`, all texts are one stream, cut into
chunks: the first `given` tokens of a chunk are its prompt, the next `max_length` its point, and nothing ends before.
"""

from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Cut:
    """What a folder says holds where a setting is None."""

    max_length: int | None = None
    """Tokens of the longest point, if not what the folder says."""
    eos: str | None = None
    """The token that ends a text, if not what a Hugging Face folder says."""
    given: int | None = None
    """Cut the text as one stream into chunks, this many tokens being the prompt of each."""

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_length < 1:
            raise ValueError(f"A point has at least one token, not {self.max_length}.")
        if self.given is not None and self.given < 0:
            raise ValueError(f"A prompt has 0 tokens or more, not {self.given}.")

    def over(self, other: "Cut") -> "Cut":
        """The other's settings wherever this one has none."""
        return replace(other, **{name: value for name, value in asdict(self).items() if value is not None})
