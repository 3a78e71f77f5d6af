"""Features that remember: a point that was judged before is not judged again.

Worth it where judging is dear, as with a classifier, and the same points come back: weights are refitted on one
sample, a Markov chain stays where it is, duplicates are drawn, measuring follows fitting. A cheap feature is faster
without: a look-up costs a few microseconds a row. Declared classifiers are cached by themselves.

What it leaves out: functions that change (a network in training) or that throw dice; do not cache these.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.energies.features import Feature
from esscher.energies.reading import OfText, OfTokens, Reading, read_column
from esscher.space import Sequences

MOST = 2**17  # points remembered: some 25 MB, however long the points are


class Cached:
    """A function of sequences that calls `of` once for each different point, the prompt being part of it if it is read.

    It remembers the `most` points that were asked for last. A batch is judged in one call, without its duplicates.
    `reads_prompt=False` is for functions of the point alone: they are asked once, whatever the prompts.
    """

    def __init__(self, name: str, of: Callable[[Sequences], Tensor], *, reads_prompt: bool = True, most: int = MOST):
        if most < 1:
            raise ValueError(f"A cache remembers at least one point, not {most}.")
        self.name, self.of, self.reads_prompt, self.most = name, of, reads_prompt, most
        self._kept: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __call__(self, x: Sequences) -> Float[Tensor, "B"]:
        return self.read(Reading(x), range(len(x)))

    def read(self, reading: Reading, rows: Sequence[int]) -> Float[Tensor, "R"]:
        """The values of the chosen rows; only points not remembered are judged, and wrong values are not kept."""
        keys = self._keys(reading.x, rows)
        found = {key: self._kept[key] for key in keys if key in self._kept}
        fresh: dict[bytes, int] = {}
        for key, row in zip(keys, rows, strict=True):
            if key not in found:
                fresh.setdefault(key, row)
        if fresh:
            column = read_column(self.name, self.of, reading, list(fresh.values()))
            found.update(zip(fresh, column.tolist(), strict=True))
        self._keep(found)
        return torch.tensor([found[key] for key in keys], dtype=torch.float64)

    def _keep(self, found: dict[bytes, float]) -> None:
        for key, value in found.items():
            self._kept[key] = value
            self._kept.move_to_end(key)
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)

    def _keys(self, x: Sequences, rows: Sequence[int]) -> list[bytes]:
        """A digest of each chosen row's point, or of its prompt, its point, and the place where they meet."""
        tokens, start, stop = x.tokens.cpu().long().numpy(), x.start.tolist(), x.stop.tolist()
        keys = []
        for row in rows:
            first = 0 if self.reads_prompt else start[row]
            meeting = start[row].to_bytes(8, "little") if self.reads_prompt else b""
            keys.append(hashlib.blake2b(meeting + tokens[row, first : stop[row]].tobytes(), digest_size=16).digest())
        return keys


def cached(feature: Feature, *, most: int = MOST) -> Feature:
    """The same feature, remembering up to `most` points.

    Whether it reads the prompt is known of features of text and of tokens, and taken as yes of any other function.
    """
    reads_prompt = feature.of.with_prompt if isinstance(feature.of, OfText) else not isinstance(feature.of, OfTokens)
    return Feature(feature.name, Cached(feature.name, feature.of, reads_prompt=reads_prompt, most=most))
