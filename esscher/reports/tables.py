"""Values, rows and tokens as people read them: numbers rounded to their uncertainty, and tables that fit the terminal.

An estimate has as many digits as two digits of its interval's half-width; units stand in the header of a column, how a number
was estimated only where it is asked for. Numbers are never broken: where a table is too wide, long texts go below the numbers
of their row, and what is still too wide becomes a second table with the same first column.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.text import Text

from esscher.core.console import escaped
from esscher.core.estimate import Estimate

if TYPE_CHECKING:
    from esscher.data.tokenizers import Tokenizer

CONTEXT_TOKENS = 3  # decoded before a token, because some tokenizers drop the space of the first one
SIGNIFICANT = 4  # digits of a number without an interval
MAX_SIGNIFICANT = 7  # digits of a number with one, however small that is
LARGEST_WRITTEN_OUT, SMALLEST_WRITTEN_OUT = 1e6, 1e-4  # beyond these, numbers have an exponent
GAP, INDENT = "  ", "    "
HEADINGS = {
    "ess": "ESS", "kl": "KL", "kl_to_the_base": "KL to the base", "log_base": "log-probability",
    "log_unnormalized": "log-probability less energy",
    "log_weight": "log-weight", "log_z": "log Z", "log_z_std": "spread of log Z", "max_share": "largest share",
    "p_value": "p-value",
}  # fmt: skip


def heading(name: str) -> str:
    """The name of a fact or a column in words."""
    return HEADINGS.get(name, name.replace("_", " "))


def format_cell(value: Any, *, unit: bool = True) -> str:
    """A value as text: an estimate with its interval and, unless it stands elsewhere, its unit; a float with four digits."""
    if isinstance(value, Estimate):
        text = format_estimate(value)
        return f"{text} {value.unit}" if unit and value.unit else text
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def format_estimate(estimate: Estimate) -> str:
    """`value [low, high]`, all to the place of the second digit of half the interval's width; an exact number alone."""
    value, low, high = estimate.value, estimate.low, estimate.high
    if estimate.n == 0 or math.isnan(value):
        return format_number(value)
    ends = [end for end in (low, high) if math.isfinite(end)]
    if not ends:
        return f"{format_number(value)} [unbounded]"
    half = (high - low) / 2 if len(ends) == 2 else abs(ends[0] - value)
    if not (half > 0 and math.isfinite(value)):
        return f"{format_number(value)} [{format_number(low)}, {format_number(high)}]"
    size = max(abs(value), *map(abs, ends))
    decimals = min(1 - _exponent(half), MAX_SIGNIFICANT - 1 - _exponent(size))
    shown = (_rounded(number, decimals, size) for number in (value, low, high))
    return "{} [{}, {}]".format(*shown)


def format_number(value: float) -> str:
    """A number with four significant digits."""
    if math.isnan(value):
        return "undefined"
    mantissa, e, exponent = _rounded(value, SIGNIFICANT - 1 - _exponent(abs(value)), abs(value)).partition("e")
    return (mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa) + e + exponent


def _rounded(number: float, decimals: int, size: float) -> str:
    """The number to so many decimals; with an exponent if it belongs to numbers as large or as small as `size`."""
    if not math.isfinite(number):
        return "unbounded"
    if decimals < 0:  # tens or more: never to nothing, beside an end that is far larger
        decimals = min(0, max(decimals, 1 - _exponent(abs(number)))) if number else 0
    number = round(number, decimals) + 0.0  # not -0
    if number == 0 and size < SMALLEST_WRITTEN_OUT:
        return "0"
    if number and ((size >= LARGEST_WRITTEN_OUT and abs(number) >= 1e4) or size < SMALLEST_WRITTEN_OUT):
        mantissa, exponent = f"{number:.{max(0, decimals + _exponent(abs(number)))}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{number:,.{max(0, decimals)}f}" if decimals <= 0 or abs(number) >= 1e4 else f"{number:.{decimals}f}"


def _exponent(size: float) -> int:
    """The power of ten of the first digit; 0 for 0."""
    return math.floor(math.log10(size)) if size and math.isfinite(size) else 0


def column_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of all rows, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def methods(values: Iterable[tuple[str, Any]]) -> list[str]:
    """How the estimates among named values were made: a line for each way, with the names that share it."""
    names: dict[str, list[str]] = {}
    for name, value in values:
        if isinstance(value, Estimate):
            rate = f"{100 * value.confidence:.4g} % interval, " if math.isfinite(value.confidence) else ""
            way = value.method if value.n == 0 else f"{rate}{value.n:,} {value.counted}, {value.method}"
            names.setdefault(way, []).append(heading(name))
    return [f"{', '.join(dict.fromkeys(group))}: {way}" for way, group in names.items()]


def _names_unit(row: Mapping[str, Any], value: Any) -> bool:
    """Whether the words of the row say what the unit of the value is."""
    words = " ".join(cell for cell in row.values() if isinstance(cell, str))
    return isinstance(value, Estimate) and value.unit != "" and value.unit.split()[-1] in words


