"""How text is divided into the points of a model, without torch: each text is a point that ends with the end symbol, or, with
`prompt_tokens`, all texts are one stream, cut into chunks of a prompt and a point of `max_length` tokens without end symbol."""

from dataclasses import asdict, dataclass, replace

from esscher.core.config import check_at_least


@dataclass(frozen=True, kw_only=True)
class Chunking:
    """Settings of chunking; those that are None are taken from the model's folder."""

    max_length: int | None = None
    """Most tokens of a point; by default that of the folder."""
    eos: str | None = None
    """Token that ends a text; by default that of the Hugging Face folder."""
    prompt_tokens: int | None = None
    """Cut the text as one stream into chunks with prompts of this many tokens."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_length")
        check_at_least(self, 0, "prompt_tokens")

    def with_defaults(self, other: "Chunking") -> "Chunking":
        """These settings, with those of `other` where they are None."""
        return replace(other, **{name: value for name, value in asdict(self).items() if value is not None})
