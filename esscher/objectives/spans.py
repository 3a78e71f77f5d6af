"""Which tokens of a text are predicted together: spans of a few words or pieces, with room around them.

A span has n units, n in 1, ..., `longest` with probability proportional to 1 / n (not uniform), within a stretch of
n x `one_in` tokens of which a random part stands before it, and begins where a word does. What is left of the number to be
predicted is filled with single tokens. The published text speaks of words; the authors' released program counts pieces,
because it looks for the start of a word in the wrong place: that is the unit "pieces".

Letters: T tokens of a row, n units of a span.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from esscher.randomness import Rng


@dataclass(frozen=True)
class Words:
    """Which tokens begin with a blank, and which end with one: so words are told in any text."""

    opens: Bool[Tensor, "V"]
    closes: Bool[Tensor, "V"]

    def begins(self, tokens: Int[Tensor, "T"]) -> Bool[Tensor, "T"]:
        """Whether a word begins with each token; symbols beside the vocabulary are words of their own."""
        known = tokens < len(self.opens)
        number = torch.where(known, tokens, 0).cpu()
        after = torch.where(known.cpu(), self.closes[number], True).roll(1)
        if len(after):
            after[0] = True
        return after | self.opens[number] | ~known.cpu()


@dataclass(frozen=True)
class Spans:
    """How spans are drawn; without `words` every token begins a word."""

    unit: Literal["words", "pieces"]
    longest: int = 5
    words: Words | None = None

    def __post_init__(self) -> None:
        if self.unit not in ("words", "pieces"):
            raise ValueError(f"Unknown unit of spans {self.unit!r}; the known ones are words and pieces.")
        if self.longest < 1:
            raise ValueError(f"The longest span has at least one unit, not {self.longest}.")

    def chosen(
        self, tokens: Int[Tensor, "T"], may: Bool[Tensor, "T"], count: int, one_in: float, *, rng: Rng
    ) -> Bool[Tensor, "T"]:
        """So many of the tokens that may be predicted, or all of those where they are fewer."""
        begins = [True] * len(tokens) if self.words is None else self.words.begins(tokens).tolist()
        allowed, target = may.tolist(), [False] * len(tokens)
        missing, place = min(count, sum(allowed)), 0
        sizes = (rng.categorical(-torch.arange(1, self.longest + 1).double().log()[None], max(1, len(tokens)))[0] + 1).tolist()
        for size in sizes:
            stretch = max(size, min(round(size * one_in), len(tokens)))
            first = place + int(rng.categorical(torch.zeros(1, stretch - size + 1))[0, 0])
            last = self._end(begins, first, size)
            if last is None or missing == 0:
                break
            for one in range(last[0], last[1]):
                if allowed[one] and missing:
                    target[one], missing = True, missing - 1
            place = max(last[1], place + stretch)
        left = [one for one in rng.permutation(len(tokens)).tolist() if allowed[one] and not target[one]]
        for one in left[:missing]:
            target[one] = True
        return torch.tensor(target, dtype=torch.bool, device=tokens.device)

    def _end(self, begins: list[bool], first: int, size: int) -> tuple[int, int] | None:
        """Where a span that begins with the next word begins and ends; None where the text ends before."""
        while first < len(begins) and not begins[first]:
            first += 1
        if first >= len(begins):
            return None
        last, units = first + 1, 1
        while last < len(begins) and (units < size or (self.unit == "words" and not begins[last])):
            units += 1 if self.unit == "pieces" else begins[last]
            last += 1
        return first, last
