"""How one or two texts become a row that a reader reads: A SEP B SEP CLS, with the symbols that the reader has.

The prompt is the first text, the point is what follows with the symbols. Of two texts that are too long together the longer one
loses its end. A long passage is read in windows that overlap by half, each with the whole question.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from esscher.data.tokenizers import Encoded, Tokenizer
from esscher.space import Sequences, sequences

FEWEST = 2  # tokens of a passage in a window


@dataclass(frozen=True)
class Window:
    """Tokens of a passage from `first` on, and where each ends in it."""

    row: int
    first: int
    found: Encoded

    def text(self, passage: str, first: int, last: int) -> str:
        """The words from one token of the window to another."""
        begin, end = self.first + first, self.first + last
        return passage[self.found.ends[begin - 1] if begin else 0 : self.found.ends[end]].strip()

    def span(self, place: int, length: int, tokens: int) -> tuple[int, int] | None:
        """The first and last token, of the window's `tokens`, of so many characters from a place on; None where it ends."""
        ends = self.found.ends
        first = next((number for number, end in enumerate(ends) if end > place), None)
        last = next((number for number, end in enumerate(ends) if end >= place + length), None)
        if first is None or last is None or first < self.first or last >= self.first + tokens:
            return None
        return first - self.first, last - self.first


@dataclass(frozen=True)
class Layout:
    """A tokenizer, the most tokens of a row, and the symbols: none where texts are read apart."""

    tokenizer: Tokenizer
    longest: int
    separator: int | None
    summary: int | None

    def rows(self, readings: Sequence[tuple[str, ...]]) -> Sequences:
        """A row for each reading of one or two texts."""
        texts = [self.tokenizer.encode(list(reading)) for reading in readings]
        rows = [self._cut(reading) for reading in texts]
        return sequences([self._rest(row) for row in rows], [row[0] for row in rows])

    def windows(self, readings: Sequence[tuple[str, ...]]) -> tuple[Sequences, list[Window]]:
        """The windows of passages, each before its question, and which tokens of which passage they hold."""
        points, prompts, windows = [], [], []
        for number, (passage, question) in enumerate(readings):
            found, (asked,) = self.tokenizer.encode_places([passage])[0], self.tokenizer.encode([question])
            asked = asked[: max(1, (self.longest - self._symbols(2)) // 2)]
            room = self.longest - self._symbols(2) - len(asked)
            if room < FEWEST:
                raise ValueError(
                    f"Rows of {self.longest} tokens leave {room} for a passage beside a question of {len(asked)}. Nothing was "
                    f"read; raise the longest row."
                )
            first = 0
            while True:
                windows.append(Window(number, first, found))
                prompts.append(found.tokens[first : first + room])
                points.append(self._rest([prompts[-1], asked]))
                if first + room >= len(found.tokens):
                    break
                first += max(1, room // 2)
        return sequences(points, prompts), windows

    def _rest(self, row: Sequence[Sequence[int]]) -> list[int]:
        """What follows the first text."""
        separator = [] if self.separator is None else [self.separator]
        end = [] if self.summary is None else [self.summary]
        return [*separator, *(token for text in row[1:] for token in (*text, *separator)), *end]

    def _symbols(self, texts: int) -> int:
        return (self.separator is not None) * texts + (self.summary is not None)

    def _cut(self, row: list[list[int]]) -> list[list[int]]:
        """The texts, cut so that the row is not too long."""
        room = self.longest - self._symbols(len(row))
        if room < len(row):
            raise ValueError(f"Rows of {self.longest} tokens have no room for {len(row)} texts. Nothing was read.")
        if len(row) == 1:
            return [row[0][:room]]
        first, second = row
        kept = min(len(second), max(room // 2, room - len(first)))
        return [first[: room - kept], second[:kept]]
