"""Tokens as people read them."""

from collections.abc import Sequence

from esscher.data.tokenizers import Tokenizer

AROUND = 3  # tokens before one, without which some lose the space before them


def token_name(token: int | None, given: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text that a token adds to those given, in quotes, or its name where it is no text by itself; None is all others."""
    if token is None:
        return "all others"
    text = _added(token, given, tokenizer)
    return repr(text) if text and text.isprintable() else str(tokenizer.backend.id_to_token(token))


def pieces(tokens: Sequence[int], given: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """The text of each token of a point after its prompt; its name in brackets where it is no text by itself."""
    row, found = [*given, *tokens], []
    for place in range(len(given), len(row)):
        text = _added(row[place], row[:place], tokenizer)
        found.append(text or f"[{tokenizer.backend.id_to_token(row[place])}]")
    return found


def _added(token: int, given: Sequence[int], tokenizer: Tokenizer) -> str:
    """What the token adds; nothing where it is a part of a letter, or no text."""
    near = list(given)[-AROUND:]
    before, after = tokenizer.decode([near, [*near, token]])
    added = after[len(before) :] if after.startswith(before) else ""
    return "" if "\ufffd" in added else added
