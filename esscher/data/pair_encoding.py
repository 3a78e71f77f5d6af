"""One or two texts as a row for an encoder: A SEP B SEP CLS. The prompt is the first text, the point all that follows. The
longer of two texts is truncated; a long passage is divided into windows that overlap by half, each with the whole question."""

from collections.abc import Sequence
from dataclasses import dataclass

from esscher.core.space import Sequences, sequences
from esscher.data.tokenizers import Encoding, Tokenizer

MIN_PASSAGE_TOKENS = 2  # in a window


@dataclass(frozen=True)
class PassageWindow:
    """A window of the passage of a row, from token `first` on."""

    row: int
    first: int
    encoding: Encoding

    def text(self, passage: str, first: int, last: int) -> str:
        """The text from one token of the window to another."""
        begin, end = self.first + first, self.first + last
        return passage[self.encoding.ends[begin - 1] if begin else 0 : self.encoding.ends[end]].strip()

    def span(self, offset: int, length: int, tokens: int) -> tuple[int, int] | None:
        """First and last token of `length` characters from `offset`; None if they are not among the window's `tokens`."""
        ends = self.encoding.ends
        first = next((number for number, end in enumerate(ends) if end > offset), None)
        last = next((number for number, end in enumerate(ends) if end >= offset + length), None)
        if first is None or last is None or first < self.first or last >= self.first + tokens:
            return None
        return first - self.first, last - self.first


@dataclass(frozen=True)
class PairEncoder:
    """A tokenizer, the most tokens of a row, and the symbols; without a separator and a summary there are none."""

    tokenizer: Tokenizer
    longest: int
    separator: int | None
    summary: int | None

    def rows(self, inputs: Sequence[tuple[str, ...]]) -> Sequences:
        """A row for each input of one or two texts."""
        rows = [self._truncate(self.tokenizer.encode(list(texts))) for texts in inputs]
        return sequences([self._rest(row) for row in rows], [row[0] for row in rows])

    def windows(self, inputs: Sequence[tuple[str, ...]]) -> tuple[Sequences, list[PassageWindow]]:
        """Windows of passages, each followed by its question, as rows and as descriptions."""
        points, prompts, windows = [], [], []
        for number, (passage, question) in enumerate(inputs):
            encoding, (query,) = self.tokenizer.encode_with_offsets([passage])[0], self.tokenizer.encode([question])
            query = query[: max(1, (self.longest - self._symbols(2)) // 2)]
            room = self.longest - self._symbols(2) - len(query)
            if room < MIN_PASSAGE_TOKENS:
                raise ValueError(
                    f"Rows of {self.longest} tokens leave {room} for a passage besides a question of {len(query)}. Nothing was "
                    f"read; raise the longest row."
                )
            first = 0
            while True:
                windows.append(PassageWindow(number, first, encoding))
                prompts.append(encoding.tokens[first : first + room])
                points.append(self._rest([prompts[-1], query]))
                if first + room >= len(encoding.tokens):
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

    def _truncate(self, row: list[list[int]]) -> list[list[int]]:
        """The texts, truncated so that the row is not too long."""
        room = self.longest - self._symbols(len(row))
        if room < len(row):
            raise ValueError(f"Rows of {self.longest} tokens have no room for {len(row)} texts. Nothing was read.")
        if len(row) == 1:
            return [row[0][:room]]
        first, second = row
        second_length = min(len(second), max(room // 2, room - len(first)))
        return [first[: room - second_length], second[:second_length]]