class _Column:
    """A column of formatted cells under its header."""

    def __init__(self, key: str, rows: Sequence[Mapping[str, Any]]):
        values = [row.get(key) for row in rows]
        self.numeric = all(isinstance(value, int | float | Estimate | None) and not isinstance(value, bool) for value in values)
        units = {value.unit for value in values if isinstance(value, Estimate) and not math.isnan(value.value)}
        shared = len(units) == 1
        unit = units.pop() if shared else ""
        unit = unit if unit.startswith("per ") or not unit else f"({unit})"
        self.title = f"{heading(key)} {unit}" if unit and unit not in heading(key) else heading(key)
        self.cells = [
            escaped(format_cell(value, unit=not shared and not _names_unit(row, value)))
            for row, value in zip(rows, values, strict=True)
        ]
        self.width = max((cell_len(line) for cell in self.cells for line in cell.split("\n")), default=0)
        self.head: list[str] = []
        longest_word = max((cell_len(word) for word in self.title.split()), default=0)
        self.width = max(self.width, longest_word)
        for word in self.title.split():  # in as many lines as the cells leave no room for
            if self.head and cell_len(self.head[-1]) + 1 + cell_len(word) <= self.width:
                self.head[-1] += f" {word}"
            else:
                self.head.append(word)

    @property
    def breaks(self) -> bool:
        return any("\n" in cell for cell in self.cells)

    def aligned(self, text: str) -> str:
        space = " " * (self.width - cell_len(text))
        return space + text if self.numeric else text + space


def _needed(columns: Sequence[_Column]) -> int:
    """The width of columns side by side."""
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def _fit(columns: list[_Column], width: int) -> tuple[list[list[_Column]], list[_Column]]:
    """Blocks of columns that fit side by side, and the columns of texts that go below each row of the first block."""
    beside, below = list(columns), []
    texts = sorted((column for column in columns if not column.numeric), key=lambda column: -column.width)
    for column in texts:
        if len(beside) > 1 and (column.breaks or (_needed(beside) > width and column.width > len(INDENT))):
            beside.remove(column)
            below.append(column)
    below.sort(key=columns.index)
    blocks: list[list[_Column]] = [[]]
    for column in beside:
        key = [beside[0]] if blocks[0] and beside[0].width < width // 2 else []
        if blocks[-1] and _needed([*blocks[-1], column]) > width:
            blocks.append(list(key))
        blocks[-1].append(column)
    return blocks, below


def rich_table(title: str, rows: Sequence[Mapping[str, Any]], console: Console, *, verbose: bool = False) -> Group:
    """A table for the terminal, as wide as the console at most; `verbose` adds how its numbers were estimated."""
    columns = [_Column(key, rows) for key in column_names(rows)]
    columns = [column for column in columns if any(column.cells)]
    blocks, below = _fit(columns, console.width) if columns else ([], [])
    lines = [Text(escaped(heading(title)), style="bold")]
    for number, block in enumerate(blocks):
        for place in range(max(len(column.head) for column in block)):
            heads = (column.head[place] if place < len(column.head) else "" for column in block)
            line = GAP.join(column.aligned(head) for column, head in zip(block, heads, strict=True))
            lines.append(Text(line.rstrip(), style="dim"))
        lines.append(Text("─" * min(console.width, _needed(block)), style="dim"))
        for row in range(len(rows)):
            lines.append(Text(GAP.join(column.aligned(column.cells[row]) for column in block).rstrip()))
            lines += [line for column in below if number == 0 for line in _below(column, row, len(below) > 1, console)]
    if verbose:
        lines += _hanging(methods((key, row.get(key)) for key in column_names(rows) for row in rows), console)
    return Group(*lines)


def _below(column: _Column, row: int, named: bool, console: Console) -> list[Text]:
    """A text under the numbers of its row, indented."""
    if not column.cells[row]:
        return []
    text = Text(f"{column.title}: {column.cells[row]}" if named else column.cells[row])
    return [Text(INDENT) + line for line in _wrapped(text, console, console.width - len(INDENT))]


def _wrapped(text: Text, console: Console, width: int) -> list[Text]:
    """The text in lines of at most this width, without space at their ends."""
    lines = list(text.wrap(console, width, overflow="fold")) or [Text("")]
    for line in lines:
        line.rstrip()
    return lines


def _hanging(lines: Sequence[str], console: Console, style: str = "dim") -> list[Text]:
    """Lines of text, each folded with its continuation indented."""
    folded: list[Text] = []
    for line in lines:
        first, *rest = _wrapped(Text(escaped(line), style=style), console, console.width - len(GAP))
        folded += [first, *(Text(GAP) + part for part in rest)]
    return folded


def rich_facts(title: str, facts: Mapping[str, Any], console: Console, *, verbose: bool = False) -> Group:
    """Names and values below each other; `verbose` adds how each number was estimated."""
    shown = {heading(key): escaped(format_cell(value)) for key, value in facts.items() if value is not None and value != ""}
    width = max((cell_len(escaped(name)) for name in shown), default=0)
    lines = [Text(escaped(title), style="bold")] if title else []
    for name, value in shown.items():
        room = max(20, console.width - width - len(GAP))
        is_path = " " not in value  # which stays whole, to be copied
        parts = [Text(value)] if is_path else _wrapped(Text(value), console, room)
        label = Text(escaped(name) + " " * (width - cell_len(escaped(name))) + GAP, style="dim")
        lines += [label + parts[0], *(Text(" " * (width + len(GAP))) + part for part in parts[1:])]
    if verbose:
        lines += _hanging(methods(facts.items()), console)
    return Group(*lines)


def rich_notes(notes: Sequence[str], console: Console) -> Group:
    """Each note with its continuation lines indented; a second line of a note, a command, stays whole, to be copied."""
    lines: list[Text] = []
    for note in notes:
        text, _, command = note.partition("\n")
        lines += _hanging([f"- {text}"], console, style="")
        lines += [Text(GAP + escaped(command))] if command else []
    return Group(*lines)


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
