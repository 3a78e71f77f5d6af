"""Values, rows and tokens as people read them: formatted cells, and tables for the terminal."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from esscher.core.console import escaped
from esscher.core.estimate import Estimate

if TYPE_CHECKING:
    from esscher.data.tokenizers import Tokenizer

CONTEXT_TOKENS = 3  # decoded before a token, because some tokenizers drop the space of the first one


def format_cell(value: Any) -> str:
    """A value as text: an estimate with its interval, a float with five digits."""
    if isinstance(value, Estimate):
        unit = f" {value.unit}" if value.unit else ""
        if value.n == 0:
            return f"{value.value:.5g}{unit}"
        return f"{value.value:.5g} [{value.low:.5g}, {value.high:.5g}]{unit}"
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def column_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of all rows, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def rich_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A terminal table with one line per row; numbers are right-aligned."""
    table = Table(title=title.replace("_", " "), title_justify="left", title_style="bold")
    for key in column_names(rows):
        numeric = all(isinstance(row.get(key), int | float | Estimate | None) for row in rows)
        table.add_column(key.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(escaped(format_cell(row.get(key)))) for key in column_names(rows)))
    return table


def rich_facts(title: str, facts: Mapping[str, Any]) -> Table:
    """A terminal table of names and values."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for key, value in facts.items():
        shown = str(value) if isinstance(value, Estimate) and value.n else format_cell(value)
        table.add_row(key.replace("_", " "), Text(escaped(shown)))
    return table


def token_name(token: int | None, context: Sequence[int], tokenizer: "Tokenizer") -> str:
    """The quoted text that the token adds to its context, or its vocabulary entry if that is no text; None is `all others`."""
    if token is None:
        return "all others"
    text = _added_text(token, context, tokenizer)
    return repr(text) if text and text.isprintable() else str(tokenizer.backend.id_to_token(token))


def token_texts(tokens: Sequence[int], prompt: Sequence[int], tokenizer: "Tokenizer") -> list[str]:
    """The text of each token of a point; its vocabulary entry in brackets if it is no text by itself."""
    contexts = ([*prompt, *tokens[:position]] for position in range(len(tokens)))
    texts = (_added_text(token, context, tokenizer) for token, context in zip(tokens, contexts, strict=True))
    return [text or f"[{tokenizer.backend.id_to_token(token)}]" for token, text in zip(tokens, texts, strict=True)]


def _added_text(token: int, context: Sequence[int], tokenizer: "Tokenizer") -> str:
    """What the token adds to the decoded context; empty if it is part of a character, or a special token."""
    context = list(context)[-CONTEXT_TOKENS:]
    before, after = tokenizer.decode([context, [*context, token]])
    added = after[len(before) :] if after.startswith(before) else ""
    return "" if "\ufffd" in added else added
